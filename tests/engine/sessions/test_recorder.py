"""Sessions as threads: a prompt is a step, a tool call a turn with the directory after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.protocols import Head, targets
from casfs.errors import Conflict
from casfs.exchange import portable_heads
from casfs.store import graph
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.threads import prompts, sessions, threads
from casfs.threads.state import state
from casfs.threads.threads import Thread
from casfs.trees.recorded_state import RecordedState
from engine import content
from engine.sessions import session_thread
from engine.sessions.boundary import Boundary
from engine.sessions.recorder import SessionRecorder
from engine.threads import labels, lifecycle, suspension, transitions
from tests.support import planted
from tests.support.helpers import put_tree
from tests.support.sessions import ClaudeEvents, name


class Recording:
    """One session, recorded event by event."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self.events = ClaudeEvents(directory)
        self.recorder = SessionRecorder(store, {})

    def __call__(
        self, payload: dict[str, Any], files: dict[str, bytes] | None = None, **boundary: Any
    ) -> Thread | None:
        if files is not None:
            boundary["state"] = RecordedState(put_tree(self.store, files))
        event = self.events.event(payload)
        return self.recorder.record(event, Boundary(**boundary), name())

    @property
    def thread(self) -> Thread:
        (thread,) = sessions.newest_first(self.store)
        assert head_kinds.record_fault(thread.name, thread.head) is None
        return thread

    def steps(self) -> list[dict[str, Any]]:
        return [dict(node.payload) for node in threads.last_steps(self.store, self.thread, None)]

    def turns(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        hashes = self.store.node(step["detail"], "react-session").payload["turns"]
        return [dict(self.store.node(hash, "react-turn").payload) for hash in hashes]

    def call(self, turn: dict[str, Any]) -> dict[str, Any]:
        (hash,) = turn["toolCalls"]
        return dict(self.store.node(hash, "react-tool-call").payload)

    def text(self, hash: str) -> str:
        return content.text(self.store, hash)


@pytest.fixture
def session(store: Store, tmp_path: Path) -> Recording:
    return Recording(store, tmp_path)


def test_a_prompt_is_a_step_and_a_call_a_turn(session: Recording, tmp_path: Path) -> None:
    events = session.events
    session(events.payload("SessionStart", source="startup"))
    assert list(sessions.newest_first(session.store)) == []
    session(events.prompt("Make a file"), {"a": b"1"})
    assert state(session.thread) == "running"
    assert prompts.of_pending_step(session.store, session.thread) == prompts.StepPrompt(
        "Make a file"
    )
    file = str(tmp_path / "b")
    session(events.call("c1", "Write", file_path=file, content="2"), {"a": b"1"})
    response = {"type": "create"}
    session(events.result("c1", "Write", response, file_path=file), {"a": b"1", "b": b"2"})
    session(events.call("c2", command="false"), {"a": b"1", "b": b"2"})
    session(events.failure("c2", "Exit code 1"), {"a": b"1", "b": b"2"})
    session(events.stop("I made it."), {"a": b"1", "b": b"2"})
    assert state(session.thread) == "open"
    (step,) = session.steps()
    assert session.text(step["content"]) == "I made it."
    assert step["prompt"]["id"] == "p-11"
    node = threads.step_at(session.store, session.thread, 1)
    assert prompts.of_step(session.store, session.thread, node).text == "Make a file"
    assert b"+2" in session.store.get(step["changes"])
    first, second = session.turns(step)
    assert first["before"] == put_tree(session.store, {"a": b"1"})
    assert first["workspace"] == step["workspace"]
    call = session.call(first)
    assert (call["name"], call["kind"], call["status"]) == ("Write", "edit", "completed")
    assert call["locations"] == [{"path": "b", "line": None}]
    assert json.loads(session.text(call["arguments"])) == {"file_path": file}
    call = session.call(second)
    assert (call["status"], session.text(call["result"])) == ("failed", "Exit code 1")
    about = sessions.about(session.store, session.thread)
    assert (about["agent"], about["id"]) == ("claude", events.session)
    assert about["directory"] == str(tmp_path)


def test_a_session_is_open_as_long_as_its_agent_lives(session: Recording) -> None:
    events = session.events
    states = []
    for payload in (
        events.prompt("one"),
        events.stop(),
        events.payload("SessionEnd", reason="other"),
        events.payload("SessionStart", source="resume"),
        events.prompt("two"),
        events.payload("SessionEnd", reason="other"),
    ):
        session(payload)
        states.append(state(session.thread))
    assert states == ["running", "open", "closed", "open", "running", "closed"]


def test_a_session_whose_agent_is_gone_was_active_when_it_was(session: Recording) -> None:
    events = session.events
    session(events.prompt("one"))
    session(events.stop())
    last = session.thread
    session_thread.close(session.store, last)
    closed = session.thread
    assert (state(closed), closed.record["updatedAt"]) == ("closed", last.record["updatedAt"])
    with pytest.raises(Conflict):
        session_thread.close(session.store, last)
    session(events.payload("SessionStart", source="resume"))
    assert state(session.thread) == "open"


def test_a_session_of_another_store_has_no_agent_here(session: Recording) -> None:
    session(session.events.prompt("one"))
    thread = session.thread
    arrived = portable_heads.without_processes(thread.name, thread.head, ())
    assert threads.of_head(thread.name, arrived).fault is None
    assert state(threads.of_head(thread.name, arrived)) == "closed"
    lacking = {key: value for key, value in thread.record.items() if key != "session"}
    assert state(threads.of_head(thread.name, Head(thread.hash, lacking))) == "closed"


def test_what_no_look_has_seen_of_private_files_is_redacted(
    session: Recording, tmp_path: Path
) -> None:
    """As where `.casfsignore` names it, or the daemon was started within a prompt."""
    (tmp_path / ".env").write_text("A_SECRET=correct-horse\n")
    session(session.events.prompt("it is correct-horse"))
    turn = session.store.node(session.thread.record["intent"]["prompt"], "react-turn").payload
    assert "correct-horse" not in session.text(turn["input"])


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Write", {"file_path": "/p/.env", "content": "API_SECRET=correct-horse\n"}),
        ("Edit", {"file_path": "a/credentials.json", "new_string": '"token": "correct-horse"'}),
        ("Bash", {"command": "cat > .env <<'END'\nA_KEY=correct-horse\nEND"}),
        ("Bash", {"command": "echo 'DB_PASSWORD=correct-horse' >>./api/.env.local"}),
    ],
)
def test_what_a_call_is_about_to_write_into_a_private_file_is_redacted(
    session: Recording, tool: str, arguments: dict[str, str]
) -> None:
    """From its beginning on, whose node has its arguments, too."""
    session(session.events.prompt("go"))
    session(session.events.call("c1", tool, **arguments))
    session(session.events.result("c1", tool, **arguments))
    session(session.events.stop())
    reached = graph.walk(session.store, targets(session.thread.head))
    assert [hash for hash in reached if b"correct-horse" in session.store.get(hash)] == []


