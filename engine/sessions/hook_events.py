"""What the hooks of agents report: all in the shape that Claude Code has given it.

The agents differ in the names of events and of tools (`HookNames`); what is the same has the same
members: `session_id`, `cwd`, `transcript_path`, `hook_event_name`, `tool_name`, `tool_input`.
Seen of claude 2.1, codex 0.169, gemini 0.61, qwen 0.24, opencode 1.18 (by our plugin).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from casfs.attach import spool
from casfs.transcripts.messages import id_of_call
from engine.sessions.events import (
    Kind,
    Reader,
    SessionEvent,
    ToolCall,
    ToolResult,
    absolute_path,
    as_text,
    duration_ms,
    prompt_id,
    session_id,
)

CLAUDE_KINDS = {
    "SessionStart": Kind.BEGIN,
    "UserPromptSubmit": Kind.PROMPT,
    "PreToolUse": Kind.CALL,
    "PostToolUse": Kind.RESULT,
    "PostToolUseFailure": Kind.RESULT,
    "Stop": Kind.ANSWER,
    "SessionEnd": Kind.END,
}
GEMINI_KINDS = {
    "SessionStart": Kind.BEGIN,
    "BeforeAgent": Kind.PROMPT,
    "BeforeTool": Kind.CALL,
    "AfterTool": Kind.RESULT,
    "AfterAgent": Kind.ANSWER,
    "SessionEnd": Kind.END,
}
FAILURE = "PostToolUseFailure"
NEVER_ASKS = "bypassPermissions"


@dataclass(frozen=True)
class HookNames:
    """`kinds`: of the events, by their names; `edits`: tools that change one file, and the argument
    that names it; `shells`: those that run a command; `reads`, `silent`: those that change no
    file, the latter nothing that a person could see. What a subagent does is reported call by
    call, so the tool that asks it is silent."""

    kinds: Mapping[str, Kind]
    edits: Mapping[str, str]
    shells: Collection[str]
    reads: Collection[str]
    silent: Collection[str]


CLAUDE = HookNames(
    CLAUDE_KINDS,
    edits={
        **dict.fromkeys(("Edit", "MultiEdit", "Write"), "file_path"),
        "NotebookEdit": "notebook_path",
    },
    shells=("Bash",),
    reads=("Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "ToolSearch"),
    silent=(
        "TodoWrite", "TodoRead", "TaskCreate", "TaskUpdate", "TaskList", "TaskGet", "TaskOutput",
        "AskUserQuestion", "ExitPlanMode", "EnterPlanMode", "ListMcpResourcesTool", "Agent", "Task",
    ),
)  # fmt: skip
CODEX_DELEGATES = (
    "spawn_agent", "wait_agent", "list_agents", "send_message", "followup_task", "interrupt_agent",
)  # fmt: skip
CODEX = HookNames(
    CLAUDE_KINDS,
    edits={},  # its patches name files inside of a text
    shells=("Bash",),
    reads=("view_image", "web_search"),
    silent=("update_plan", *(f"collaboration{name}" for name in CODEX_DELEGATES)),
)
GEMINI_READS = (
    "read_file", "read_many_files", "glob", "search_file_content", "grep_search", "list_directory",
    "web_fetch", "google_web_search", "web_search",
)  # fmt: skip
GEMINI = HookNames(
    GEMINI_KINDS,
    edits=dict.fromkeys(("write_file", "replace", "edit"), "file_path"),
    shells=("run_shell_command",),
    reads=GEMINI_READS,
    silent=("write_todos", "todo_write", "save_memory", "ask_user", "exit_plan_mode"),
)
QWEN = HookNames(CLAUDE_KINDS, GEMINI.edits, GEMINI.shells, GEMINI.reads, GEMINI.silent)
OPENCODE = HookNames(
    CLAUDE_KINDS,
    edits=dict.fromkeys(("write", "edit"), "filePath"),
    shells=("bash",),
    reads=("read", "glob", "grep", "list", "webfetch", "websearch", "codesearch"),
    silent=("todowrite", "todoread", "question", "task"),
)


def read(names: HookNames, event: spool.Event, payload: Mapping[str, Any]) -> SessionEvent | None:
    """Returns what an event says; None where it is of no interest. Raises KeyError, TypeError,
    ValueError for another form."""
    name = payload["hook_event_name"]
    kind = names.kinds.get(name)
    if kind is None:
        return None
    call = None
    result = None
    text = ""
    if kind in (Kind.CALL, Kind.RESULT):
        call = _call(names, payload)
    if kind is Kind.RESULT:
        result = _result(payload, is_failure=name == FAILURE)
    if kind is Kind.PROMPT:
        text = str(payload["prompt"])
        # qwen reports an empty prompt after each result of a tool.
        if not text:
            return None
    if kind is Kind.ANSWER:
        text = str(payload.get("last_assistant_message") or payload.get("prompt_response") or "")
    return SessionEvent(
        kind,
        event.agent,
        session_id(payload["session_id"]),
        directory=absolute_path(payload["cwd"]),
        reported_ms=event.reported_ms,
        pid=event.pid,
        transcript=payload.get("transcript_path"),
        text=text,
        id=prompt_id(payload.get("prompt_id") or payload.get("turn_id")),
        call=call,
        result=result,
        asks=payload.get("permission_mode") != NEVER_ASKS,
    )


def _call(names: HookNames, payload: Mapping[str, Any]) -> ToolCall:
    name = str(payload["tool_name"])
    arguments = payload.get("tool_input")
    return tool_call(names, _call_id(payload, name, arguments), name, arguments)


def tool_call(names: HookNames, id: str, name: str, arguments: Any) -> ToolCall:
    """Returns a call with what its tool may change."""
    paths = None
    kind = "other"
    if name in names.edits:
        kind = "edit"
        path = arguments.get(names.edits[name]) if isinstance(arguments, dict) else None
        # No file has a NUL in its name.
        paths = (str(path),) if path and "\0" not in str(path) else ()
    elif name in names.shells:
        kind = "execute"
    elif name in names.reads:
        kind = "read"
    return ToolCall(
        id,
        name,
        arguments,
        kind=kind,
        writes=name not in names.reads and name not in names.silent,
        paths=paths,
    )


def _call_id(payload: Mapping[str, Any], name: str, arguments: Any) -> str:
    """Returns the id of a call. gemini has none: one that is made of what was asked is the same
    before and after it."""
    # That of the model, where the agent has one of its own, too: the transcript has the model's.
    id = payload.get("tool_call_id") or payload.get("tool_use_id")
    return str(id) if id else id_of_call(name, arguments)


def _result(payload: Mapping[str, Any], *, is_failure: bool) -> ToolResult:
    response = payload.get("error") if is_failure else payload.get("tool_response")
    text = as_text(response)
    if isinstance(response, dict):
        if isinstance(response.get("stdout"), str):
            text = "\n".join(filter(None, (response["stdout"], response.get("stderr"))))
        elif isinstance(response.get("llmContent"), str):
            text = response["llmContent"]
    return ToolResult(text, is_failure, duration_ms=duration_ms(payload.get("duration_ms")))


NAMES: Mapping[str, HookNames] = {
    "claude": CLAUDE,
    "codex": CODEX,
    "gemini": GEMINI,
    "qwen": QWEN,
    "opencode": OPENCODE,
}
READERS: Mapping[str, Reader] = {agent: partial(read, names) for agent, names in NAMES.items()}
