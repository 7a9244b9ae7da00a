"""The `cursor` agent: the CLI of Cursor in print mode, parsed from its event stream.

`cursor-agent --print --output-format stream-json [--resume ID] PROMPT` writes one JSON object
a line: `system` (subtype init: session_id, model), `user`, `assistant` (message.content[]
with texts), `tool_call` (subtype started, completed; tool_call.<kind>ToolCall with args and
result), at last `result` (result: the whole answer). A correction resumes the session.
Documented at https://cursor.com/docs/cli/reference/output-format

Events of unknown kinds are kept in the recorded stream and otherwise ignored, as that page asks
readers to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult
from casfs.digest import Digest
from casfs.store.write_batch import Batch
from engine import content
from engine.agents import program
from engine.processes.subprocesses import ProcessResult

package_descriptor = {
    "name": "cursor",
    "capabilities": ["answer", "edit", "run"],
    "configSchema": {
        "type": "object",
        "properties": {
            "argv": program.ARGV,
            "model": {"type": "string"},
            "force": {"type": "boolean", "description": "Let it change files and run commands."},
            "apiKeyEnv": {
                "type": "string",
                "format": "env",
                "description": "The variable that holds the key; passed on as CURSOR_API_KEY.",
            },
            "timeoutS": program.TIMEOUT_S,
        },
        "additionalProperties": False,
    },
    "schemas": [],
}
TURN = "cursor-turn"
TOKEN_COUNTS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")


@dataclass
class EventStream:
    """The state after a stream of events. A message is (kind, name, text, result)."""

    session: str | None = None
    model: str | None = None
    result: str | None = None
    failed: bool = False
    tokens: int = 0
    messages: list[tuple[str, str | None, str, str | None]] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)  # call_id to index in `messages`


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    async def agent(context: AgentContext) -> AgentResult:
        argv = [
            *_argv(config, context.conversation.get("session")),
            program.prompt_argument(context),
        ]
        key = config.get("apiKeyEnv")
        extra_env = {"CURSOR_API_KEY": context.env.get(key, "")} if key else {}
        outcome = await program.run_program(context, config, argv, extra_env=extra_env)
        stream = parse_stream(outcome.stdout)
        detail = await trio.to_thread.run_sync(_record, context, stream, outcome)
        if outcome.exit_code != 0 or stream.failed or stream.result is None:
            reason = (
                program.last_line(context, outcome.stderr)
                or stream.result
                or "no result in its stream"
            )
            raise AgentFailed(f"cursor exited with {outcome.exit_code}: {reason}", detail.hash)
        context.conversation["session"] = stream.session
        return AgentResult(stream.result, detail, tokens=stream.tokens)

    return agent


def _argv(config: Mapping[str, Any], session: str | None) -> list[str]:
    argv = [*config.get("argv", ["cursor-agent"]), "--print", "--output-format", "stream-json"]
    if "model" in config:
        argv += ["--model", config["model"]]
    if config.get("force"):
        argv.append("--force")
    if session is not None:
        argv += ["--resume", session]
    return argv


def parse_stream(data: bytes) -> EventStream:
    """Parses a stream, which may end early."""
    stream = EventStream()
    for event in _events(data):
        stream.session = event.get("session_id") or stream.session
        kind = event.get("type")
        if kind == "system":
            stream.model = event.get("model") or stream.model
        elif kind == "assistant":
            if text := _message_text(event):
                stream.messages.append(("text", None, text, None))
        elif kind == "tool_call":
            _add_tool_call(stream, event)
        elif kind == "result":
            stream.result = str(event.get("result", ""))
            stream.failed = bool(event.get("is_error"))
            stream.tokens = program.sum_tokens(event.get("usage"), TOKEN_COUNTS)
    return stream


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _message_text(event: Mapping[str, Any]) -> str:
    parts = (event.get("message") or {}).get("content") or ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _add_tool_call(stream: EventStream, event: Mapping[str, Any]) -> None:
    """Adds a message at `started`; `completed` gives it its result."""
    for kind, call in (event.get("tool_call") or {}).items():
        if not isinstance(call, dict):
            continue
        name = str(call.get("name") or kind.removesuffix("ToolCall"))
        result = _json(call["result"]) if "result" in call else None
        message = ("tool", name, _json(call.get("args", call.get("arguments", {}))), result)
        index = stream.open.pop(event.get("call_id", ""), None)
        if index is None:
            stream.open[event.get("call_id", "")] = len(stream.messages)
            stream.messages.append(message)
        else:
            stream.messages[index] = message


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _record(context: AgentContext, stream: EventStream, outcome: ProcessResult) -> Digest:
    has_turns = TURN in context.store.registry.names()  # not in a store of an older casfs
    with context.store.batch() as batch:
        turns: list[Any] = [_turn(batch, *message) for message in stream.messages]
        if has_turns:
            numbered = [{"index": index, **turn} for index, turn in enumerate(turns)]
            turns = [batch.put_node(TURN, turn).hash for turn in numbered]
        payload = {
            "sessionId": stream.session or "unknown",
            "model": stream.model,
            "durationMs": outcome.duration_ms,
            "turns": turns,
            "stream": batch.put(outcome.stdout).hash,
        }
        return batch.put_node("cursor-detail", payload)


def _turn(
    batch: Batch, kind: str, name: str | None, text: str, result: str | None
) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "text": content.put(batch, text),
        "result": None if result is None else content.put(batch, result),
    }
