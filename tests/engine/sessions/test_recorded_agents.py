"""What is made of what real agents have said (`tests.support.recorded_agents`), without them: a
session of two prompts, with calls that write, fail and delegate."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from casfs.attach import spool
from casfs.rewind import conversations
from casfs.sessions import session_steps
from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.threads.threads import Thread
from casfs.transcripts import json_lines, transcript_files
from casfs.trees import tree
from engine import content
from engine.sessions import events, session_import
from engine.sessions.events import Kind, SessionEvent
from engine.sessions.hook_events import READERS
from engine.sessions.recorder import SessionRecorder
from engine.sessions.transcript_reader import READERS as READERS_OF
from tests.support import recorded_agents
from tests.support.following import OwnSessionDirectory
from tests.support.sessions import name, turns_with_call

WITH_TRANSCRIPT = ("claude", "codex", "gemini")
WITH_SUBAGENT = ("claude", "codex")


@dataclass(frozen=True)
class Played:
    store: Store
    agent: str
    project: Path
    home: Path

    @property
    def thread(self) -> Thread:
        (thread,) = sessions.newest_first(self.store)
        return thread

    def step(self, index: int) -> Any:
        return threads.step_at(self.store, self.thread, index).payload

    def calls(self, index: int) -> list[dict[str, Any]]:
        """The calls of a step with what their turns say."""
        turns = turns_with_call(self.store, self.thread, index)
        return [
            {**turn, **self.store.node(turn["toolCalls"][0], "react-tool-call").payload}
            for turn in turns
        ]


@pytest.fixture(params=recorded_agents.agents())
def played(request: pytest.FixtureRequest, disk_store: Store, tmp_path: Path) -> Played:
    """A session that is recorded, its files written as its calls say."""
    project = tmp_path / "project"
    home = tmp_path / "home"
    project.mkdir()
    (project / "README").write_text("A project.\n")
    played = Played(disk_store, request.param, project, home)
    directory = OwnSessionDirectory(disk_store, project, None)
    recorder = SessionRecorder(disk_store, {})
    try:
        for ask in recorded_agents.load(played.agent, project, home):
            _put(home, ask.transcripts)
            for data in ask.events:
                event = events.read(spool.parse(data), READERS)
                if event is not None:
                    event = replace(event, pid=os.getpid())  # what writes here is its own
                    # What a call does is done between its event and that of its result.
                    if event.kind is Kind.RESULT:
                        _act(event, project)
                    recorder.record(event, directory.boundary(event, lambda: None), name())
    finally:
        directory.close()
    return played


def _put(home: Path, transcripts: dict[str, bytes]) -> None:
    for path, data in transcripts.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_bytes(data)


def _act(event: SessionEvent, project: Path) -> None:
    assert event.call is not None
    arguments = event.call.arguments
    if "command" in arguments:
        subprocess.run(["sh", "-c", arguments["command"]], cwd=project)
    elif "content" in arguments:
        (project / "a.txt").write_text(arguments["content"])


def test_the_steps(played: Played) -> None:
    assert played.thread.pending is None
    first, second = (played.step(index) for index in (1, 2))
    prompts = [content.text(played.store, step["prompt"]["text"]) for step in (first, second)]
    assert [prompt.strip('"').split("\n")[0] for prompt in prompts] == ["Make two files", "Go on"]
    answers = [content.text(played.store, step["content"]) for step in (first, second)]
    assert [answer.split()[-1] for answer in answers] == ["done.", "Gone."]
    for step in (first, second) if played.agent in WITH_TRANSCRIPT else ():
        session = played.store.node(step["detail"], "react-session").payload
        assert session["totalTokens"] > 0
        assert session["model"]


def test_the_calls(played: Played) -> None:
    calls = played.calls(1)
    assert len(calls) == 3
    commands = [content.text(played.store, call["arguments"]) for call in calls]
    assert ["hello" in commands[0], "sed -i" in commands[1], "exit 3" in commands[2]] == [True] * 3
    trees = [set(tree.load(played.store, call["workspace"])) for call in calls]
    assert trees == [{b"README", b"a.txt"}, *[{b"README", b"a.txt", b"b.txt"}] * 2]
    assert [call.get("foreign") for call in calls] == [None] * 3
    # Of the others no hook says that a command has failed.
    status = "failed" if played.agent == "claude" else "completed"
    assert [call["status"] for call in calls] == ["completed", "completed", status]
    if played.agent in WITH_TRANSCRIPT:
        said = [content.text(played.store, call["output"]) for call in calls]
        assert all("I shall use a tool." in text for text in said)


def test_a_subagent(played: Played) -> None:
    children = list(threads.with_field(played.store, "parent", [played.thread.id]))
    if played.agent not in WITH_SUBAGENT:
        assert children == []
        return
    (child,) = children
    (step,) = threads.last_steps(played.store, child, None)
    assert content.text(played.store, step.payload["content"]) == "The part is done."
    assert "Do a part" in content.text(played.store, step.payload["prompt"]["text"])
    assert played.step(2)["childThreads"] == [child.hash]
    (part,) = (call for call in played.calls(2) if _command(played, call) == "echo part >> b.txt")
    assert part["status"] == "completed"


def _command(played: Played, call: dict[str, Any]) -> str | None:
    arguments: dict[str, str] = json.loads(content.text(played.store, call["arguments"]))
    return arguments.get("command")


@pytest.mark.parametrize("point", ["2", "1.2", "1.3"])
@pytest.mark.parametrize("played", WITH_TRANSCRIPT, indirect=True)
def test_a_conversation_that_is_cut(played: Played, point: str) -> None:
    """What is kept ends before that prompt, or call, and is a session of another id."""
    about = sessions.about(played.store, played.thread)
    steps = session_steps.load(played.store, played.thread)
    cut = conversations.cut(played.store, played.thread, steps, Point.parse(point))
    assert cut.transcript is not None
    assert cut.id != about["id"]
    lines = json_lines.read(cut.transcript)
    messages = READERS_OF[played.agent](lines)
    calls = [call for message in messages for call in getattr(message, "calls", ())]
    assert len(calls) == {"2": 3, "1.2": 1, "1.3": 2}[point]
    prompts = list(session_import.PROMPTS[played.agent](lines))
    assert len(prompts) == 1


@pytest.mark.parametrize("played", WITH_TRANSCRIPT, indirect=True)
def test_an_import_is_the_same_session(played: Played, store: Store) -> None:
    (path,) = transcript_files.find(played.agent, played.home / f".{played.agent}")
    imported = session_import.import_session(store, {}, played.agent, path)
    assert imported is not None
    assert (
        sessions.about(store, imported)["id"] == sessions.about(played.store, played.thread)["id"]
    )
    assert sessions.about(store, imported)["directory"] == str(played.project)
    prompts = [
        content.text(store, step.payload["prompt"]["text"]).split("\n")[0].strip('"')
        for step in threads.last_steps(store, imported, None)
    ]
    assert prompts == ["Make two files", "Go on"]
