"""What `.casfsignore` leaves out when a call writes that file."""

from __future__ import annotations

from pathlib import Path

from casfs.rewind.undo_calls import IGNORED
from tests.rewind.test_rewind_files import rewind
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.restores import take_back_last


def test_what_a_rule_of_the_call_itself_covers_comes_back(
    agent: AttachedAgent, project: Path
) -> None:
    (project / "d/e").mkdir(parents=True)
    (project / "d/e/f").write_text("f")
    (project / "stays").write_text("s")
    before = contents(project)
    agent.prompt()
    agent.run("printf 'd/\nstays\n' > .casfsignore; rm -r d; echo x >> stays")
    plan = rewind(agent, "1")
    assert plan.undone.kept == {b"stays": IGNORED}
    (project / "stays").write_text("s")
    assert contents(project) == before


def test_where_everything_is_left_out(agent: AttachedAgent, project: Path) -> None:
    before = contents(project)
    agent.prompt()
    agent.run("echo x >> b")
    agent.run("echo '*' > .casfsignore; rm a")
    for is_exact in (False, True):
        plan = rewind(agent, "1", is_exact=is_exact)
        assert (project / "a").exists(), "it is not there, so nothing can be lost"
        assert not (project / ".casfsignore").exists()
        take_back_last(agent.store, project)
    rewind(agent, "1")
    plan = rewind(agent, "1")
    assert (plan.undone.kept, plan.undone.conflicts) == ({}, {})
    assert contents(project) == before


def test_what_is_left_out_is_named_by_its_top(agent: AttachedAgent, project: Path) -> None:
    for number in range(9):
        (project / f"d/{number}").parent.mkdir(exist_ok=True)
        (project / f"d/{number}").write_text("x")
    agent.prompt()
    agent.run("echo d > .casfsignore")
    assert rewind(agent, "1").undone.kept == {b"d": IGNORED}
    assert rewind(agent, "1").undone.kept == {}
