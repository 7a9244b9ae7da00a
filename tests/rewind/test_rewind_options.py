"""Rewinds of a part: one call in the middle, some paths, what is ambiguous, conflict markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.errors import NotFound, Refused
from casfs.rewind import rewind_files
from casfs.rewind.rewind_files import Choice, FilePlan
from casfs.rewind.undo_calls import MOVED, UndoOptions
from casfs.sessions import points
from casfs.sessions.session_steps import Point
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.repositories import git, make_repository
from tests.support.restores import take_back_last


def rewind(agent: AttachedAgent, choice: Choice) -> FilePlan:
    steps = agent.steps()
    plan = rewind_files.plan(agent.store, agent.directory, steps, choice)
    if plan.undone.changed:
        rewind_files.do(agent.store, agent.directory, plan)
    return plan


def test_one_call_in_the_middle(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("sed -i s/1/one/ a; echo 1 > first")
    agent.run("sed -i s/4/four/ a; echo 2 > second")
    agent.run("sed -i s/8/eight/ a; echo 3 > third")
    plan = rewind(agent, Choice(Point(1, 2), is_only=True))
    assert plan.is_whole
    assert (project / "a").read_text() == "one\n2\n3\n4\n5\n6\n7\neight\n"
    assert sorted(path.name for path in project.iterdir()) == ["a", "b", "first", "third"]
    assert rewind(agent, Choice(Point(1, 2), is_only=True)).undone.changed == []


def test_one_prompt_in_the_middle(agent: AttachedAgent, project: Path) -> None:
    for number in (1, 2, 3):
        agent.prompt()
        agent.run(f"echo {number} > file{number}")
        agent.run(f"echo {number} > more{number}")
        agent.stop()
    rewind(agent, Choice(Point(2), is_only=True))
    left = sorted(path.name for path in project.iterdir())
    assert left == ["a", "b", "file1", "file3", "more1", "more3"]


def test_a_later_call_has_gone_on_in_the_same_lines(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("sed -i s/4/four/ a")
    agent.run("sed -i s/four/FOUR/ a")
    before = contents(project)
    plan = rewind(agent, Choice(Point(1, 1), is_only=True))
    assert not plan.is_whole
    assert contents(project) == before


def test_some_paths(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("echo x > a; rm b; mkdir -p d/e; echo x > d/e/f; echo x > d/g; echo x > d2")
    rewind(agent, Choice(Point(1), options=UndoOptions((b"d", b"b"))))
    assert (project / "a").read_text() == "x\n"
    assert sorted(path.name for path in project.iterdir()) == ["a", "b", "d2"]
    take_back_last(agent.store, project)
    assert (project / "d/e/f").read_text() == "x\n"


def test_some_paths_exactly(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("echo x > a; rm b")
    (project / "mine").write_text("mine")
    options = UndoOptions((b"b",))
    rewind(agent, Choice(Point(1), is_exact=True, options=options))
    assert sorted(path.name for path in project.iterdir()) == ["a", "b", "mine"]
    assert (project / "a").read_text() == "x\n"


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_repository_is_taken_back_where_it_is_named(
    agent: AttachedAgent, project: Path, is_exact: bool
) -> None:
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "first")
    first = git(project, "rev-parse", "HEAD")
    agent.prompt()
    agent.run("echo x > a; git -c user.name=x -c user.email=x@y commit --quiet -am second")
    second = git(project, "rev-parse", "HEAD")
    rewind(agent, Choice(Point(1), is_exact=is_exact, options=UndoOptions((b"a",))))
    assert git(project, "rev-parse", "HEAD") == second
    assert (project / "a").read_text().startswith("1\n")
    rewind(agent, Choice(Point(1), is_exact=is_exact, options=UndoOptions((b".git",))))
    assert git(project, "rev-parse", "HEAD") == first


def test_what_is_ambiguous(agent: AttachedAgent, project: Path) -> None:
    """The first call of which the daemon has not seen the beginning."""
    agent.prompt()
    with agent.another_daemon() as late:
        agent.begin("1.1")
        agent.shell("echo x > new")
        late.end("1.1")
    with pytest.raises(NotFound, match=r"--ambiguous takes back what may be of 1\.1"):
        rewind_files.plan_last(agent.store, project, agent.steps())
    row = next(points.rows(agent.store, str(project), agent.steps()))
    assert row.marks == ["ambiguous"]
    assert rewind(agent, Choice(Point(1))).undone.changed == []
    rewind(agent, Choice(Point(1), options=UndoOptions(takes_ambiguous=True)))
    assert not (project / "new").exists()


def test_both_sides_between_markers(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("sed -i s/8/eight/ a")
    agent.run("sed -i s/1/one/ a")
    mine = (project / "a").read_text().replace("one", "ONE")
    (project / "a").write_text(mine)
    plan = rewind(agent, Choice(Point(1), options=UndoOptions(marks_conflicts=True)))
    assert plan.undone.marked == [b"a"]
    assert plan.undone.conflicts == {}
    assert not plan.is_whole
    head = "<<<<<<< now\nONE\n=======\n1\n>>>>>>> before\n"
    assert (project / "a").read_text() == f"{head}2\n3\n4\n5\n6\n7\neight\n"
    take_back_last(agent.store, project)
    assert (project / "a").read_text() == mine


def test_the_list_names_what_is_to_be_known(agent: AttachedAgent, project: Path) -> None:
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "first")
    agent.prompt()
    agent.run("echo x > a; git -c user.name=x -c user.email=x@y commit --quiet -am second")
    agent.begin("1.2")
    agent.begin("1.3")
    agent.shell("echo x > b")
    agent.end("1.3")
    agent.end("1.2")
    agent.begin("1.4")
    agent.shell("echo x > c")
    agent.quit()
    rows = list(points.rows(agent.store, str(project), agent.steps()))
    marks = {str(row.point): row.marks for row in rows}
    assert marks == {
        "1.4": ["interrupted"],
        "1.3": ["with 1.2"],
        "1.2": ["with 1.3"],
        "1.1": [],
        "1": [],
    }
    first = next(row for row in rows if str(row.point) == "1.1")
    assert first.changed == ["a"]
    assert len(first.repositories) == 3
    assert first.repositories[-1].endswith(" commit: second")
    assert " → " in first.repositories[0]


def test_the_new_path_of_a_move_alone(agent: AttachedAgent, project: Path) -> None:
    """Without it nothing would have the content any more."""
    agent.prompt()
    agent.run("mv b c")
    plan = rewind(agent, Choice(Point(1), options=UndoOptions((b"c",))))
    assert plan.undone.conflicts == {b"c": MOVED}
    assert (project / "c").read_text() == "b\n"
    rewind(agent, Choice(Point(1), options=UndoOptions((b"b", b"c"))))
    assert sorted(path.name for path in project.iterdir()) == ["a", "b"]


def test_a_part_of_a_repository(agent: AttachedAgent, project: Path) -> None:
    make_repository(project)
    agent.prompt()
    agent.run("git config user.name agent")
    for paths in ((b".git/config",), (b"a", b".git/config")):
        with pytest.raises(Refused, match=r"^\.git/config: a repository goes back as a whole"):
            rewind(agent, Choice(Point(1), options=UndoOptions(paths)))
    with pytest.raises(Refused, match=r"give \.git$"):
        rewind_files.plan_last(agent.store, project, agent.steps(), UndoOptions((b".git/config",)))
    rewind(agent, Choice(Point(1), options=UndoOptions((b".git",))))
    assert "agent" not in git(project, "config", "--list")
