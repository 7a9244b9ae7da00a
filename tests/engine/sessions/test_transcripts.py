"""Transcripts of sessions: what they say of the calls is in the turns; the raw lines stay here."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import NotFound
from casfs.sessions import session_steps
from casfs.store import local_trees
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.transcripts import transcript_files
from casfs.trees import tree
from engine import content
from engine.sessions import session_import, transcript_reader
from engine.sessions.boundary import Boundary
from engine.sessions.recorder import SessionRecorder
from tests.support import planted
from tests.support.following import OwnSessionDirectory
from tests.support.sessions import ClaudeEvents, name

SECRET = planted.token().decode()


def asks(id: str, text: str = "I shall.") -> dict[str, Any]:
    parts = [
        {"type": "thinking", "thinking": f"Hm, {SECRET} there."},
        {"type": "text", "text": text},
        {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "ls"}},
    ]
    usage = {"input_tokens": 7, "output_tokens": 5}
    message = {"id": f"m-{id}", "model": "opus", "content": parts, "usage": usage}
    return {"type": "assistant", "message": message, "timestamp": "2026-11-27T20:01:46.500Z"}


def says(text: str) -> dict[str, Any]:
    usage = {"input_tokens": 20, "output_tokens": 10}
    parts = [{"type": "text", "text": text}]
    message = {"id": text, "model": "opus", "content": parts, "usage": usage}
    return {"type": "assistant", "message": message, "timestamp": "2026-11-27T20:01:47.500Z"}


def prompt(text: str) -> dict[str, Any]:
    return {
        "type": "user",
        "cwd": "/project",
        "message": {"content": text},
        "timestamp": "2026-11-27T20:01:45.500Z",
    }


def result(id: str, text: str = "out") -> dict[str, Any]:
    part = {"type": "tool_result", "tool_use_id": id, "content": text}
    return {"type": "user", "message": {"content": [part]}, "timestamp": "2026-11-27T20:01:47Z"}


def raw(store: Store, step: Any) -> bytes:
    local = local_trees.get(store, step["detail"])
    assert local is not None
    entry = tree.resolve(store, local.root, b"transcript.jsonl")
    assert entry is not None
    return store.get(entry.digest.hash)  # type: ignore[union-attr]


def append(path: Path, *values: dict[str, Any]) -> bytes:
    data = "".join(json.dumps(value) + "\n" for value in values).encode()
    with path.open("ab") as file:
        file.write(data)
    return data


def test_turns_have_what_the_model_said(store: Store, tmp_path: Path) -> None:
    transcript = tmp_path / "one.jsonl"
    events = ClaudeEvents(tmp_path)
    recorder = SessionRecorder(store, {})

    def report(payload: dict[str, Any]) -> None:
        event = events.event({**payload, "transcript_path": str(transcript)})
        recorder.record(event, Boundary(), name())

    report(events.prompt("one"))
    report(events.call("c1", command="ls"))
    first = append(transcript, prompt("one"), asks("c1"), result("c1"))
    report(events.result("c1", response="out"))
    first += append(transcript, says("Done."))
    with transcript.open("a") as file:
        file.write('{"half')
    report(events.stop())
    with transcript.open("a") as file:
        file.write('":1}\n')
    second = b'{"half":1}\n' + append(
        transcript,
        {"type": "user", "isCompactSummary": True, "message": {"content": "What was."}},
        prompt("two"),
        says("Yes."),
    )
    report(events.prompt("two"))
    report(events.stop())
    (thread,) = sessions.newest_first(store)
    steps = [node.payload for node in threads.last_steps(store, thread, None)]
    assert [raw(store, step) for step in steps] == [first, second]
    session = store.node(steps[0]["detail"], "react-session").payload
    assert (session["totalTokens"], session["model"]) == (42, "opus")
    call, answer = (store.node(turn, "react-turn").payload for turn in session["turns"])
    assert content.text(store, call["output"]) == "I shall."
    assert content.text(store, call["thoughts"]) == "Hm, ‹secret:gitlab-token:1› there."
    assert call["tokens"] == {"input": 7, "output": 5}
    assert content.text(store, answer["output"]) == "Done."
    assert content.text(store, steps[1]["compact"]) == "What was."
    # What is raw has the secret, and stays here.
    shown = store.shown()
    with pytest.raises(NotFound):
        tree.load(shown, local_trees.get(store, steps[0]["detail"]).root)  # type: ignore[union-attr]


@pytest.mark.parametrize("content_of_file", [None, b"", b"no json\n\xff\n", b"[" * 50_000 + b"\n"])
def test_a_transcript_that_says_nothing(
    store: Store, tmp_path: Path, content_of_file: bytes | None
) -> None:
    transcript = tmp_path / "one.jsonl"
    if content_of_file is not None:
        transcript.write_bytes(content_of_file)
    events = ClaudeEvents(tmp_path)
    recorder = SessionRecorder(store, {})
    for payload in (events.prompt("one"), events.stop()):
        event = events.event({**payload, "transcript_path": str(transcript)})
        recorder.record(event, Boundary(), name())
    (thread,) = sessions.newest_first(store)
    (step,) = threads.last_steps(store, thread, None)
    assert (local_trees.get(store, step.payload["detail"]) is None) == (not content_of_file)


def test_an_import(store: Store, tmp_path: Path) -> None:
    transcript = tmp_path / "3f0e.jsonl"
    lines = append(transcript, {"type": "mode"}, prompt("one"), asks("c1"), result("c1"))
    lines += append(transcript, says("First."))
    later = append(transcript, prompt("two"), says("Second."))
    thread = session_import.import_session(store, {}, "claude", transcript)
    assert thread is not None
    assert thread.pending is None
    about = sessions.about(store, thread)
    assert (about["id"], about["directory"]) == ("3f0e", "/project")
    steps = [node.payload for node in threads.last_steps(store, thread, None)]
    assert [content.text(store, step["content"]) for step in steps] == ["First.", "Second."]
    assert [content.text(store, step["prompt"]["text"]) for step in steps] == ["one", "two"]
    assert [raw(store, step) for step in steps] == [lines, later]
    assert steps[0]["startedAt"] == 1795809705500
    session = store.node(steps[0]["detail"], "react-session").payload
    turn = store.node(session["turns"][0], "react-turn").payload
    call = store.node(turn["toolCalls"][0], "react-tool-call").payload
    assert (call["name"], call["kind"], call["status"]) == ("Bash", "execute", "completed")
    assert session_import.import_session(store, {}, "claude", transcript) is None
    assert len(list(sessions.newest_first(store))) == 1


def test_an_import_of_what_is_none(store: Store, tmp_path: Path) -> None:
    transcript = tmp_path / "x.jsonl"
    with pytest.raises(NotFound):
        session_import.import_session(store, {}, "claude", transcript)
    transcript.write_text("{}\n")
    for agent in transcript_files.PATTERNS:
        with pytest.raises(NotFound, match="does not say in which directory"):
            session_import.import_session(store, {}, agent, transcript)


def test_a_transcript_that_is_a_fifo_or_was_written_anew(store: Store, tmp_path: Path) -> None:
    transcript = tmp_path / "one.jsonl"
    os.mkfifo(transcript)
    assert transcript_reader.read_part(store, "claude", str(transcript), 0) is None
    transcript.unlink()
    data = append(transcript, prompt("one"))
    part = transcript_reader.read_part(store, "claude", str(transcript), 10_000)
    assert part is not None
    assert part.end == len(data)


def test_a_call_without_a_result_has_its_place(disk_store: Store, tmp_path: Path) -> None:
    """An agent may refuse a call after it has reported it: nothing is known to be its."""
    transcript = tmp_path / "one.jsonl"
    project = tmp_path / "project"
    project.mkdir()
    followed = OwnSessionDirectory(disk_store, project, None)
    recorder = SessionRecorder(disk_store, {})
    events = ClaudeEvents(project)

    def report(payload: dict[str, Any]) -> None:
        event = events.event({**payload, "transcript_path": str(transcript)})
        recorder.record(event, followed.boundary(event, lambda: None), name())

    try:
        report(events.prompt("go"))
        report(events.call("c1", command="rm -rf /"))
        time.sleep(0.01)
        report(events.call("c2", command="echo"))
        (project / "a").write_text("changed")
        report(events.result("c2", command="echo"))
        refusal = result("c1", "The tool use was rejected")
        append(transcript, prompt("go"), asks("c1"), refusal, asks("c2"), result("c2"))
        report(events.stop())
    finally:
        followed.close()
    (thread,) = sessions.newest_first(disk_store)
    (step,) = session_steps.load(disk_store, thread)
    assert [call.id for call in step.calls] == ["c2", "c1"]
    made, refused = step.calls
    assert refused.is_interrupted
    assert refused.before is not None
    assert refused.before.is_equal(made.before)
    assert refused.foreign == {"a": "another call"}


@pytest.mark.parametrize("number", [2**53, 2**70, -1, 1e400, True, "7", None])
def test_a_number_of_tokens_that_no_node_holds(store: Store, tmp_path: Path, number: Any) -> None:
    """The session is recorded all the same."""
    path = tmp_path / "one.jsonl"
    usage = {"usage": {"input_tokens": number, "output_tokens": 7}}
    said = says("Done.")
    append(
        path,
        {**prompt("one"), "cwd": "/project"},
        {**said, "message": {**said["message"], **usage}},
    )
    thread = session_import.import_session(store, {}, "claude", path)
    assert thread is not None
    step = threads.step_at(store, thread, 1).payload
    session = store.node(step["detail"], "react-session").payload
    assert session["totalTokens"] == 7 + (number is True)
