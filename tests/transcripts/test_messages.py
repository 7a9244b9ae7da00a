"""What the transcripts of agents say, in the forms that were seen, and in others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.transcripts import claude, codex, gemini, json_lines
from casfs.transcripts.json_lines import Lines
from casfs.transcripts.messages import (
    Message,
    ModelMessage,
    PromptMessage,
    RequestedCall,
    ResultMessage,
    Summary,
    id_of_call,
)

Read = Callable[[Lines], Iterable[Message]]
READERS: dict[str, Read] = {
    "claude": claude.messages,
    "codex": codex.messages,
    "gemini": gemini.messages,
}
TIME = "2026-11-27T20:01:46.500Z"
TIME_MS = 1795809706500


def messages(read: Read, *values: dict[str, Any]) -> list[Message]:
    text = "".join(json.dumps({"timestamp": TIME, **value}) + "\n" for value in values)
    return list(read(json_lines.parsed(text.encode())))


def part(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


def of_claude(*parts: dict[str, Any], id: str = "m1", **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5}
    message = {"id": id, "model": "opus", "content": [*parts], "usage": usage}
    return {"type": "assistant", "message": message, **more}


def test_claude() -> None:
    tool = part("tool_use", id="c1", name="Bash", input={"command": "ls"})
    result = part("tool_result", tool_use_id="c1", content="out", is_error=True)
    found = messages(
        claude.messages,
        {"type": "mode"},
        {"type": "user", "promptId": "p", "message": {"content": "Do it"}},
        {"type": "user", "isMeta": True, "message": {"content": "not a prompt"}},
        of_claude(part("thinking", thinking="Hm.")),
        of_claude(part("text", text="I shall.")),
        of_claude(tool),
        {"type": "user", "message": {"content": [result]}},
        of_claude(part("text", text="subagent"), isSidechain=True),
        of_claude(part("text", text="Done."), id="m2"),
        {"type": "user", "isCompactSummary": True, "message": {"content": "What was."}},
    )
    call = RequestedCall("c1", "Bash", {"command": "ls"})
    assert found == [
        PromptMessage("Do it", "p", TIME_MS),
        ModelMessage("I shall.", "Hm.", (call,), "opus", 7, 5, TIME_MS),
        ResultMessage("c1", "out", True, TIME_MS),
        ModelMessage("Done.", "", (), "opus", 7, 5, TIME_MS),
        Summary("What was."),
    ]


def item(**fields: Any) -> dict[str, Any]:
    return {"type": "response_item", "payload": fields}


def test_codex() -> None:
    usage = {"input_tokens": 7, "output_tokens": 5}
    found = messages(
        codex.messages,
        {"type": "session_meta", "payload": {"id": "s"}},
        item(type="message", role="user", content=[part("input_text", text="<environment>")]),
        {"type": "turn_context", "payload": {"turn_id": "t", "model": "gpt"}},
        item(type="message", role="user", content=[part("input_text", text="Do it")]),
        item(type="reasoning", summary=[part("summary_text", text="Hm.")]),
        item(type="message", role="assistant", content=[part("output_text", text="I shall.")]),
        item(type="function_call", call_id="c1", name="exec_command", arguments='{"cmd": "ls"}'),
        {"type": "token_usage_record", "payload": {"usage": usage}},
        item(type="function_call_output", call_id="c1", output="out"),
        item(type="message", role="assistant", content=[part("output_text", text="Done.")]),
        {"type": "compacted", "payload": {"message": "What was."}},
    )
    call = RequestedCall("c1", "exec_command", {"cmd": "ls"})
    assert found == [
        PromptMessage("Do it", "t", TIME_MS),
        ModelMessage("I shall.", "Hm.", (call,), "gpt", 7, 5, TIME_MS),
        ResultMessage("c1", "out", False, TIME_MS),
        Summary("What was."),
        ModelMessage("Done.", "", (), "gpt", 0, 0, TIME_MS),
    ]


def test_gemini() -> None:
    call = {"id": "c1", "name": "run_shell_command", "args": {"command": "ls"}}
    found = messages(
        gemini.messages,
        {"sessionId": "s", "projectHash": "h"},
        {"id": "1", "type": "user", "content": [{"text": "Do it"}]},
        {"id": "2", "type": "gemini", "content": "I shall.", "model": "pro"},
        {
            "id": "2",
            "type": "gemini",
            "content": "I shall.",
            "model": "pro",
            "thoughts": [{"subject": "s", "description": "Hm."}],
            "tokens": {"input": 7, "output": 5},
            "toolCalls": [{**call, "result": ["out"]}],
        },
        {"$set": {"x": 1}},
        {"id": "3", "type": "gemini", "content": [{"text": "Done."}]},
    )
    id = id_of_call("run_shell_command", {"command": "ls"})
    requested = RequestedCall(id, "run_shell_command", {"command": "ls"})
    assert found == [
        PromptMessage("Do it", None, TIME_MS),
        ModelMessage("I shall.", "Hm.", (requested,), "pro", 7, 5, TIME_MS),
        ResultMessage(id, '[\n "out"\n]', False, TIME_MS),
        ModelMessage("Done.", "", (), None, 0, 0, TIME_MS),
    ]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "message", "content", "payload", "id", "usage", "toolCalls", "result"]
            ),
            inner
            | st.sampled_from(
                ["user", "assistant", "gemini", "response_item", "message", "tool_use", "text"]
            ),
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("agent", READERS)
@given(st.lists(ANY, max_size=6))
def test_other_forms_are_read_as_far_as_they_go(agent: str, values: list[Any]) -> None:
    text = "".join(json.dumps(value) + "\n" for value in values) + '{"type": "user", "mess'
    list(READERS[agent](json_lines.parsed(text.encode())))


def test_lines_end_at_line_feeds_alone() -> None:
    text = '{"a": "\u2028"}\n\n{"b": 1}'.encode()
    lines = json_lines.parsed(text)
    assert b"".join(lines.raw) == text
    assert lines.values == [{"a": "\u2028"}, {}, {"b": 1}]
