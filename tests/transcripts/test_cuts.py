"""Transcripts of codex and gemini, cut; claude's are in test_claude, opencode's in agents_real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import NotFound
from casfs.sessions.session_steps import CallRecord, StepRecord
from casfs.transcripts import codex, gemini
from casfs.transcripts.messages import id_of_call

ID = "019e8f00-0000-7000-8000-000000000001"


def step(index: int, prompt: str, id: str | None = None) -> StepRecord:
    return StepRecord(index, prompt, id, 0, None, ())


def call(id: str, tool: str = "x", arguments: str = "{}") -> CallRecord:
    return CallRecord(2, 1, id, tool, arguments, "completed", 0, None, None)


def written(path: Path, values: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def item(**fields: Any) -> dict[str, Any]:
    return {"type": "response_item", "payload": fields}


def says(role: str, text: str) -> dict[str, Any]:
    return item(type="message", role=role, content=[{"type": "text", "text": text}])


CODEX = [
    {"type": "session_meta", "payload": {"id": ID, "session_id": ID, "cwd": "/project"}},
    {"type": "turn_context", "payload": {"turn_id": "t1"}},
    says("user", "first"),
    item(type="function_call", call_id="c1", name="x", arguments="{}"),
    item(type="function_call_output", call_id="c1", output="1"),
    says("assistant", "done"),
    {"type": "turn_context", "payload": {"turn_id": "t2"}},
    says("user", "second"),
    item(type="function_call", call_id="c2", name="x", arguments="{}"),
]


def test_codex(tmp_path: Path) -> None:
    path = written(tmp_path / f"rollout-2026-11-27T20-01-46-{ID}.jsonl", CODEX)
    for made, end in (
        (codex.cut(path, step(2, "second", "t2"), None), 7),
        (codex.cut(path, step(2, "second"), None), 7),
        (codex.cut(path, step(2, "second"), call("c2")), 8),
    ):
        assert made.transcript.name == f"rollout-2026-11-27T20-01-46-{made.id}.jsonl"
        assert made.command == f"codex resume {made.id}"
        lines = [json.loads(line) for line in made.transcript.read_text().splitlines()]
        meta = {"id": made.id, "session_id": made.id, "cwd": "/project"}
        assert lines == [{"type": "session_meta", "payload": meta}, *CODEX[1:end]]


def test_codex_of_another_form(tmp_path: Path) -> None:
    path = written(tmp_path / f"rollout-{ID}.jsonl", CODEX[1:])
    with pytest.raises(NotFound, match="of another version of codex"):
        codex.cut(path, step(2, "second"), None)
    with pytest.raises(NotFound, match="of another version of codex"):
        codex.cut(written(tmp_path / "rollout.jsonl", CODEX), step(2, "second"), None)
    path = written(tmp_path / f"rollout-{ID}.jsonl", CODEX)
    with pytest.raises(NotFound, match="nothing is left"):
        codex.cut(path, step(1, "first"), None)
    with pytest.raises(NotFound, match=r"call 2\.1 is not in"):
        codex.cut(path, step(1, "first"), call("c9"))


GEMINI = [
    {"sessionId": ID, "projectHash": "h"},
    {"id": "1", "type": "user", "content": [{"text": "first"}]},
    {"id": "2", "type": "gemini", "content": "done"},
    {"id": "3", "type": "user", "content": [{"text": "second"}]},
    {"id": "4", "type": "gemini", "content": "I shall."},
    {
        "id": "4",
        "type": "gemini",
        "content": "I shall.",
        "toolCalls": [{"id": "own", "name": "run", "args": {"command": "ls"}}],
    },
]


def test_gemini(tmp_path: Path) -> None:
    path = written(tmp_path / f"session-2026-11-27T20-01-{ID[:8]}.jsonl", GEMINI)
    by_arguments = call(id_of_call("run", {"command": "ls"}))
    for made, end in (
        (gemini.cut(path, step(2, "second"), None), 3),
        (gemini.cut(path, step(2, "second"), by_arguments), 4),
    ):
        assert made.transcript.name == f"session-2026-11-27T20-01-{made.id[:8]}.jsonl"
        lines = [json.loads(line) for line in made.transcript.read_text().splitlines()]
        assert lines == [{"sessionId": made.id, "projectHash": "h"}, *GEMINI[1:end]]
    again = [{"$set": {"sessionId": ID}}, {"sessionId": ID}]
    path = written(path, [*GEMINI[:3], *again, *GEMINI[3:]])
    made = gemini.cut(path, step(2, "second"), None)
    assert ID not in made.transcript.read_text()
    with pytest.raises(NotFound, match="nothing is left"):
        gemini.cut(path, step(1, "first"), None)
    with pytest.raises(NotFound, match="of another version of gemini"):
        gemini.cut(written(tmp_path / "x", GEMINI[1:]), step(2, "second"), None)


def test_qwen(tmp_path: Path) -> None:
    lines = [
        {"type": "user", "message": {"parts": [{"text": "first"}]}},
        {"type": "assistant", "message": {"parts": [{"text": "done"}]}},
        {"type": "user", "message": {"parts": [{"text": "second"}]}},
        {
            "type": "assistant",
            "message": {"parts": [{"functionCall": {"id": "c2", "name": "run", "args": {}}}]},
        },
    ]
    path = written(tmp_path / f"{ID}.jsonl", lines)
    for before, end in ((None, 2), (call("c2"), 3)):
        made = gemini.cut_qwen(path, step(2, "second"), before)
        assert made.transcript == tmp_path / f"{made.id}.jsonl"
        assert len(made.transcript.read_text().splitlines()) == end
