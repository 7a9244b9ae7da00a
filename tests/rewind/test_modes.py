"""Modes of files and directories are taken back as contents are, and a person's stay."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.rewind.test_rewind_files import changed, rewind
from tests.support.attached_agent import AttachedAgent
from tests.support.restores import do_again, take_back_last


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def project(project: Path) -> Path:
    (project / "d/e").mkdir(parents=True)
    (project / "d/e/f").write_text("f")
    (project / "empty").mkdir()
    return project


def test_of_all_that_a_call_has_closed(agent: AttachedAgent, project: Path) -> None:
    paths = [project, *sorted(project.rglob("*"))]
    before = [mode(path) for path in paths]
    agent.prompt()
    agent.run("chmod -R go-rwx .")
    closed = [mode(path) for path in paths]
    assert closed != before
    rewind(agent, "1")
    assert [mode(path) for path in paths] == before
    take_back_last(agent.store, project)
    assert [mode(path) for path in paths] == closed
    do_again(agent.store, project)
    assert [mode(path) for path in paths] == before


def test_beside_contents(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("chmod 700 d d/e empty; echo x >> d/e/f; echo new > empty/new; chmod 600 a; rm b")
    rewind(agent, "1")
    assert {path.name for path in project.rglob("*")} == {"a", "b", "d", "e", "f", "empty"}
    assert [mode(project / name) for name in ("d", "d/e", "empty", "a")] == [0o755] * 3 + [0o644]
    take_back_last(agent.store, project)
    assert (project / "empty/new").read_text() == "new\n"
    assert [mode(project / name) for name in ("d", "d/e", "empty", "a")] == [0o700] * 3 + [0o600]


def test_of_a_directory_alone_that_comes_back(agent: AttachedAgent, project: Path) -> None:
    (project / "d").chmod(0o700)
    agent.prompt()
    agent.run("rm -r d")
    rewind(agent, "1")
    assert mode(project / "d") == 0o700
    assert mode(project / "d/e") == 0o755


def test_what_a_person_has_closed_stays_closed(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("sed -i s/1/one/ a; echo agent > b; chmod 700 d")
    (project / "a").chmod(0o600)
    (project / "b").chmod(0o600)
    (project / "d").chmod(0o500)
    plan = rewind(agent, "1")
    assert (project / "a").read_text().startswith("1\n")
    assert (project / "b").read_text() == "b\n"
    assert [mode(project / name) for name in ("a", "b", "d")] == [0o600, 0o600, 0o500]
    assert plan.undone.conflicts == {b"d": "its mode has changed since"}


def test_what_a_person_has_written_since_stays(agent: AttachedAgent, project: Path) -> None:
    (project / "b").write_bytes(b"\0\1")
    agent.prompt()
    agent.run("chmod 600 b; chmod +x a")
    (project / "b").write_bytes(b"\0\2")
    plan = rewind(agent, "1")
    assert changed(plan) == [b"a", b"b"]
    assert (project / "b").read_bytes() == b"\0\2"
    assert [mode(project / name) for name in ("a", "b")] == [0o644, 0o644]


def test_what_is_put_back_by_hand_is_no_change(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    agent.run("chmod 700 d")
    (project / "d").chmod(0o755)
    assert changed(rewind(agent, "1")) == []


def test_an_exact_rewind_has_them_too(agent: AttachedAgent, project: Path) -> None:
    agent.prompt()
    (project / "d").chmod(0o700)
    agent.run("chmod 600 a")
    rewind(agent, "1", is_exact=True)
    assert mode(project / "d") == 0o755
    assert mode(project / "a") == 0o644
    take_back_last(agent.store, project)
    assert mode(project / "d") == 0o700
    assert mode(project / "a") == 0o600


def test_a_directory_that_is_empty_again_stays_as_a_person_has_it(
    agent: AttachedAgent, project: Path
) -> None:
    (project / "d/e/f").unlink()
    agent.prompt()
    agent.run("echo x > d/e/new; echo y > empty/new")
    (project / "d").chmod(0o700)
    (project / "empty").chmod(0o500)
    rewind(agent, "1")
    assert [mode(project / name) for name in ("d", "d/e", "empty")] == [0o700, 0o755, 0o500]


def test_a_directory_that_is_empty_again_and_its_mode(agent: AttachedAgent, project: Path) -> None:
    (project / "d/e/f").unlink()
    agent.prompt()
    agent.run("echo x > d/e/new; chmod 700 d d/e")
    rewind(agent, "1")
    assert [mode(project / name) for name in ("d", "d/e")] == [0o755, 0o755]
    take_back_last(agent.store, project)
    assert [mode(project / name) for name in ("d", "d/e")] == [0o700, 0o700]
    assert (project / "d/e/new").exists()
