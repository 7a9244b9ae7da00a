"""Transcripts of claude, cut: up to before a prompt or a call, under a new session id."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import NotFound
from casfs.sessions.session_steps import CallRecord, StepRecord
from casfs.transcripts import claude


def user(text: str, prompt: str) -> dict[str, Any]:
    return {"type": "user", "promptId": prompt, "message": {"role": "user", "content": text}}


def asks(*ids: str, message: str = "m") -> list[dict[str, Any]]:
    lines = []
    for id in ids:
        part = {"type": "tool_use", "id": id, "name": "Bash", "input": {}}
        lines.append({"type": "assistant", "message": {"id": message, "content": [part]}})
    return lines


def result(id: str, prompt: str) -> dict[str, Any]:
    part = {"type": "tool_result", "tool_use_id": id, "content": "ok"}
    message = {"role": "user", "content": [part]}
    return {"type": "user", "promptId": prompt, "message": message}


def said(text: str) -> dict[str, Any]:
    message = {"id": text, "content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "message": message}


LINES = [
    {"type": "mode"},
    user("first", "p1"),
    *asks("c1"),
    result("c1", "p1"),
    said("done"),
    {"type": "cost-state"},
    user("second", "p2"),
    *asks("c2", "c3", message="two"),
    result("c3", "p2"),
    result("c2", "p2"),
    *asks("c4"),
    result("c4", "p2"),
    said("all done"),
]
FIRST = StepRecord(1, "first", "p1", 0, None, ())
SECOND = StepRecord(2, "second", "p2", 0, None, ())


def call(id: str) -> CallRecord:
    return CallRecord(2, 1, id, "Bash", "{}", "completed", 0, None, None)


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "old.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def cut(transcript: Path, step: StepRecord, before: CallRecord | None = None) -> list[Any]:
    made = claude.cut(transcript, step, before)
    assert uuid.UUID(made.id).version == 4
    assert made.transcript == transcript.with_name(f"{made.id}.jsonl")
    assert made.command == f"claude --resume {made.id}"
    assert made.transcript.stat().st_mode & 0o777 == 0o600
    return [json.loads(line) for line in made.transcript.read_text().splitlines()]


def test_before_a_prompt(transcript: Path) -> None:
    assert cut(transcript, SECOND) == LINES[:6]
    assert [json.loads(line) for line in transcript.read_text().splitlines()] == LINES


def test_a_prompt_is_found_by_its_text(transcript: Path) -> None:
    assert cut(transcript, StepRecord(2, "second", None, 0, None, ())) == LINES[:6]


def test_before_a_call(transcript: Path) -> None:
    assert cut(transcript, SECOND, call("c4")) == LINES[:11]


def test_before_the_second_of_two_calls_at_once(transcript: Path) -> None:
    """The result of the first, which stands after the second, is kept."""
    assert cut(transcript, SECOND, call("c3")) == [*LINES[:8], LINES[10]]


def test_nothing_is_left(transcript: Path) -> None:
    with pytest.raises(NotFound, match="begin a new session"):
        claude.cut(transcript, FIRST, None)


def test_what_is_not_there(transcript: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="prompt 3 is not in"):
        claude.cut(transcript, StepRecord(3, "third", "p3", 0, None, ()), None)
    with pytest.raises(NotFound, match=r"call 2\.1 is not in"):
        claude.cut(transcript, SECOND, call("c9"))
    with pytest.raises(NotFound, match="has deleted its transcript"):
        claude.cut(tmp_path / "gone.jsonl", SECOND, None)


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"message": {"content": [1, {}]}}', "\ufffd"])
def test_lines_of_another_form(transcript: Path, line: str) -> None:
    text = transcript.read_text()
    transcript.write_text(f"{line}\n{text}{line}")
    made = claude.cut(transcript, SECOND, None)
    assert made.transcript.read_text() == f"{line}\n" + "".join(
        json.dumps(kept) + "\n" for kept in LINES[:6]
    )