def test_the_next_prompts_follow(session: Recording) -> None:
    events = session.events
    for number in range(3):
        session(events.prompt(f"prompt {number}"), {"n": b"%d" % number})
        session(events.stop(f"answer {number}"), {"n": b"%d" % number})
    assert [step["index"] for step in session.steps()] == [1, 2, 3]
    # What a person changed between two prompts is none of the agent's.
    assert [step["changes"] for step in session.steps()] == [None] * 3


def test_the_next_prompt_ends_the_archive(session: Recording) -> None:
    session(session.events.prompt("Do it."), {})
    session(session.events.stop(), {})
    labels.set_labels(session.store, session.thread, name="kept", archived=True)
    session(session.events.payload("SessionEnd"), {})
    assert session.thread.is_archived
    session(session.events.prompt("And more."), {})
    assert (session.thread.is_archived, session.thread.record.get("name")) == (False, "kept")


def test_a_prompt_without_an_answer(session: Recording) -> None:
    events = session.events
    session(events.prompt("one"))
    session(events.call("c1", command="sleep 100"))
    session(events.prompt("two"))
    session(events.payload("SessionEnd", reason="other"))
    first, second = session.steps()
    assert session.text(first["content"]) == "(it ended without an answer)"
    (turn,) = session.turns(first)
    assert session.call(turn)["status"] == "in_progress"
    assert session.text(second["prompt"]["text"]) == "two"
    assert session.thread.pending is None


