"""The `hermes` agent: the CLI of Hermes Agent, one question a run (seed 002, phase 2).

`hermes chat --quiet -q PROMPT` prints the answer, and a line `session_id: ID` on stdout or
stderr; a correction is the same with `--resume ID`, so it is the next turn of the session.
The session is read by `hermes sessions export - --session-id ID`: one JSON object, with `messages`
as in the chat-completions protocol. Each message becomes a `hermes-turn`, the session a
`hermes-detail`. Documented at
https://hermes-agent.nousresearch.com/docs/reference/cli-commands and
https://hermes-agent.nousresearch.com/docs/user-guide/sessions

A `hermes` without that command writes `sessions/session_ID.json` in its home; that is read instead.
A session that cannot be read does not fail the step: its detail has no turns, and a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult
from casfs.digest import Digest
from casfs.errors import Failed
from engine.agents import program

SESSION_ID_LINE = re.compile(r"^\s*session[_ ]id:[ \t]*([A-Za-z0-9._-]+)[ \t]*$", re.M | re.I)
MAX_SESSION_BYTES = 64 << 20
TOKEN_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")

package_descriptor = {
    "name": "hermes",
    "capabilities": ["answer", "edit", "run"],
    "configSchema": {
        "type": "object",
        "properties": {
            "argv": program.ARGV,
            "model": {"type": "string"},
            "provider": {"type": "string"},
            "toolsets": {"type": "string", "description": "Separated by commas."},
            "yolo": {"type": "boolean", "description": "No confirmation of dangerous commands."},
            "secrets": program.SECRETS,
            "timeoutS": program.TIMEOUT_S,
        },
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    async def agent(context: AgentContext) -> AgentResult:
        session = context.conversation.get("session")
        argv = [*_chat(config, session), program.prompt_argument(context)]
        outcome = await program.run_program(context, config, argv)
        output = outcome.stdout.decode("utf-8", "replace")
        id = _session_id(output, outcome.stderr.decode("utf-8", "replace")) or session
        output = SESSION_ID_LINE.sub("", output).strip() + "\n"
        if outcome.exit_code != 0:
            last = program.last_line(context, outcome.stderr, outcome.stdout) or "no output"
            raise AgentFailed(f"hermes exited with {outcome.exit_code}: {last}")
        if id is None:
            raise AgentFailed("hermes printed no session_id; is it the CLI of Hermes Agent?")
        context.conversation["session"] = id
        session_record = await _session(context, config, id)
        if not session_record:
            session_record = await trio.to_thread.run_sync(_session_file, context, id)
        detail = await trio.to_thread.run_sync(
            _record, context, id, session_record, outcome.duration_ms
        )
        total = program.sum_tokens(session_record, TOKEN_COUNTS)  # of the whole session
        before = context.conversation.get("tokens", 0)
        context.conversation["tokens"] = total
        return AgentResult(output, detail, tokens=max(0, total - before))

    return agent


def _argv(config: Mapping[str, Any]) -> list[str]:
    return list(config.get("argv", ["hermes"]))


def _chat(config: Mapping[str, Any], session: str | None) -> list[str]:
    argv = [*_argv(config), "chat", "--quiet"]
    for name in ("model", "provider", "toolsets"):
        if name in config:
            argv += [f"--{name}", config[name]]
    if config.get("yolo"):
        argv.append("--yolo")
    if session is not None:
        argv += ["--resume", session]
    return [*argv, "-q"]


def _session_id(*texts: str) -> str | None:
    """Returns the last id that a text names: a resumed session may have a new one."""
    for text in texts:
        if ids := SESSION_ID_LINE.findall(text):
            return str(ids[-1])
    return None


async def _session(context: AgentContext, config: Mapping[str, Any], id: str) -> dict[str, Any]:
    """Reads the session as JSON; empty where it cannot be read."""
    try:
        export = [*_argv(config), "sessions", "export", "-", "--session-id", id]
        outcome = await program.run_program(context, config, export)
    except Failed:
        return {}
    return _parsed(outcome.stdout) if outcome.exit_code == 0 else {}


def _session_file(context: AgentContext, id: str) -> dict[str, Any]:
    """Reads the session from the file that `hermes` writes; empty where it cannot be read."""
    home = context.env.get("HERMES_HOME")
    folder = Path(home) if home else Path(context.env.get("HOME", "/")) / ".hermes"
    path = folder / "sessions" / f"session_{id}.json"
    if not path.is_file():  # opening a pipe would block
        return {}
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SESSION_BYTES + 1)
    except OSError:
        return {}
    return _parsed(data) if len(data) <= MAX_SESSION_BYTES else {}


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _record(context: AgentContext, id: str, session: dict[str, Any], duration: int) -> Digest:
    messages = _list(session.get("messages"))
    valid_messages = [message for message in messages if isinstance(message, dict)]
    model = session.get("model")
    with context.store.batch() as batch:
        turns = [
            batch.put_node("hermes-turn", _turn(index, message)).hash
            for index, message in enumerate(valid_messages)
        ]
        payload: dict[str, Any] = {
            "sessionId": id,
            "model": model if isinstance(model, str) else None,
            "durationMs": duration,
            "turnCount": len(turns),
            "turns": turns,
        }
        if not turns:
            payload["warning"] = (
                f"hermes gave no messages of session {id}, nor is there a file of it"
            )
        return batch.put_known("hermes-detail", payload)


def _turn(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    return {
        "index": index,
        "role": str(message.get("role") or "unknown"),
        "content": _text(message.get("content")),
        "toolCalls": [_call(call) for call in _list(message.get("tool_calls"))],
        "reasoning": None if reasoning is None else _text(reasoning),
    }


def _call(call: Any) -> dict[str, str]:
    """Accepts `{"function": {"name", "arguments"}}`, and the two fields without that layer."""
    inner = call.get("function", call) if isinstance(call, dict) else {}
    inner = inner if isinstance(inner, dict) else {}
    return {"name": str(inner.get("name", "")), "args": _text(inner.get("arguments", ""))}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
