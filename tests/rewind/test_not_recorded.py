"""Calls whose directory could not be looked at are named: what they have changed stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.errors import NotFound
from casfs.rewind import rewind_files
from casfs.rewind.rewind_files import Choice
from casfs.sessions.session_steps import UNSEEN, Point
from casfs.store.store import Store
from tests.rewind.test_repositories import rewind
from tests.support.attached_agent import AttachedAgent
from tests.support.following import OwnSessionDirectory
from tests.support.repositories import COMMIT, git, make_repository

MAX_BYTES = 100_000


@pytest.fixture
def agent(disk_store: Store, project: Path) -> Iterator[AttachedAgent]:
    """In a directory that is recorded up to MAX_BYTES."""
    followed = OwnSessionDirectory(disk_store, project, MAX_BYTES)
    yield AttachedAgent(disk_store, project, followed)
    followed.close()


def test_a_call_that_made_the_directory_too_large(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("echo x >> a")
    agent.run(f"head -c {2 * MAX_BYTES} /dev/urandom > large")
    agent.run("rm large; echo y >> b")
    agent.run("echo z >> b")
    plan = rewind(agent)
    assert not plan.is_whole
    assert [call.number for call in plan.lost] == [3, 2]
    assert all("holds more than" in (call.fault or "") for call in plan.lost)
    assert (project / "b").read_text() == "b\ny\n"
    assert (project / "a").read_text().endswith("8\n")
    whole = rewind(agent, is_exact=True)
    assert whole.is_whole
    assert (project / "b").read_text() == "b\n"
    with pytest.raises(
        NotFound, match=r"not known: .* holds more than .*; that before prompt 1 is"
    ):
        rewind(agent, "1.3", is_exact=True)


def test_the_last_call_is_named_where_it_is_not_recorded(
    agent: AttachedAgent, project: Path
) -> None:
    agent.prompt()
    agent.run("echo x >> a")
    agent.run(f"head -c {2 * MAX_BYTES} /dev/urandom > large")
    plan = rewind_files.plan_last(agent.store, project, agent.steps())
    assert plan.point == Point(1, 1)
    assert [call.number for call in plan.lost] == [2]


def test_a_call_that_nobody_saw_begin(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    with agent.another_daemon() as later:
        (project / "a").write_text("x")
        later.end("1.1")
    plan = rewind_files.plan(agent.store, project, agent.steps(), Choice(Point(1)))
    assert [call.fault for call in plan.lost] == [UNSEEN]
    assert not plan.is_whole


def test_a_call_in_a_work_tree_beside_the_project(
    agent: AttachedAgent, project: Path, tmp_path: Path
) -> None:
    make_repository(project)
    before = (project / "a").read_text()
    agent.prompt()
    agent.run(f"git worktree add -q -b other {tmp_path}/other; echo x >> a")
    agent.move(tmp_path / "other")
    agent.run(f"echo y > made; git add made; {COMMIT} -m other")
    commit = git(project, "rev-parse", "other")
    plan = rewind(agent)
    assert [call.number for call in plan.lost] == [2]
    assert f"it worked in {tmp_path}/other" in (plan.lost[0].fault or "")
    assert (tmp_path / "other/made").exists()
    assert git(project, "rev-parse", "other") == commit, "its work tree has its files still"
    assert (project / "a").read_text() == before


def test_a_file_that_a_tool_writes_outside(
    agent: AttachedAgent, project: Path, tmp_path: Path
) -> None:
    (project / "out").symlink_to(tmp_path)
    (tmp_path / "way").symlink_to(project)
    agent.prompt()
    agent.write("../notes", "x")
    agent.write("out/notes", "y")
    agent.write("b", "z")
    agent.write("../way/a", "z")
    plan = rewind(agent)
    assert [call.number for call in plan.lost] == [2, 1]
    assert all("is outside of" in (call.fault or "") for call in plan.lost)
    assert (tmp_path / "notes").read_text() == "y"
    assert (project / "b").read_text() == "b\n"
    assert (project / "a").read_text().endswith("8\n")
