"""What cannot be read cannot be had back, so nothing is written in its stead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.rewind import rewind_files
from casfs.rewind.rewind_files import Choice
from casfs.rewind.write_undone import UNRECORDED
from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.trees.restore.options import RestoreResult
from tests.support.attached_agent import AttachedAgent
from tests.support.following import OwnSessionDirectory
from tests.support.new_store import init_store
from tests.support.repositories import make_repository
from tests.support.restores import take_back_last
from tests.support.unprivileged import unprivileged


@pytest.fixture
def agent(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttachedAgent]:
    """In a project and a store of a user who is not root."""
    for name in ("CONFIG_HOME", "CACHE_HOME", "DATA_HOME"):
        monkeypatch.setenv(f"XDG_{name}", str(runtime_dir / "xdg"))
    monkeypatch.setenv("HOME", str(runtime_dir))
    project = runtime_dir / "project"
    (project / "d").mkdir(parents=True)
    (project / "a").write_text("a\n")
    (project / "d/b").write_text("b\n")
    init_store(runtime_dir / "store").close()
    with unprivileged(runtime_dir), Store.open(runtime_dir / "store") as store:
        followed = OwnSessionDirectory(store, project, None)
        yield AttachedAgent(store, project, followed)
        followed.close()


def rewind(agent: AttachedAgent, *, is_exact: bool = False) -> RestoreResult:
    choice = Choice(Point(1), is_exact=is_exact)
    plan = rewind_files.plan(agent.store, agent.directory, agent.steps(), choice)
    return rewind_files.do(agent.store, agent.directory, plan)


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_file_that_cannot_be_read(agent: AttachedAgent, is_exact: bool) -> None:
    agent.prompt()
    agent.run("rm a; rm d/b; echo x > new")
    mine = agent.directory / "a"
    mine.write_text("mine\n")
    mine.chmod(0)
    done = rewind(agent, is_exact=is_exact)
    assert done.failed == {b"a": "Permission denied"}
    mine.chmod(0o644)
    assert mine.read_text() == "mine\n"
    assert (agent.directory / "d/b").read_text() == "b\n"
    assert not (agent.directory / "new").exists()


def test_an_undo_leaves_what_cannot_be_read_and_can_go_on(agent: AttachedAgent) -> None:
    agent.prompt()
    agent.run("echo x > a; echo x > d/b")
    rewind(agent)
    (agent.directory / "a").unlink()
    (agent.directory / "d").chmod(0o300)
    assert take_back_last(agent.store, agent.directory) is None
    (agent.directory / "d").chmod(0o755)
    assert (agent.directory / "d/b").read_text() == "b\n"
    take_back_last(agent.store, agent.directory)
    assert (agent.directory / "d/b").read_text() == "x\n"


def test_a_repository_of_which_a_part_cannot_be_read(agent: AttachedAgent) -> None:
    (agent.directory / "b").write_text("b")
    make_repository(agent.directory)
    head, tag = (agent.directory / ".git" / name for name in ("HEAD", "refs/tags/t"))
    old = head.read_text()

    def switch() -> None:
        head.write_text("ref: refs/heads/side\n")
        tag.write_text((agent.directory / ".git/refs/heads/side").read_text())

    agent.prompt()
    agent.call(switch)
    tag.chmod(0)
    done = rewind(agent)
    assert done.failed.keys() >= {b".git/HEAD"}
    assert head.read_text() != old
    tag.chmod(0o644)
    rewind(agent)
    assert (head.read_text(), tag.exists()) == (old, False)


def test_what_is_no_file(agent: AttachedAgent) -> None:
    agent.prompt()
    agent.run("rm a")
    os.mkfifo(agent.directory / "a")
    assert rewind(agent).failed == {b"a": UNRECORDED}
    assert (agent.directory / "a").is_fifo()
