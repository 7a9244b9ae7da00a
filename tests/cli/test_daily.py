"""The daily verbs: status and diff of a directory, ls and cat of a tree."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.engine import Cli
from tests.support.helpers import Link, Program, write_tree

TREE = {"README": b"one\n", "src": {"a.py": b"a\n", "b.py": b"b\n"}, "run": Program(b"#!\n")}


@pytest.fixture
def project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: it holds the newest of two checkpoints `app`, and then changes."""
    source = write_tree(tmp_path / "source", {**TREE, "src": {"a.py": b"old\n"}})
    cli("checkpoint", "create", "app", source)
    write_tree(source, TREE)
    cli("checkpoint", "create", "app", source)
    place = tmp_path / "project"
    cli("checkpoint", "restore", "app", place)
    (place / "README").write_bytes(b"two\n")
    (place / "src/b.py").unlink()
    (place / "src/new").touch()
    monkeypatch.chdir(place)
    return place


def test_a_directory_against_what_it_holds(cli: Cli, project: Path) -> None:
    changes = "M README\nD src/b.py\nA src/new\n"
    for arguments in (["diff"], ["diff", "."], ["diff", str(project)], ["diff", "app"]):
        assert cli(*arguments).text == changes, arguments
    assert cli("diff", "app", ".").text == changes
    assert cli("diff", ".", "app").text == "M README\nA src/b.py\nD src/new\n"
    assert cli("diff", ".", "../project").text == ""
    assert cli("diff", "app~1").text == "M README\nM src/a.py\nA src/new\n"
    assert "+two\n" in cli("diff", "--patch").text
    assert "3 paths changed, +1 -2 lines" in cli("diff", "--stat").text
    assert [one["path"] for one in cli("diff", "--json").json] == ["README", "src/b.py", "src/new"]


