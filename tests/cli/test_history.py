"""`casfs blame` and `casfs log`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from tests.support.engine import Cli
from tests.support.helpers import Program, put_tree, write_tree
from tests.support.thread_example import Example, make_thread

FIRST = {"src": {"a.py": b"one\r\ntwo\n"}, "bin": b"\0"}
SECOND = {"src": {"a.py": b"one\r\n\x1b[31mtwo\nthree\n"}, "bin": b"\0"}
THIRD = {"src": {"b.py": b"one\r\n\x1b[31mtwo\nthree\n"}, "bin": b"\0"}


@pytest.fixture
def thread(cli: Cli) -> Example:
    with Store.open(cli.root) as store:
        made = make_thread(store, name="fix")
        for role, tree in (("coder", FIRST), ("tester", SECOND), ("coder", SECOND)):
            made.tree = put_tree(store, tree)
            made.step(role, "text")
        return made


def test_blame(cli: Cli, thread: Example) -> None:
    assert cli("blame", "fix:src/a.py").text.splitlines() == [
        "00000000@1 coder  command 2023-11-14T22:13:21Z 1) one",
        "00000000@2 tester command 2023-11-14T22:13:22Z 2) \\x1b[31mtwo",
        "00000000@2 tester command 2023-11-14T22:13:22Z 3) three",
    ]
    assert len(cli("blame", "fix:src/a.py", "-L", "2,9").text.splitlines()) == 2
    assert cli("blame", "fix@1:src/a.py", "-L", "2").text.endswith(" 2) two\n")
    assert cli("blame", "fix:bin").text.endswith("1) (binary or large)\n")
    value = cli("blame", "fix:src/a.py", "--json").json[1]
    assert (value["line"], value["text"], value["path"]) == (2, "\x1b[31mtwo", "src/a.py")
    assert value["version"]["revision"] == f"{thread.id}@2"
    assert value["version"]["hash"] == thread.steps[1]


def test_names_of_other_paths_and_colours(cli: Cli, thread: Example) -> None:
    with Store.open(cli.root) as store:
        thread.store, thread.tree = store, put_tree(store, THIRD)
        thread.step("coder", "renamed")
        thread.tree = put_tree(store, {"src": {"b.py": THIRD["src"]["b.py"] + b"four\n"}})  # type: ignore[index]
        thread.step("coder", "added")
    said = cli("blame", "fix:src/b.py").text.splitlines()
    assert said[0].endswith("src/a.py 1) one")
    assert said[-1].endswith("src/b.py 4) four")
    assert "\x1b[36m00000000@1" in cli("--color", "always", "blame", "fix:src/b.py").text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["fix:src"], 3, "src is not a file of"),
        (["fix"], 3, "is not a file of"),
        (["fix:none"], 3, "none is not a file of"),
        (["fix:src/a.py", "-L", "9"], 3, "has only 3 lines"),
        (["fix:src/a.py", "-L", "0"], 2, "-L takes A or A,B"),
        (["fix:src/a.py", "-L", "3,2"], 3, "has only 3 lines"),
        (["fix:src/a.py", "-L", "1", "--deleted", "x"], 2, "not with --deleted"),
        (["fix:src/a.py", "--deleted", "three"], 3, "still has that text, in line 3"),
        (["fix:src/a.py", "--deleted", "never"], 3, "no version of src/a.py had that text"),
        (["fix:../a"], 4, "must not contain .."),
    ],
)
def test_what_blame_refuses(
    cli: Cli, thread: Example, arguments: list[str], code: int, said: str
) -> None:
    assert said in cli.refused("blame", *arguments, code=code)


def test_what_removed_a_text(cli: Cli, thread: Example) -> None:
    said = cli("blame", "fix:src/a.py", "--deleted", "\ntwo").text
    assert said == "00000000@2 tester command 2023-11-14T22:13:22Z 1) one\n"
    with Store.open(cli.root) as store:
        thread.store, thread.tree = store, put_tree(store, {})
        thread.step("coder", "removed")
    [value] = cli("blame", "fix:src/a.py", "--deleted", "hre", "--json").json
    assert (value["line"], value["text"], value["version"]["step"]) == (3, "three", 4)


def test_log(cli: Cli, thread: Example) -> None:
    head = "00000000@2 tester command 2023-11-14T22:13:22Z M"
    assert cli("log", "fix:src/a.py", "-n", "1").text.splitlines() == [head]
    assert [row["letter"] for row in cli("log", "fix:src/a.py", "--json").json] == ["M", "A"]
    assert [row["letter"] for row in cli("log", "fix:src", "--json").json] == ["M", "A"]
    assert len(cli("log", "fix").text.splitlines()) == 3
    assert "no version up to 01JD0000000000000000000000@3 has none" in cli.refused(
        "log", "fix:none", code=3
    )
    patch = cli("log", "fix:src/a.py", "-n", "1", "--patch").text
    assert patch.startswith(f"{head}\ndiff --git a/src/a.py b/src/a.py\n")
    assert "cannot be combined" in cli.refused("log", "fix", "--patch", "--json", code=2)


def test_of_checkpoints(cli: Cli, tmp_path: Path) -> None:
    tree: dict[str, Any] = {"f": b"one\n", "run": Program(b"#!/bin/sh\n")}
    for message in ("first", "second"):
        folder = write_tree(tmp_path / message, tree)
        cli("checkpoint", "create", "work", str(folder), "-m", message)
        tree["f"] += b"two\n"
    rows = cli("blame", "work:f", "--json").json
    assert [row["version"]["message"] for row in rows] == ["first", "second"]
    assert [row["version"]["step"] for row in rows] == [None, None]
    assert cli("log", "work:f").text.splitlines()[0].endswith(" M second")
    root = cli("tree", "build", str(tmp_path / "second")).text.split()[0]
    assert cli("blame", f"{root}:f", "--json").json == rows, "a tree that a checkpoint has"
    assert "no checkpoint or thread" in cli.refused(
        "log",
        cli("tree", "build", str(write_tree(tmp_path / "third", tree))).text.split()[0],
        code=3,
    )


def test_a_first_checkpoint_is_not_of_a_thread_with_an_equal_tree(
    cli: Cli, thread: Example, tmp_path: Path
) -> None:
    mine = write_tree(tmp_path / "mine", SECOND)
    cli("checkpoint", "create", "mine", mine, "-m", "by me")
    rows = cli("blame", "mine:src/a.py", "--json").json
    assert {row["version"]["message"] for row in rows} == {"by me"}
    # What was restored from a thread is of its steps.
    cli("checkpoint", "restore", "fix@2", tmp_path / "copy")
    cli("checkpoint", "create", "copy", tmp_path / "copy")
    rows = cli("blame", "copy:src/a.py", "--json").json
    revisions = [f"{thread.id}@{step}" for step in (1, 2, 2)]
    assert [row["version"]["revision"] for row in rows] == revisions


def test_a_path_on_disk(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "work", {"src": {"f": b"one\n"}})
    cli("checkpoint", "create", "site", place)
    assert cli("blame", place / "src/f").text == cli("blame", "site:src/f").text
    assert cli("log", place / "src").text == cli("log", "site:src").text
    assert cli("cat", place / "src/f").text == "one\n"
    hits = cli("search", "site", place / "src", "--json").json
    assert [one["type"] for one in hits] == ["checkpoint"]
    (place / "g").touch()
    cli("checkpoint", "create", "site", place)
    assert len(cli("search", "site", place, "--json").json) == 2
    assert len(cli("search", "site", place / "src/f", "--json").json) == 1
    (place / "src/f").write_bytes(b"2\n")
    for verb in ("cat", "blame", "log"):
        assert f"{place}/src/f was changed since site@" in cli(verb, place / "src/f").err
    (tmp_path / "other").touch()
    assert "is in no directory" in cli.refused("blame", str(tmp_path / "other"), code=3)


def test_a_path_on_disk_of_a_restored_directory(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "f").write_text("a\n")
    first = cli("checkpoint", "create", "p", place).word
    (place / "f").write_text("b\n")
    cli("checkpoint", "create", "p", place)
    cli("checkpoint", "restore", f"p@{first}", place)
    for verb in ("blame", "log", "cat"):
        shown = cli(verb, place / "f")
        assert (shown.text, shown.err) == (cli(verb, f"p@{first}:f").text, "")
    assert f"compared with p@{first}" in cli("status", place).text
    (place / "f").write_text("c\n")
    shown = cli("cat", place / "f")
    assert (shown.text, f"since p@{first}, which is shown" in shown.err) == ("a\n", True)
    cli("checkpoint", "forget", "p", "--keep-last", "1")
    shown = cli("cat", place / "f")
    assert (shown.text, "since p, which is shown" in shown.err) == ("b\n", True)


def test_of_a_directory_here_also_of_what_was_deleted(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "w", {"a.py": b"1\n", "gone.py": b"2\n"})
    cli("checkpoint", "create", "w", tmp_path / "w")
    (tmp_path / "w/gone.py").unlink()
    cli("checkpoint", "create", "w", tmp_path / "w")
    monkeypatch.chdir(tmp_path / "w")
    assert [row["letter"] for row in cli("log", "gone.py", "--json").json] == ["D", "A"]
    assert len(cli("log").text.splitlines()) == 2
    said = cli.refused("log", "nosuch.py", code=3)
    assert said.startswith("casfs: no version up to w@")
    assert said.endswith(" has nosuch.py\n")
    assert "gone.py is not a file of w@" in cli.refused("blame", "gone.py", code=3)
    monkeypatch.chdir(tmp_path)
    assert "'nosuch.py' is neither a hash nor" in cli.refused("log", "nosuch.py", code=3)


def test_people_get_their_time_and_programs_utc(
    cli: Cli, thread: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert " 2023-11-14T17:13:21-05:00 " in cli("blame", "fix:src/a.py").text
        assert "\t2024-11-18T10:59:22-05:00\t" in cli("thread", "list").text
        assert "last activity: 2023-11-14 17:13:2" in cli("thread", "show", "fix").text
        (listed,) = cli("thread", "list", "--json").json
        assert listed["updatedAt"].endswith("Z")
        (row,) = cli("log", "fix:src/a.py", "-n", "1", "--json").json
        assert row["version"]["recordedAt"] == "2023-11-14T22:13:22.000Z"
    finally:
        monkeypatch.undo()
        time.tzset()
