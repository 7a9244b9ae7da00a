"""`undo` and `redo`: of the directory in which they are typed, one after the other; and restores
that delete nothing that their tree has never looked at."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from casfs.directories import operations
from casfs.sessions import caller
from casfs.store.store import Store
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.cli import lines, value
from tests.support.engine import Cli
from tests.support.helpers import put_tree, read_tree, write_tree


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with what a tool has made, and what is ignored."""
    folder = write_tree(
        tmp_path / "project",
        {
            "a.txt": b"one\ntwo\nthree\n",
            "package.json": b"{}",
            "node_modules": {"x.js": b"x"},
            ".venv": {"pyvenv.cfg": b"", "lib": {"m.py": b"m"}},
            ".gitignore": b"node_modules/\n.venv/\n",
        },
    )
    for arguments in (["init", "-q"], ["add", "a.txt"], ["commit", "-qm", "first"]):
        git(folder, *arguments)
    monkeypatch.chdir(folder)
    return folder


def git(directory: Path, *arguments: str) -> str:
    argv = ["git", "-C", directory, "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def make_repository(directory: Path) -> None:
    git(directory, "init", "-q")
    git(directory, "commit", "-qm", "a", "--allow-empty")


def outside(project: Path) -> dict[str, tuple[str, bytes]]:
    """What no checkpoint looks at."""
    tops = (".git", "node_modules", ".venv")
    return {name: entry for name, entry in contents(project).items() if name.split("/")[0] in tops}


# -- a restore deletes nothing that its tree never looked at ----------------------------------


@pytest.mark.parametrize(
    "way",
    [
        [("rewind", "--last")],
        [("rewind", "--to", "1", "--exact")],
        [("rewind", "--last"), ("undo",)],
        [("rewind", "--last"), ("undo",), ("redo",)],
    ],
    ids=["last", "exact", "undo", "redo"],
)
def test_a_restore_after_a_rewind(
    cli: Cli, project: Path, agent: AttachedAgent, way: list[tuple[str, ...]]
) -> None:
    cli("checkpoint", "create", "r", ".")
    agent.prompt()
    agent.run("echo agent >> a.txt; rm node_modules/x.js")
    for arguments in way:
        cli(*arguments)
    before = outside(project)
    assert any(name.startswith(".git/") for name in before)
    done = cli("checkpoint", "restore", "r", ".", "--force")
    assert outside(project) == before
    assert "0 deleted" in done.text
    assert (project / "a.txt").read_bytes() == b"one\ntwo\nthree\n"
    git(project, "fsck", "--strict")


@pytest.mark.parametrize("option", ["--no-default-excludes", "--with-derived"])
def test_a_restore_after_one_of_more(cli: Cli, project: Path, option: str) -> None:
    cli("checkpoint", "create", "small", ".")
    cli("checkpoint", "create", "large", ".", option)
    (project / "a.txt").write_bytes(b"changed\n")
    cli("checkpoint", "restore", "large", ".", "--force")
    before = outside(project)
    done = cli("checkpoint", "restore", "small", ".")
    assert outside(project) == before
    assert "kept: " in done.err
    assert "node_modules" in done.err


def test_a_restore_after_a_threads_tree(cli: Cli, project: Path) -> None:
    cli("checkpoint", "create", "small", ".")
    with Store.open(cli.root) as store:
        whole = put_tree(store, read_tree(project))
    (project / "a.txt").write_bytes(b"changed\n")
    cli("tree", "restore", whole, ".", "--force")
    before = outside(project)
    cli("checkpoint", "restore", "small", ".")
    assert outside(project) == before


def test_what_is_ignored_now_or_was_then_is_not_deleted(cli: Cli, project: Path) -> None:
    write_tree(project, {".casfsignore": b"data/\n", "data": {"d": b"d"}})
    cli("checkpoint", "create", "without", ".")
    (project / ".casfsignore").write_bytes(b"")
    (project / "notes").write_bytes(b"n")
    cli("checkpoint", "create", "with", ".")
    (project / "a.txt").write_bytes(b"changed\n")
    cli("checkpoint", "restore", "with", ".", "--force")
    (project / ".casfsignore").write_bytes(b"notes\n")
    done = cli("checkpoint", "restore", "without", ".", "--force")
    assert "kept: data, notes" in done.err
    assert (project / "data/d").read_bytes() == b"d"
    assert (project / "notes").read_bytes() == b"n"


@pytest.mark.parametrize("arguments", [("redo",), ("undo", "2")])
def test_what_came_into_a_repository_since_comes_back(
    cli: Cli, project: Path, agent: AttachedAgent, arguments: tuple[str, ...]
) -> None:
    """No ref has it, so the repository counts as unchanged, and goes."""
    inner = project / "inner"
    inner.mkdir()
    agent.prompt()
    agent.call(lambda: make_repository(inner))
    cli("rewind", "--last")
    cli("undo")
    git(inner, "commit", "-qm", "b", "--allow-empty")
    lost = git(inner, "rev-parse", "HEAD").strip()
    git(inner, "reset", "-q", "--hard", "HEAD~")
    before = contents(project)
    cli(*arguments)
    assert not (inner / ".git").exists()
    cli("undo")
    assert git(inner, "cat-file", "-t", lost) == "commit\n"
    assert contents(project) == before


def test_a_line_of_ones_own_is_a_local_change_after_a_rewind(
    cli: Cli, project: Path, agent: AttachedAgent
) -> None:
    cli("checkpoint", "create", "r", ".")
    agent.prompt()
    agent.run("sed -i s/one/ONE/ a.txt")
    with (project / "a.txt").open("a") as file:
        file.write("mine\n")
    cli("rewind", "--last")
    assert (project / "a.txt").read_bytes() == b"one\ntwo\nthree\nmine\n"
    said = cli.refused("checkpoint", "restore", "r", ".", code=4)
    assert "local changes would be overwritten: a.txt" in said
    assert (project / "a.txt").read_bytes() == b"one\ntwo\nthree\nmine\n"


# -- of the directory in which it is typed ----------------------------------------------------


def overwritten(cli: Cli, place: Path, text: bytes = b"mine\n") -> None:
    """Has a restore overwrite a change in a directory."""
    write_tree(place, {"f": b"1\n"})
    cli("checkpoint", "create", place.name, place)
    (place / "f").write_bytes(text)
    cli("checkpoint", "restore", place.name, place, "--force")
    assert (place / "f").read_bytes() == b"1\n"


def test_another_project_is_not_touched(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwritten(cli, tmp_path / "p1")
    (tmp_path / "p2").mkdir()
    monkeypatch.chdir(tmp_path / "p2")
    said = cli.refused("undo", code=3)
    assert f"nothing to undo in {tmp_path / 'p2'}; perhaps `casfs undo {tmp_path / 'p1'}`" in said
    assert (tmp_path / "p1/f").read_bytes() == b"1\n"
    assert cli("undo", "--list").err == f"nothing was done in {tmp_path / 'p2'}\n"
    overwritten(cli, tmp_path / "p2", b"other\n")
    (tmp_path / "p2/deep").mkdir()
    monkeypatch.chdir(tmp_path / "p2/deep")
    cli("undo")
    assert (tmp_path / "p2/f").read_bytes() == b"other\n"
    assert (tmp_path / "p1/f").read_bytes() == b"1\n"
    cli("undo", tmp_path / "p1")
    assert (tmp_path / "p1/f").read_bytes() == b"mine\n"


def test_again_is_the_one_before(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_tree(tmp_path / "p", {"f": b"1\n"})
    monkeypatch.chdir(place)
    cli("checkpoint", "create", "p", ".")
    for text in (b"2\n", b"3\n"):
        (place / "f").write_bytes(text)
        cli("checkpoint", "restore", "p", ".", "--force")
    cli("undo")
    assert (place / "f").read_bytes() == b"3\n"
    assert "nothing to change by this: 1, restore p of " in cli("undo", code=1).text
    (place / "f").write_bytes(b"1\n")
    cli("undo")
    assert (place / "f").read_bytes() == b"2\n"
    assert "nothing to undo" in cli.refused("undo", code=3)
    states = [
        (one["operation"], one["verb"], one["takenBack"]) for one in value(cli, "undo", "--list")
    ]
    assert states == [
        (4, "undo", False), (3, "undo", False), (2, "restore", True), (1, "restore", True),
    ]  # fmt: skip
    cli("redo")
    assert (place / "f").read_bytes() == b"1\n"


def test_an_apply_is_taken_back_after_a_restore(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the directory was restored before it, which is what it was compared with."""
    place = write_tree(tmp_path / "place", {"f": b"1\n", "gone": b"g"})
    cli("checkpoint", "create", "p", place)
    (place / "f").write_bytes(b"0\n")
    cli("checkpoint", "restore", "p", place, "--force")
    script = tmp_path / "agent.sh"
    script.write_text("echo 2 >>f; echo new >new; rm gone\n")
    try:
        cli("run", "--apply", f"command:sh {script}", "Do it.", place)
    finally:
        cli("daemon", "stop")
    assert read_tree(place) == {b"f": b"1\n2\n", b"new": b"new\n"}
    (place / "beside").write_bytes(b"mine")
    monkeypatch.chdir(place)
    assert cli("undo", "--dry-run", "--json").json["verb"] == "apply"
    cli("undo")
    assert read_tree(place) == {b"f": b"1\n", b"gone": b"g", b"beside": b"mine"}
    cli("redo")
    assert read_tree(place) == {b"f": b"1\n2\n", b"new": b"new\n", b"beside": b"mine"}


def test_removals_are_of_the_store(cli: Cli, tmp_path: Path) -> None:
    overwritten(cli, tmp_path / "p")
    write_tree(tmp_path / "q", {"f": b"1"})
    made = cli("checkpoint", "create", "work", tmp_path / "q").word
    removed = cli("checkpoint", "rm", f"work@{made}").word
    assert f"perhaps `casfs undo {tmp_path / 'p'}`, `casfs undo --store`" in cli.refused(
        "undo", code=3
    )
    assert "names what comes back" in cli("undo", "work", "--dry-run", code=2).err
    assert cli("undo", "work").word == removed
    assert lines(cli, "undo", tmp_path / "p")[0].startswith(f"{tmp_path / 'p'}: taken back: 1, ")


def test_an_agent_takes_back_its_own(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "p"
    overwritten(cli, place)
    monkeypatch.chdir(place)
    monkeypatch.setenv("CASFS_THREAD", "01J")
    assert "nothing to undo" in cli.refused("undo", code=3)
    (place / "f").write_bytes(b"agent\n")
    cli("checkpoint", "restore", "p", ".", "--force")
    assert [line.split("\t")[2] for line in lines(cli, "undo", "--list")] == [
        "thread 01J", "a person",
    ]  # fmt: skip
    monkeypatch.delenv("CASFS_THREAD")
    cli("undo")
    assert (place / "f").read_bytes() == b"mine\n"
    monkeypatch.setenv("CASFS_THREAD", "01J")
    (place / "f").write_bytes(b"1\n")
    cli("undo")
    assert (place / "f").read_bytes() == b"agent\n"


def test_an_attached_agent_is_known_by_its_process(
    agent: AttachedAgent, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.prompt()
    assert caller.actor(agent.store, {}) == operations.PERSON, "it is not above itself"
    pid = os.getpid()
    monkeypatch.setattr("os.getppid", lambda: pid)
    assert caller.actor(agent.store, {}) == f"claude {agent.thread.id}"


def test_what_is_typed_wrong(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "p"
    overwritten(cli, place)
    monkeypatch.chdir(place)
    assert "no operation 9 here; see `casfs undo --list`" in cli.refused("undo", "9", code=3)
    assert "no removal of 'nothing'" in cli.refused("undo", "nothing", code=3)
    assert "nothing was taken back" in cli.refused("redo", code=3)
    assert "give --list, or what to take back" in cli("undo", "x", "--list", code=2).err
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    assert "it was at" in cli("undo", tmp_path / "moved", "--dry-run").err


def test_a_directory_that_is_not_there_is_not_the_one_above(cli: Cli, project: Path) -> None:
    """A word that is mistyped must not take back something else."""
    assert "no removal of" in cli.refused("undo", project / "gone", code=3)
    assert "No such file" in cli.refused("redo", f"{project}/gone", code=3)


def test_what_a_restore_made_as_private_stays_so(cli: Cli, project: Path, tmp_path: Path) -> None:
    """After an undo and a redo there, too, whatever git tracks by then."""
    (project / ".env").write_text("TOKEN=hunter2hunter2\n")
    cli("checkpoint", "create", "work", project)
    copy = tmp_path / "copy"
    cli("checkpoint", "restore", "work", copy)
    (project / "a.txt").write_text("other\n")
    cli("checkpoint", "create", "work", project)
    cli("checkpoint", "restore", "work", copy)
    cli("undo", copy)
    cli("redo", copy)
    git(copy, "init", "-q")
    git(copy, "add", "-f", ".")
    cli("checkpoint", "create", "copied", copy)
    assert ".env" not in cli("ls", "copied").text.split()


def test_what_a_rewind_brings_back_stays_private(
    cli: Cli, project: Path, agent: AttachedAgent
) -> None:
    (project / ".env").write_text("TOKEN=hunter2hunter2\n")
    agent.prompt()
    agent.run("rm .env; echo x > new")
    cli("rewind", "--last")
    assert (project / ".env").exists()
    git(project, "add", "-f", ".env")
    cli("checkpoint", "create", "work", project)
    assert ".env" not in cli("ls", "work").text.split()


def test_a_directory_that_is_called_like_a_number(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_tree(tmp_path / "place", {"top": b"1", "1": {"f": b"1"}})
    monkeypatch.chdir(place)
    cli("checkpoint", "create", "inner", "1")
    (place / "1/f").write_text("2")
    said = cli("checkpoint", "restore", "inner", "1", "--force").err
    assert "`casfs undo ./1` takes it back" in said
    cli("undo", "./1")
    assert (place / "1/f").read_text() == "2"


def test_an_empty_path_is_not_everything(cli: Cli, project: Path) -> None:
    cli("checkpoint", "create", "work", project)
    (project / "a.txt").write_text("mine\n")
    for path in ("", "/"):
        said = cli("checkpoint", "restore", "work", project, "--force", "--", path, code=2).err
        assert "an empty path" in said
    assert (project / "a.txt").read_text() == "mine\n"


def test_the_number_of_an_undo(cli: Cli, project: Path) -> None:
    cli("checkpoint", "create", "work", ".")
    (project / "a.txt").write_text("changed\n")
    cli("checkpoint", "restore", "work", ".", "--force")
    cli("undo")
    assert cli("undo", "2").text.startswith(f"{project}: done once more: 1, restore work")
    assert (project / "a.txt").read_text() == "one\ntwo\nthree\n"
    states = {row["operation"]: row["takenBack"] for row in cli("undo", "--list", "--json").json}
    assert states[1] is False


def test_what_stays_is_listed(cli: Cli, project: Path) -> None:
    cli("checkpoint", "create", "work", ".")
    (project / "a.txt").write_text("changed\n")
    cli("checkpoint", "restore", "work", ".", "--force")
    (project / "a.txt").write_text("1\n")
    (project / "package.json").write_text("{ }")
    cli("undo", code=1)
    assert "taken back" not in cli("undo", "--list").text, "nothing of it was"
