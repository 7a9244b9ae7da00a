"""What the hooks of claude report, in the forms that were seen, and in forms that were not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs.attach import spool
from casfs.errors import Invalid
from engine.sessions import events
from engine.sessions.events import Kind
from tests.support.sessions import READERS, ClaudeEvents

CLAUDE = ClaudeEvents(Path("/project"))


def read(payload: dict[str, Any], agent: str = "claude") -> Any:
    return events.read(spool.Event(agent, 5, 7, payload), READERS)


def test_a_prompt() -> None:
    event = read({**CLAUDE.prompt("Do it"), "prompt_id": "0b-1"})
    assert (event.kind, event.text, event.id) == (Kind.PROMPT, "Do it", "0b-1")
    assert (event.directory, event.reported_ms, event.pid) == ("/project", 5, 7)
    assert event.transcript.endswith(".jsonl")


@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "paths", "writes"),
    [
        ("Bash", {"command": "ls"}, "execute", None, True),
        ("Write", {"file_path": "/project/a", "content": ""}, "edit", ("/project/a",), True),
        ("Edit", {"file_path": "/project/a"}, "edit", ("/project/a",), True),
        ("NotebookEdit", {"notebook_path": "/project/n"}, "edit", ("/project/n",), True),
        ("Write", {}, "edit", (), True),
        ("Read", {"file_path": "/project/a"}, "read", None, False),
        ("TodoWrite", {}, "other", None, False),
        ("mcp__files__write", {"path": "a"}, "other", None, True),
        ("Task", {"prompt": "go"}, "other", None, False),
    ],
)
def test_what_a_tool_may_change(
    tool: str, arguments: dict[str, Any], kind: str, paths: Any, writes: bool
) -> None:
    call = read(CLAUDE.call("c1", tool, **arguments)).call
    assert (call.kind, call.paths, call.writes) == (kind, paths, writes)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("plain", "plain"),
        ({"stdout": "out", "stderr": ""}, "out"),
        ({"stdout": "out", "stderr": "err"}, "out\nerr"),
        ({"type": "create"}, '{\n "type": "create"\n}'),
        (None, "null"),
    ],
)
def test_what_a_tool_gave_back(response: Any, text: str) -> None:
    event = read(CLAUDE.result("c1", response=response))
    assert (event.result.text, event.result.failed, event.result.duration_ms) == (text, False, 7)


def test_a_failure() -> None:
    event = read(CLAUDE.failure("c1", "Exit code 1"))
    assert (event.kind, event.result.text, event.result.failed) == (
        Kind.RESULT,
        "Exit code 1",
        True,
    )


def test_events_of_no_interest() -> None:
    assert read(CLAUDE.payload("Notification", message="x")) is None
    assert read(CLAUDE.payload("AnEventOfANewerVersion")) is None


@pytest.mark.parametrize(
    "payload",
    [
        {},
        CLAUDE.payload("UserPromptSubmit"),
        {**CLAUDE.prompt("x"), "session_id": ""},
        {**CLAUDE.prompt("x"), "session_id": "x" * 200},
        {**CLAUDE.prompt("x"), "session_id": 7},
        CLAUDE.payload("PreToolUse", tool_use_id="c1"),
    ],
)
def test_unknown_forms(payload: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="in an unknown form"):
        read(payload)


def test_other_agents_and_damaged_reports() -> None:
    with pytest.raises(Invalid, match="no agent 'emacs'"):
        read(CLAUDE.prompt("x"), agent="emacs")
    with pytest.raises(Invalid, match="5 bytes"):
        events.read(spool.Event("claude", 1, 1, {}, "claude reported 5 bytes"), READERS)


def test_half_characters() -> None:
    event = CLAUDE.event(CLAUDE.prompt("a\ud800b"))
    assert event.text == "a\ufffdb"
    assert read({**CLAUDE.prompt("x"), "prompt_id": "not an id\n"}).id is None