def test_only_some_paths(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("diff", "--", "src").text == "D src/b.py\nA src/new\n"
    assert cli("diff", "app~1", "app", "--", "src/a.py", "README").text == "M src/a.py\n"
    assert cli("diff", "app~1", "app", "--patch", "--", "src/b.py").text.count("diff --git") == 1
    assert cli("diff", "--", "src/nothing", "./src//new").text == "A src/new\n"
    monkeypatch.chdir(project / "src")
    assert cli("diff").text == "D src/b.py\nA src/new\n", "of the directory, in the tree above it"
    assert cli("diff", "--", "new").text == "A src/new\n"
    assert cli("diff", "app:src", ".").text == "D b.py\nA new\n"
    assert "must not contain .." in cli("diff", "--", "../README", code=4).err


def test_status(cli: Cli, project: Path) -> None:
    id = cli("checkpoint", "list", "app", "--json").json[0]["id"]
    said = cli("status", ".").text.splitlines()
    assert said == [f"{project} compared with app@{id}", "M README", "D src/b.py", "A src/new"]
    value = cli("status", project, "--json").json
    assert (value["directory"], value["name"]) == (str(project), f"app@{id}")
    assert [change["letter"] for change in value["changes"]] == ["M", "D", "A"]
    assert "M src/a.py" in cli("status", "--against", "app~1").text
    cli("checkpoint", "restore", "app", "../clean")
    assert cli("status", "../clean").text.splitlines()[1:] == ["no changes"]
    assert cli("status").text.startswith("store")


def test_the_status_of_the_store_names_the_tree_of_the_working_directory(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    id = cli("checkpoint", "list", "app", "--json").json[0]["id"]
    line = f"this directory holds app@{id}; see casfs status ."
    assert cli("status").text.splitlines()[-1] == line
    monkeypatch.chdir(project / "src")
    assert cli("status").text.splitlines()[-1] == line
    monkeypatch.chdir(tmp_path)
    assert "this directory" not in cli("status").text


def test_status_names_the_checkpoint_of_this_directory(cli: Cli, tmp_path: Path) -> None:
    places = [write_tree(tmp_path / name, TREE) for name in ("one", "two")]
    first, second = (cli("checkpoint", "create", place.name, place).word for place in places)
    assert cli("status", places[0], "--json").json["name"] == f"one@{first}"
    assert cli("status", places[1], "--json").json["name"] == f"two@{second}"
    (places[1] / "README").write_bytes(b"changed\n")
    cli("checkpoint", "restore", "one", places[1], "--force")
    (places[1] / "README").write_bytes(b"again\n")
    cli("checkpoint", "create", "two", places[1])
    (places[1] / "README").write_bytes(b"one\n")
    cli("checkpoint", "restore", f"two@{second}", places[1], "--force")
    assert cli("status", places[1], "--json").json["name"] == f"two@{second}"
    cli("workspace", "open", "one", tmp_path / "work", "--backend", "copy")
    try:
        assert cli("status", tmp_path / "work", "--json").json["name"] == f"one@{first}"
    finally:
        cli("workspace", "close", tmp_path / "work", "--force")


def test_nothing_is_recorded_under_a_name(cli: Cli, project: Path) -> None:
    before = cli("heads").text
    cli("diff")
    cli("status", ".")
    assert cli("heads").text == before


def test_what_is_not_known(cli: Cli, tmp_path: Path, project: Path) -> None:
    other = write_tree(tmp_path / "other", {"f": b""})
    for verb in ("diff", "status"):
        assert "not recorded or restored by casfs" in cli(verb, other, code=3).err
        assert "no directory" in cli(
            verb, "./none", "app", code=3 if verb == "diff" else 2
        ).err or (verb == "status")
    assert "A f" in cli("diff", "app", other).text
    assert "neither a hash nor" in cli("diff", "none", code=3).err
    assert "at most two" in cli("diff", "app", "app", "app", code=2).err
    (project / "app").mkdir()
    assert cli("diff", "app").text == cli("diff").text, "a revision wins over a directory's name"


def test_an_interrupted_restore_is_named(cli: Cli, project: Path) -> None:
    states = {path: json.loads(path.read_bytes()) for path in (cli.root / "restored").iterdir()}
    ((state, value),) = (one for one in states.items() if one[1]["path"] == str(project))
    state.write_text(json.dumps({**value, "roots": [*value["roots"], None]}))
    assert "a restore was interrupted; run it again" in cli("diff", code=4).err


def test_a_restore_of_single_paths_leaves_the_rest_as_it_is_known(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_tree(tmp_path / "place", {"a": b"1", "b": b"1"})
    cli("checkpoint", "create", "work", place)
    write_tree(place, {"a": b"2", "b": b"2"})
    newest = cli("checkpoint", "create", "work", place).word
    cli("checkpoint", "restore", "work~1", place, "--", "a")
    monkeypatch.chdir(place)
    said = cli("status", ".").text
    assert f"compared with work@{newest}" in said
    assert said.endswith("M a\n")
    assert f"holds work@{newest}" in cli("status").text
    cli("checkpoint", "restore", "work~1", place, "--", "a")
    assert cli("status", ".").text == said
    cli("checkpoint", "restore", "work", place, "--", "a")
    assert cli("status", ".").text.endswith("no changes\n")
    cli("checkpoint", "restore", "work~1", place, "--", "a")
    cli("checkpoint", "restore", "work", place)  # what was restored is no local change
    assert cli("status", ".").text.endswith("no changes\n")


def test_single_paths_in_an_empty_working_directory(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    cli("checkpoint", "restore", "app", ".", "--", "README")
    assert "interrupted" not in cli("status", ".").text


def test_a_home_directory_is_not_recorded(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project / "home"))
    (project / "home").mkdir()
    assert "refusing to record" in cli("diff", "app", "./home", code=4).err


def test_a_workspace(cli: Cli, tmp_path: Path, project: Path) -> None:
    work = tmp_path / "work"
    cli("workspace", "open", "app", work, "--backend", "copy")
    (work / "src/a.py").write_bytes(b"changed\n")
    assert cli("diff", work).text == "M src/a.py\n"
    cli("workspace", "commit", work)
    assert cli("diff", work).text == ""
    assert cli("diff", "app~1", work).text == "M src/a.py\n"
    cli("workspace", "close", work)


def test_ls(cli: Cli, project: Path, tmp_path: Path) -> None:
    assert cli("ls", "app").text == "README\nrun\nsrc/\n"
    assert cli("ls", "app:src").text == "a.py\nb.py\n"
    assert cli("ls", "app~1:src").text == "a.py\n"
    assert cli("ls", "app", "-R").text == "README\nrun\nsrc/\nsrc/a.py\nsrc/b.py\n"
    assert cli("ls", "app:README").text == "README\n"
    long = cli("ls", "app:src", "-l").text
    assert long.split()[:2] == ["f", "2"]
    assert long == cli("tree", "ls", "app", "src").text
    found = cli("ls", "app", "-R", "--json").json
    assert found[-1].keys() == {"name", "path", "kind", "hash", "sizeBytes", "executable"}
    assert (found[-1]["name"], found[-1]["path"]) == ("b.py", "src/b.py")
    assert "not in tree" in cli("ls", "app:none", code=3).err


def test_cat(cli: Cli, project: Path, tmp_path: Path) -> None:
    odd = write_tree(tmp_path / "odd", {b"\xff:": b"\x00\x1b[2J\xff", "link": Link(b"run")})
    cli("checkpoint", "create", "odd", odd)
    for verb in ("cat", "get"):
        assert cli(verb, "app:README").out == b"one\n"
        assert cli(verb, os.fsdecode(b"odd:\xff:")).out == b"\x00\x1b[2J\xff", "raw"
        hash = cli("ls", "app:README", "--json").json[0]["hash"]
        assert cli(verb, hash[:10]).out == b"one\n"
    assert "not a file: a directory" in cli("cat", "app:src", code=3).err
    assert "a symlink to run" in cli("cat", "odd:link", code=3).err
    assert "not in tree" in cli("cat", "app:none", code=3).err
