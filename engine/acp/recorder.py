"""What an agent reports while it works, as nodes: `react-session`, `react-turn`, `react-tool-call`.

The protocol does not say where a model call ends. A turn here ends as soon as no tool runs any
more after one has: it holds what was thought and said before, and the tool calls. Each is put and
reported to the engine at once, so a crash loses nothing that was over. What the agent says after
its last tool call is its report.

Updates that have no member of their own in these nodes, and members of known ones that are not
known, are kept as they came (`updates` of a turn, `more` of a tool call).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from casfs.agents import AgentContext
from casfs.digest import Digest
from casfs.errors import Invalid
from casfs.write_batch import Batch
from engine import content
from engine.acp import protocol
from engine.processes import MAX_OUTPUT_BYTES, OutputTooLarge

ENDED = ("completed", "failed")
PLANNED = ("content", "priority", "status")
CUMULATIVE = ("hermes-agent ",)  # agents whose answers count all prompts; others count one
MAX_NAME_CHARS = 200
MAX_COUNT = 10**12  # of tokens, of lines: a node holds no number of any size
RECORDED = {"toolCallId", "sessionUpdate", "title", "kind", "status", "rawInput", "locations"}


@dataclass
class ToolCall:
    """`raw`: the members of its updates, the newest of each; `hash`: once it is over."""

    raw: dict[str, Any] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)
    hash: str | None = None


@dataclass
class _Turn:
    input: str = ""
    begin: float = field(default_factory=time.monotonic)
    thoughts: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    plan: list[dict[str, str]] = field(default_factory=list)
    updates: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=lambda: [0, 0])  # input, output
    trees: dict[str, str] = field(default_factory=dict)  # members of its node


class Recorder:
    """The record of a session, prompt by prompt. `output` gets what the agent says as it comes;
    `tokens`: of the current prompt."""

    def __init__(self, context: AgentContext, output: Callable[[bytes], None]) -> None:
        self._context, self._output, self._store = context, output, context.store
        self._root = f"{context.workspace}/" if context.workspace else ""
        self._used = 0  # tokens in the agent's context
        self._before = [0, 0]  # tokens of earlier prompts
        self._over: set[str] = set()  # tool calls
        self._asked: dict[str, dict[str, Any]] = {}  # tool calls known only by a question
        self._lock = trio.Lock()  # a prompt that was given up ends while updates come
        self.begin("")

    def begin(self, prompt: str) -> None:
        self._turn, self._started = _Turn(prompt), time.monotonic()
        self._pending, self._message = 0, None
        self._turns: list[str] = []
        self._report: list[str] = []
        self._last = ""
        self.tokens = 0

    @property
    def report(self) -> str:
        """What it said after its last tool call; where that is nothing, what it said before."""
        return "".join(self._report).strip() or self._last

    async def update(self, params: Any, size: int) -> None:
        """Records a `session/update` of `size` bytes. Raises OutputTooLarge."""
        self._count(size)
        try:
            known, raw = protocol.read("SessionNotification", params).update, params["update"]
            kind = known.session_update
        except Invalid:
            raw = params.get("update", params) if isinstance(params, Mapping) else params
            known, kind = None, None
        async with self._lock:
            match kind:
                case "agent_message_chunk" | "agent_thought_chunk":
                    self._add_chunk(known, raw)
                case "tool_call" | "tool_call_update" if known.tool_call_id not in self._over:
                    await self._add_call(known.tool_call_id, raw)
                case "plan":
                    self._turn.plan = [
                        {name: getattr(one, name) for name in PLANNED} for one in known.entries
                    ]
                case "user_message_chunk":  # an echo of the prompt
                    pass
                case _:
                    self._used = known.used if kind == "usage_update" else self._used
                    self._turn.updates.append(raw)

    def asked(self, params: Any, size: int) -> dict[str, Any]:
        """Keeps the tool call that an agent asks permission for, which some describe only there;
        returns all that is known of it. Raises OutputTooLarge, Invalid."""
        self._count(size)
        id = protocol.read("RequestPermissionRequest", params).tool_call.tool_call_id
        call = self._turn.calls.get(id)
        about = self._asked.setdefault(id, {}) if call is None else call.raw
        given = params["toolCall"].items()
        about |= {name: one for name, one in given if name != "status" and one is not None}
        return dict(about)

    def _count(self, size: int) -> None:
        self._pending += size
        if self._pending > MAX_OUTPUT_BYTES:
            raise OutputTooLarge(f"it sent more than {MAX_OUTPUT_BYTES >> 20} MiB in one turn")

    def _add_chunk(self, known: Any, raw: Mapping[str, Any]) -> None:
        turn, counts = self._turn, protocol.tokens(known.field_meta)
        text = known.content.text if known.content.type == "text" else ""
        if counts:
            turn.tokens = [old + new for old, new in zip(turn.tokens, counts, strict=True)]
        if not text or known.field_meta:  # a secret may be spread over texts: they are joined
            turn.updates.append({**raw, "content": None} if text else raw)
        if known.session_update == "agent_thought_chunk":
            turn.thoughts.append(text)
            return
        if text and self._report and known.message_id != self._message:
            text = f"\n\n{text}"
        self._message = known.message_id
        turn.said.append(text)
        self._report.append(text)
        self._output(text.encode())

    async def _add_call(self, id: str, raw: Mapping[str, Any]) -> None:
        call = self._turn.calls.get(id)
        if call is None:
            call = self._turn.calls[id] = ToolCall(self._asked.pop(id, {}))
            self._last, self._report = self.report, []
        call.raw |= {name: value for name, value in raw.items() if value is not None}
        if call.raw.get("status") in ENDED:
            self._over.add(id)
            await self.tool_call_ended(call)
            if all(one.hash for one in self._turn.calls.values()):
                await self._end_turn()

    async def tool_call_ended(self, call: ToolCall) -> None:
        """Records a tool call as soon as it is over: the workspace is as the tool left it, and the
        agent waits for the model."""
        tree = await self._context.record_tree(self._turn.trees)
        call.hash = await trio.to_thread.run_sync(self._put_call, call, tree)

    async def end(self, answer: Any, agent: str) -> None:
        """Ends the turn of a prompt that is answered, or given up (None)."""
        async with self._lock:
            turn, spent = self._turn, self.spent(answer, agent) if answer else []
            turn.updates += [{"permission": about} for about in self._asked.values()]
            self._asked = {}
            for call in turn.calls.values():
                if call.hash is None:
                    await self.tool_call_ended(call)
            if spent:
                rest = max(0, sum(spent) - self.tokens - sum(turn.tokens))
                output = min(spent[1], rest)
                turn.tokens = [turn.tokens[0] + rest - output, turn.tokens[1] + output]
            elif not self.tokens and not any(turn.tokens):
                turn.tokens = [self._used, 0]
            if turn != _Turn(turn.input, turn.begin):
                await self._end_turn()

    def spent(self, answer: Any, agent: str) -> list[int]:
        """Returns the input and output tokens of an answered prompt; empty where its agent does
        not say."""
        usage = answer.usage
        if usage is None:
            return protocol.tokens(answer.field_meta)
        total = [max(0, usage.total_tokens - usage.output_tokens), usage.output_tokens]
        if not agent.startswith(CUMULATIVE):
            return total
        before, self._before = self._before, total
        return [max(0, now - then) for now, then in zip(total, before, strict=True)]

    async def _end_turn(self) -> None:
        turn, self._turn, self._pending = self._turn, _Turn(), 0
        turn.tokens = [min(one, MAX_COUNT) for one in turn.tokens]
        self.tokens += sum(turn.tokens)
        if not turn.calls:
            await self._context.record_tree(turn.trees)
        hash = await trio.to_thread.run_sync(self._put_turn, turn)
        self._turns.append(hash)
        await self._context.turn(hash)

    # -- nodes ----------------------------------------------------------------------------

    def detail(self, facts: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Digest:
        """Puts the session so far, with what is said of it; `blobs` become members of it."""
        with self._store.batch() as batch:
            payload = {
                "agent": self._context.agent,
                "role": self._context.role,
                "turns": list(self._turns),
                "totalTokens": self.tokens,
                "durationMs": _ms_since(self._started),
                **facts,
                **{name: batch.put(data).hash for name, data in blobs.items() if data},
            }
            return self._put(batch, "react-session", payload)

    def _put_turn(self, turn: _Turn) -> str:
        with self._store.batch() as batch:
            updates = _json(turn.updates) if turn.updates else ""
            texts = {"thoughts": "".join(turn.thoughts), "updates": updates}
            payload = {
                "input": content.put(batch, turn.input),
                "output": content.put(batch, "".join(turn.said)),
                "toolCalls": [call.hash for call in turn.calls.values()],
                "tokens": dict(zip(("input", "output"), turn.tokens, strict=True)),
                "latencyMs": _ms_since(turn.begin),
                "plan": turn.plan,
                **turn.trees,
                **{name: content.put(batch, text) for name, text in texts.items() if text},
            }
            return self._put(batch, "react-turn", payload).hash

    def _put_call(self, call: ToolCall, tree: Mapping[str, str]) -> str:
        """Puts a `react-tool-call`. What has no member of its own is recorded as it came."""
        known, recorded = protocol.read("ToolCallUpdate", call.raw), set(RECORDED)
        parts, given, output = known.content or [], known.raw_input, known.raw_output
        diffs = [one for one in parts if one.type == "diff"]
        texts = [one.content.text for one in parts if getattr(one, "content", one).type == "text"]
        if len(texts) + len(diffs) == len(parts):
            recorded.add("content")
        if not texts and output is not None:
            recorded.add("rawOutput")
            texts = [output if isinstance(output, str) else _json(output)]
        read = {"sessionUpdate": call.raw.get("sessionUpdate"), **protocol.dump(known)}
        more = {
            name: one
            for name, one in call.raw.items()
            if name not in recorded or one != read.get(name)
        }
        name = self._context.secrets.redact(known.title or known.kind or "?")  # before it is cut
        with self._store.batch() as batch:
            payload = {
                "name": name[:MAX_NAME_CHARS],
                "arguments": content.put(batch, _json({} if given is None else given)),
                "result": content.put(batch, "\n".join(texts)),
                "durationMs": _ms_since(call.begin),
                "kind": known.kind,
                "status": known.status,
                "locations": [
                    {"path": one.path.removeprefix(self._root), "line": _line(one)}
                    for one in known.locations or ()
                ],
                "diffs": [self._diff(batch, one) for one in diffs],
                **tree,
                **({"more": content.put(batch, _json(more))} if more else {}),
            }
            return self._put(batch, "react-tool-call", payload).hash

    def _diff(self, batch: Batch, diff: Any) -> dict[str, Any]:
        old = None if diff.old_text is None else batch.put(diff.old_text.encode()).hash
        new = batch.put(diff.new_text.encode()).hash
        return {"path": diff.path.removeprefix(self._root), "old": old, "new": new}

    def _put(self, batch: Batch, type: str, payload: Mapping[str, Any]) -> Digest:
        """Puts a node, without optional members that are empty, or that a store of an older casfs
        does not know."""
        registry = self._store.registry
        schema = registry.compiled(registry.current(type))[1].document
        required, known = schema["required"], schema["properties"]
        given = {
            key: one for key, one in payload.items() if key in required or (one and key in known)
        }
        return batch.put_node(type, given)


def _line(location: Any) -> int | None:
    return None if location.line is None else min(location.line, MAX_COUNT)


def _ms_since(begin: float) -> int:
    return round((time.monotonic() - begin) * 1000)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
