"""What is mounted in a directory is not part of it: no look sees it, nothing is written there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.rewind import rewind_files
from casfs.rewind.rewind_files import Choice
from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.system import mounts
from casfs.trees import tree
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.engine import Cli
from tests.support.helpers import put_tree, write_tree
from tests.support.lasting import ROOT_ONLY
from tests.support.restores import restored

pytestmark = ROOT_ONLY


@pytest.fixture
def elsewhere(project: Path, tmp_path: Path) -> Iterator[Path]:
    """Another directory, which is mounted at `data` in the project."""
    folder = write_tree(tmp_path / "elsewhere", {"theirs": b"theirs", "f": b"1"})
    (project / "data").mkdir()
    mounts.mount(str(folder), project / "data", "none", mounts.MS_BIND)
    try:
        yield folder
    finally:
        for point in mounts.mounted_below(project):
            mounts.unmount(point, lazy=True)


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_rewind_leaves_it(
    agent: AttachedAgent, project: Path, elsewhere: Path, is_exact: bool
) -> None:
    agent.prompt()
    agent.run("echo x >> a; echo agent > data/f; rm data/theirs; echo n > data/new")
    before = contents(elsewhere)
    steps = agent.steps()
    plan = rewind_files.plan(agent.store, project, steps, Choice(Point(1), is_exact=is_exact))
    assert [change.path for change in plan.undone.changed] == [b"a"]
    rewind_files.do(agent.store, project, plan)
    assert contents(elsewhere) == before


def test_one_that_was_mounted_since(agent: AttachedAgent, project: Path, tmp_path: Path) -> None:
    """The tree to come has other files there."""
    write_tree(project, {"data": {"old": b"old"}})
    agent.prompt()
    agent.run("echo x >> a; rm data/old")
    folder = write_tree(tmp_path / "elsewhere", {"theirs": b"theirs"})
    mounts.mount(str(folder), project / "data", "none", mounts.MS_BIND)
    try:
        steps = agent.steps()
        plan = rewind_files.plan(agent.store, project, steps, Choice(Point(1), is_exact=True))
        rewind_files.do(agent.store, project, plan)
        assert contents(folder) == {"theirs": ("file 0", b"theirs")}
    finally:
        mounts.unmount(project / "data", lazy=True)
    assert not (project / "data/old").exists()


def test_a_restore_and_a_checkpoint(cli: Cli, project: Path, elsewhere: Path) -> None:
    with Store.open(cli.root) as opened:
        _restore_and_record(cli, opened, project, elsewhere)


def _restore_and_record(cli: Cli, opened: Store, project: Path, elsewhere: Path) -> None:
    before = contents(elsewhere)
    done = cli("checkpoint", "create", "p", project)
    assert "data: left out, it is a mount" in done.err
    assert cli("ls", "p", "-R").text.split("\n")[:-1] == ["a", "b"]
    assert "M" not in cli("status", project).text
    other = put_tree(opened, {"a": b"other", "data": {"f": b"2", "g": b"3"}})
    result = restored(opened, other, project, force=True)
    assert (project / "a").read_bytes() == b"other"
    assert contents(elsewhere) == before
    assert result.outcome.kept == [b"data"]
    result = restored(opened, put_tree(opened, {}), project, delete_untracked=True, force=True)
    assert contents(elsewhere) == before
    assert tree.find(opened, result.root, b"data") is None


def test_what_is_mounted_on_itself_is_recorded_and_not_written(
    cli: Cli, agent: AttachedAgent, project: Path
) -> None:
    """As the sandbox of an agent does to make it read-only."""
    data = write_tree(project / "data", {"f": b"1", "own": {"g": b"2"}})
    for path in (data, data / "own", project / "a"):
        mounts.mount(str(path), path, "none", mounts.MS_BIND)
    try:
        agent.prompt()
        agent.run("echo x >> data/own/g; echo y >> b")
        (call,) = agent.steps()[0].calls
        assert call.after is not None
        assert tree.find(agent.store, call.after.full, b"data/own/g") is not None
        plan = rewind_files.plan(agent.store, project, agent.steps(), Choice(Point(1)))
        result = rewind_files.do(agent.store, project, plan)
        # It may be read-only, and cannot be replaced: it stays, and is named.
        assert (data / "own/g").read_bytes() == b"2x\n"
        assert result.outcome.kept == [b"data"]
        done = cli("checkpoint", "create", "p", project)
        assert "left out" not in done.err
        assert cli("ls", "p:data/own").text == "g\n"
    finally:
        for point in mounts.mounted_below(project):
            mounts.unmount(point, lazy=True)


def test_many_of_them_are_named_in_a_line(cli: Cli, project: Path, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "elsewhere", {"theirs": b"theirs"})
    for number in range(5):
        point = project / f"data{number}"
        point.mkdir()
        mounts.mount(str(folder), point, "none", mounts.MS_BIND)
    try:
        done = cli("checkpoint", "create", "p", project)
        named = "left out, as they are mounts: data0, data1, data2 and 2 more"
        assert named in done.err
    finally:
        for point in mounts.mounted_below(project):
            mounts.unmount(point, lazy=True)
