"""What an agent reports while it works, as nodes: `react-session`, `react-turn`, `react-tool-call`.

The protocol does not say where a model call ends. A turn here ends as soon as no tool runs any
more after one has: it holds what was thought and said before, and the tool calls. Each is put and
reported to the engine at once, so a crash loses nothing that was over. What the agent says after
its last tool call is its report.

Updates that have no member of their own in these nodes, and members of known ones that are not
known, are kept as they came (`updates` of a turn, `more` of a tool call).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from casfs.agents import AgentContext
from casfs.digest import Digest
from casfs.errors import Invalid
from engine import content
from engine.acp import protocol
from engine.acp.tool_call import ToolCall, as_json, put, put_call
from engine.processes import MAX_OUTPUT_BYTES, OutputTooLarge

ENDED = ("completed", "failed")
CALLS = ("tool_call", "tool_call_update")
COUNTED = (
    ("inputTokens", "promptTokens", "input_tokens"),
    ("outputTokens", "completionTokens", "output_tokens"),
)
CUMULATIVE = ("hermes-agent ",)  # agents whose answers count all prompts; others count one


@dataclass
class _Turn:
    input: str = ""
    begin: float = field(default_factory=time.monotonic)
    thoughts: str = ""
    said: str = ""
    calls: dict[str, ToolCall] = field(default_factory=dict)
    plan: list[dict[str, str]] | None = None
    updates: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=lambda: [0, 0])  # input, output

    @property
    def is_empty(self) -> bool:
        held = (self.thoughts, self.said, self.calls, self.plan, self.updates, sum(self.tokens))
        return not any(held)


class Recorder:
    """The record of a session, prompt by prompt. `output` gets what the agent says as it comes;
    `turns`: of the current prompt; `tokens`: of these."""

    def __init__(self, context: AgentContext, output: Callable[[bytes], None]) -> None:
        self._context, self._output = context, output
        self._store = context.store
        self._root = f"{context.workspace}/" if context.workspace else ""
        self._used = 0  # tokens in the agent's context
        self._before = [0, 0]  # tokens of earlier prompts
        self._over: set[str] = set()  # tool calls
        self.begin("")

    def begin(self, prompt: str) -> None:
        self._turn = _Turn(prompt)
        self._started = time.monotonic()
        self._pending, self._message = 0, None
        self.turns: list[str] = []
        self.tokens = 0
        self._report = self._last = ""

    @property
    def report(self) -> str:
        """What it said after its last tool call; where that is nothing, what it said before."""
        return self._report.strip() or self._last.strip()

    async def update(self, params: Any, size: int) -> None:
        """Records a `session/update` of `size` bytes. Raises OutputTooLarge."""
        self._pending += size
        if self._pending > MAX_OUTPUT_BYTES:
            raise OutputTooLarge(f"it sent more than {MAX_OUTPUT_BYTES >> 20} MiB in one turn")
        raw: Any = params.get("update") if isinstance(params, Mapping) else None
        try:
            known = protocol.read("SessionNotification", params).update
        except Invalid:
            known = None
        kind = raw.get("sessionUpdate") if known is not None and raw is not None else None
        if kind in ("agent_message_chunk", "agent_thought_chunk"):
            self._add_chunk(known, raw)
        elif kind in CALLS and known.tool_call_id not in self._over:
            await self._add_call(known.tool_call_id, raw)
        elif kind == "plan":
            self._turn.plan = [
                {"content": one.content, "priority": one.priority, "status": one.status}
                for one in known.entries
            ]
        elif kind != "user_message_chunk":  # an echo of the prompt
            if kind == "usage_update":
                self._used = known.used
            self._turn.updates.append(params if raw is None else raw)

    def _add_chunk(self, known: Any, raw: Mapping[str, Any]) -> None:
        turn = self._turn
        text = known.content.text if known.content.type == "text" else ""
        if usage := _usage(raw.get("_meta")):
            turn.tokens = [old + new for old, new in zip(turn.tokens, usage, strict=True)]
        if not text or usage:
            turn.updates.append(raw)
        if raw["sessionUpdate"] == "agent_thought_chunk":
            turn.thoughts += text
            return
        if known.message_id != self._message and self._report and text:
            text = f"\n\n{text}"
        self._message = known.message_id
        turn.said += text
        self._report += text
        self._output(text.encode("utf-8", "replace"))

    async def _add_call(self, id: str, raw: Mapping[str, Any]) -> None:
        call = self._turn.calls.get(id)
        if call is None:
            call = self._turn.calls[id] = ToolCall()
            self._last, self._report = self._report.strip() or self._last, ""
        call.raw |= {name: value for name, value in raw.items() if value is not None}
        if call.raw.get("status") in ENDED and call.hash is None:
            await self.tool_call_ended(call)
            self._over.add(id)
            if all(one.hash for one in self._turn.calls.values()):
                await self._end_turn()

    async def tool_call_ended(self, call: ToolCall) -> None:
        """Records a tool call as soon as it is over: the workspace is as the tool left it, and the
        agent waits for the model."""
        call.duration_ms = round((time.monotonic() - call.begin) * 1000)
        call.hash = await trio.to_thread.run_sync(put_call, self._store, call, self._root)

    async def end(self, spent: Sequence[int] = ()) -> None:
        """Ends the turn of a prompt that is answered, or given up; `spent`: of the answer."""
        turn = self._turn
        for call in turn.calls.values():
            if call.hash is None:
                await self.tool_call_ended(call)
        if spent:
            rest = sum(spent) - self.tokens - sum(turn.tokens)
            if rest > 0:
                output = min(spent[1], rest)
                turn.tokens = [turn.tokens[0] + rest - output, turn.tokens[1] + output]
        elif not self.tokens and not sum(turn.tokens):
            turn.tokens[0] = self._used
        if not turn.is_empty:
            await self._end_turn()

    def spent(self, answer: Any, agent: str) -> list[int]:
        """Returns the input and output tokens of an answered prompt; empty where its agent does
        not say."""
        usage = answer.usage
        if usage is None:
            return _usage(answer.field_meta)
        total = [max(0, usage.total_tokens - usage.output_tokens), usage.output_tokens]
        if not agent.startswith(CUMULATIVE):
            return total
        before, self._before = self._before, total
        return [max(0, now - then) for now, then in zip(total, before, strict=True)]

    async def _end_turn(self) -> None:
        turn, self._turn, self._pending = self._turn, _Turn(), 0
        self.tokens += sum(turn.tokens)
        hash = await trio.to_thread.run_sync(self._put_turn, turn)
        self.turns.append(hash)
        await self._context.turn(hash)

    # -- nodes ----------------------------------------------------------------------------

    def detail(self, more: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Digest:
        """Puts the session so far; `blobs` become members of it where they are not empty."""
        with self._store.batch() as batch:
            payload = {
                "agent": self._context.agent,
                "role": self._context.role,
                "turns": list(self.turns),
                "totalTokens": self.tokens,
                "durationMs": round((time.monotonic() - self._started) * 1000),
                **more,
                **{name: batch.put(data).hash for name, data in blobs.items() if data},
            }
            return put(batch, self._store, "react-session", payload)

    def _put_turn(self, turn: _Turn) -> str:
        with self._store.batch() as batch:
            payload: dict[str, Any] = {
                "input": content.put(batch, turn.input),
                "output": content.put(batch, turn.said),
                "toolCalls": [call.hash for call in turn.calls.values()],
                "tokens": {"input": turn.tokens[0], "output": turn.tokens[1]},
                "latencyMs": round((time.monotonic() - turn.begin) * 1000),
            }
            if turn.thoughts:
                payload["thoughts"] = content.put(batch, turn.thoughts)
            if turn.plan is not None:
                payload["plan"] = turn.plan
            if turn.updates:
                payload["updates"] = content.put(batch, as_json(turn.updates))
            return put(batch, self._store, "react-turn", payload).hash


def _usage(meta: Any) -> list[int]:
    """Returns the input and output tokens of one model call, or of a prompt, as some agents send
    them; empty without any."""
    if not isinstance(meta, Mapping):
        return []
    usage, quota = meta.get("usage"), meta.get("quota")
    if usage is None and isinstance(quota, Mapping):
        usage = quota.get("token_count")
    if not isinstance(usage, Mapping):
        return []
    found = [next((usage[one] for one in names if one in usage), 0) for names in COUNTED]
    return [one if type(one) is int and one > 0 else 0 for one in found]
