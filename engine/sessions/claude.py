"""What the hooks of Claude Code report (version 2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casfs.attach import spool
from engine.sessions.events import (
    Kind,
    SessionEvent,
    ToolCall,
    ToolResult,
    as_text,
    prompt_id,
    session_id,
)

KINDS = {
    "SessionStart": Kind.BEGIN,
    "UserPromptSubmit": Kind.PROMPT,
    "PreToolUse": Kind.CALL,
    "PostToolUse": Kind.RESULT,
    "PostToolUseFailure": Kind.RESULT,
    "Stop": Kind.ANSWER,
    "SessionEnd": Kind.END,
}
# Tools that change one file, which their arguments name.
EDITS = {"Edit": "file_path", "MultiEdit": "file_path", "Write": "file_path"}
EDITS["NotebookEdit"] = "notebook_path"
READS = ("Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "ToolSearch")
PLANS = ("TodoWrite", "TodoRead", "TaskCreate", "TaskUpdate", "TaskList", "TaskGet", "TaskOutput")
ASKS = ("AskUserQuestion", "ExitPlanMode", "EnterPlanMode", "ListMcpResourcesTool")
READ_ONLY = {*READS, *PLANS, *ASKS}


def read(event: spool.Event, payload: Mapping[str, Any]) -> SessionEvent | None:
    name = payload["hook_event_name"]
    kind = KINDS.get(name)
    if kind is None:
        return None
    call = None
    result = None
    text = ""
    if kind in (Kind.CALL, Kind.RESULT):
        call = _call(payload)
    if kind is Kind.RESULT:
        result = _result(payload, failed=name == "PostToolUseFailure")
    if kind is Kind.PROMPT:
        text = str(payload["prompt"])
    if kind is Kind.ANSWER:
        text = str(payload.get("last_assistant_message") or "")
    return SessionEvent(
        kind,
        event.agent,
        session_id(payload["session_id"]),
        directory=str(payload["cwd"]),
        reported_ms=event.reported_ms,
        pid=event.pid,
        transcript=payload.get("transcript_path"),
        text=text,
        id=prompt_id(payload.get("prompt_id")),
        call=call,
        result=result,
    )


def _call(payload: Mapping[str, Any]) -> ToolCall:
    name = str(payload["tool_name"])
    arguments = payload.get("tool_input")
    paths = None
    kind = "other"
    if name in EDITS:
        kind = "edit"
        path = arguments.get(EDITS[name]) if isinstance(arguments, dict) else None
        paths = (str(path),) if path else ()
    elif name == "Bash":
        kind = "execute"
    elif name in READS:
        kind = "read"
    return ToolCall(
        str(payload["tool_use_id"]),
        name,
        arguments,
        kind=kind,
        writes=name not in READ_ONLY,
        paths=paths,
    )


def _result(payload: Mapping[str, Any], failed: bool) -> ToolResult:
    response = payload.get("error") if failed else payload.get("tool_response")
    text = as_text(response)
    if isinstance(response, dict) and isinstance(response.get("stdout"), str):
        text = "\n".join(filter(None, (response["stdout"], response.get("stderr"))))
    return ToolResult(text, failed, duration_ms=int(payload.get("duration_ms") or 0))