def test_a_session_that_is_resumed_by_another_process(session: Recording) -> None:
    session(session.events.prompt("one"))
    session(session.events.stop())
    session.events.pid = 1
    session(session.events.payload("SessionStart", source="resume"))
    session(session.events.prompt("two"))
    session(session.events.stop())
    assert len(session.steps()) == 2
    assert session.thread.record["session"]["pid"] == 1


def test_a_tool_after_the_answer(session: Recording) -> None:
    """A subagent in the background goes on after its parent has answered."""
    events = session.events
    session(events.prompt("one"))
    session(events.stop())
    session(events.call("c1", command="make"))
    session(events.result("c1", command="make"))
    session(events.prompt("<task-notification>"))
    session(events.stop())
    assert [len(session.turns(step)) for step in session.steps()] == [0, 1, 0]


def test_a_result_without_its_call(session: Recording) -> None:
    """The agent was attached, or the daemon's spool was lost, in the middle of a call."""
    session(session.events.result("c1", command="make"), {"a": b"1"}, is_unseen=True)
    session(session.events.stop())
    (step,) = session.steps()
    (turn,) = session.turns(step)
    assert "before" not in turn
    assert session.call(turn)["isUnseen"] is True


def test_an_event_that_is_recorded_already(session: Recording) -> None:
    file = name()
    event = session.events.event(session.events.prompt("one"))
    for _ in range(2):
        session.recorder.record(event, Boundary(), file)
    assert session.steps() == []
    session(session.events.stop())
    assert len(session.steps()) == 1


def test_many_calls(session: Recording) -> None:
    events = session.events
    session(events.prompt("one"))
    for number in range(20):
        session(events.call(f"c{number}", command="x"))
    for number in range(20):
        session(events.result(f"c{number}", response=str(number)))
    session(events.stop())
    (step,) = session.steps()
    calls = [session.call(turn) for turn in session.turns(step)]
    results = [session.text(call["result"]) for call in calls if call["status"] == "completed"]
    assert results == [str(number) for number in range(20)]


def test_what_changed_while_a_call_ran_and_is_not_its(session: Recording) -> None:
    events = session.events
    session(events.prompt("one"), {"a": b"1"})
    session(events.call("c1", command="x"), {"a": b"1"})
    session(events.result("c1"), {"a": b"2", "b": b""}, foreign={"b": "a person"}, is_late=True)
    session(events.stop(), {"a": b"2", "b": b""})
    (turn,) = session.turns(session.steps()[0])
    assert json.loads(session.text(session.call(turn)["foreign"])) == {"b": "a person"}
    assert turn["isLate"] is True


def test_secrets_are_marked(session: Recording) -> None:
    secret = planted.token().decode()
    events = session.events
    session(events.prompt(f"use {secret}"), {".env": b"TOKEN=hunter2hunter2"})
    session(events.call("c1", command=f"echo {secret}"))
    session(events.result("c1", response={"stdout": secret, "stderr": "", "x": [secret]}))
    session(events.stop(f"it is {secret}"))
    shown = [session.store.get(hash) for hash in all_blobs(session)]
    assert [data.decode() for data in shown if secret.encode() in data] == []


def all_blobs(session: Recording) -> list[str]:
    return list(graph.walk(session.store, [session.thread.hash]))


def test_nobody_runs_it(session: Recording) -> None:
    session(session.events.prompt("one"))
    for act in (
        lambda: suspension.resume(session.store, session.thread),
        lambda: transitions.cancel(session.store, session.thread),
        lambda: lifecycle.remove(session.store, session.thread),
    ):
        with pytest.raises(Conflict, match="session of claude"):
            act()
    session(session.events.stop())
    old = session.thread
    lifecycle.remove(session.store, old)
    assert list(sessions.newest_first(session.store)) == []
    session(session.events.prompt("again"))
    assert session.thread.id != old.id


def test_why_there_is_no_tree(session: Recording) -> None:
    session(session.events.prompt("one"), fault="it is too large")
    assert session.thread.record["session"]["fault"] == "it is too large"
    session(session.events.stop())
    session(session.events.prompt("two"), {"a": b"1"})
    assert "fault" not in session.thread.record["session"]
