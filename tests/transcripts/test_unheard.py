"""An attached agent whose transcript grows while no hook speaks is named by `status`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casfs.attach import attachments, spool
from casfs.attach.agents import AGENTS
from casfs.store.store import Store
from casfs.system.clock import now_ms
from casfs.transcripts import unheard
from engine.sessions.boundary import Boundary
from engine.sessions.recorder import SessionRecorder
from tests.support import recorded_agents
from tests.support.engine import Cli
from tests.support.sessions import ClaudeEvents, name

LATER_S = 120


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def attach(store: Store, agent: str, project: Path | None) -> None:
    change = attachments.plan(store.root, AGENTS[agent], project, {})
    attachments.attach(store.root, change, {})


def write_transcripts(agent: str, project: Path, later_s: int = LATER_S) -> Path:
    """Returns the one of the session itself, written so long from now."""
    transcripts = recorded_agents.load(agent, project, Path.home())[-1].transcripts
    for path, data in transcripts.items():
        file = Path.home() / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        moment = now_ms() / 1000 + later_s
        os.utime(file, (moment, moment))
    return Path.home() / next(iter(transcripts))


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini"])
def test_a_session_that_began_before(disk_store: Store, project: Path, agent: str) -> None:
    write_transcripts(agent, project)
    assert list(unheard.warnings(disk_store, {})) == [], "nothing is attached"
    attach(disk_store, agent, None)
    (said,) = unheard.warnings(disk_store, {})
    assert f"{agent} works in {project}, and its hooks say nothing" in said
    assert ("trusted" in said) is (agent == "codex")


def test_one_that_is_heard(disk_store: Store, project: Path) -> None:
    attach(disk_store, "claude", project)
    session = ClaudeEvents(project, session=write_transcripts("claude", project, 5).stem)
    recorder = SessionRecorder(disk_store, {})
    recorder.record(session.event(session.prompt("Do it")), Boundary(), name())
    assert list(unheard.warnings(disk_store, {})) == []
    write_transcripts("claude", project)
    assert len(list(unheard.warnings(disk_store, {}))) == 1, "it is heard no more"
    (disk_store.root / spool.SPOOL / name()).write_bytes(b"x")
    assert list(unheard.warnings(disk_store, {})) == [], "what waits is heard"


def test_where_it_is_not_attached(disk_store: Store, project: Path, tmp_path: Path) -> None:
    attach(disk_store, "claude", project)
    (tmp_path / "other").mkdir()
    write_transcripts("claude", tmp_path / "other")
    write_transcripts("codex", project)
    assert list(unheard.warnings(disk_store, {})) == []
    write_transcripts("claude", project, -LATER_S)
    assert list(unheard.warnings(disk_store, {})) == [], "it ended before"
    write_transcripts("claude", project)
    attachments.set_paused(disk_store.root, str(project), is_paused=True)
    assert list(unheard.warnings(disk_store, {})) == []


def test_status_says_it(cli: Cli, disk_store: Store, project: Path) -> None:
    attach(disk_store, "claude", project)
    write_transcripts("claude", project)
    assert "its hooks say nothing" in cli("status").err
    assert "its hooks say nothing" in cli("attach", "--list").err
    (said,) = cli("status", "--json").json["agents"]["unheard"]
    assert str(project) in said
