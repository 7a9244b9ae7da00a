"""What an agent reports while it works, as nodes: `react-session`, `react-turn`, `react-tool-call`.

The protocol does not say where a model call ends. A turn here ends as soon as no tool runs any
more after one has: it holds what was thought and said before, and the tool calls. Each is put and
reported to the engine at once, so a crash loses nothing that was over. What the agent says after
its last tool call is its report.

Updates that have no member of their own in these nodes, and members of known ones that are not
known, are kept as they came (`updates` of a turn, `more` of a tool call).
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from casfs.agents import AgentContext
from casfs.digest import Digest
from casfs.errors import Invalid
from casfs.system import surrogates
from casfs.threads.live_output import LiveOutput
from casfs.trees import recorded_state
from engine import content
from engine.acp import protocol
from engine.acp.terminal import Terminal
from engine.acp.texts import MESSAGE_GAP, ChunkedText
from engine.acp.tool_calls import (
    MAX_COUNT,
    READ,
    FileRequest,
    ToolCall,
    ToolCallWriter,
    as_json,
    ms_since,
)
from engine.blocking import blocking
from engine.processes.subprocesses import MAX_OUTPUT_BYTES, OutputTooLarge

ENDED = ("completed", "failed")
SHOWN = ("title", "kind", "status")  # of a tool call that runs
PLANNED = ("content", "priority", "status")
MESSAGE = "agent_message_chunk"
THOUGHT = "agent_thought_chunk"
CHUNK = ("sessionUpdate", "messageId", "content")
CUMULATIVE = ("hermes-agent ",)  # agents whose answers count all prompts; others count one


@dataclass
class _Turn:
    """`records`: its tool calls in order; `calls`: those that the agent reported, by id;
    `other_sessions`: updates for other sessions."""

    input: str = ""
    begin: float = field(default_factory=time.monotonic)
    thoughts: ChunkedText = field(default_factory=ChunkedText)
    said: ChunkedText = field(default_factory=ChunkedText)
    records: list[ToolCall] = field(default_factory=list)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    plan: dict[str, Any] | None = None  # the newest, as it came
    entries: list[dict[str, str]] = field(default_factory=list)  # of it
    updates: list[Any] = field(default_factory=list)
    other_sessions: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=lambda: [0, 0])  # input, output
    trees: dict[str, str] = field(default_factory=dict)  # members of its node

    def is_empty(self) -> bool:
        held = (
            self.thoughts,
            self.said,
            self.records,
            self.plan,
            self.updates,
            self.other_sessions,
        )
        return not any(held) and not any(self.tokens)


class Recorder:
    """The record of a session, prompt by prompt. `live` shows what the agent says as it comes, and
    the tool calls that run; `tokens`: of the current prompt."""

    def __init__(self, context: AgentContext, live: LiveOutput) -> None:
        self._context = context
        self._live = live
        self._store = context.store
        self._writer = ToolCallWriter(context)
        self._decoder = codecs.getincrementaldecoder(surrogates.CODEC)("replace")  # of live output
        self._used = 0  # tokens in the agent's context
        self._before = [0, 0]  # tokens of earlier prompts
        self._over: set[str] = set()  # tool calls
        self._asked: dict[str, ToolCall] = {}  # tool calls known only by a question
        self._lock = trio.Lock()  # a prompt that was given up ends while updates come
        self._turn = _Turn()
        self._turns: list[str] = []
        self._lone = 0  # halves of characters
        self._pending = 0
        self.begin("")

    def begin(self, prompt: str) -> None:
        """Begins a prompt. What came before it is recorded in its first turn."""
        self._prompt = self._turn.input = prompt
        self._turn.begin = self._started = time.monotonic()
        self._report = ChunkedText()
        self._last = ""
        self.tokens = self._earlier_tokens = 0

    def follow(self, prompt: str) -> None:
        """Begins a further prompt of the same attempt, whose tokens and time go on."""
        tokens = self.total_tokens
        started = self._started
        self.begin(prompt)
        self._earlier_tokens = tokens
        self._started = started

    @property
    def total_tokens(self) -> int:
        return self._earlier_tokens + self.tokens

    @property
    def report(self) -> str:
        """What it said after its last tool call; where that is nothing, what it said before."""
        return self._report.text().strip() or self._last

    async def update(self, params: Any, size: int) -> None:
        """Records a `session/update` of `size` bytes. Raises OutputTooLarge."""
        self._count(size)
        async with self._lock:
            await self._add_update(params)

    async def other_session(self, params: Any, size: int) -> None:
        """Keeps an update for another session apart. Raises OutputTooLarge."""
        self._count(size)
        async with self._lock:
            self._turn.other_sessions.append(params)

    async def _add_update(self, params: Any) -> None:
        await blocking(self._context.secrets.look_again)  # before any of it is shown
        updates = self._turn.updates
        try:
            clean = surrogates.replace_in_json(params)
            known = protocol.read("SessionNotification", clean).update
            raw = params["update"]
        except Invalid:
            updates.append(params.get("update", params) if isinstance(params, Mapping) else params)
            return
        kind = known.session_update
        if around := _rest(params, ("sessionId", "update")):
            updates.append({**around, "update": {"sessionUpdate": kind}})
        match kind:
            case "agent_message_chunk" | "agent_thought_chunk":
                self._add_chunk(known, raw)
            case "tool_call" | "tool_call_update" if known.tool_call_id not in self._over:
                await self._add_call(known.tool_call_id, raw)
            case "plan":
                if self._turn.plan is not None:
                    updates.append(self._turn.plan)
                self._turn.plan = raw
                self._turn.entries = [
                    {name: getattr(entry, name) for name in PLANNED} for entry in known.entries
                ]
            case "user_message_chunk" if self._is_echo(raw):
                pass
            case _:
                self._used = known.used if kind == "usage_update" else self._used
                updates.append(raw)

    def _is_echo(self, raw: Mapping[str, Any]) -> bool:
        """Returns whether a chunk says no more than the prompt did."""
        block = raw["content"]
        text = block.get("text")
        is_plain = not _rest(raw, CHUNK) and not _rest(block, ("type", "text"))
        return is_plain and isinstance(text, str) and text in self._prompt

    def asked(self, params: Any, size: int) -> dict[str, Any]:
        """Keeps the tool call that an agent asks permission for, which some describe only there;
        returns all that is known of it. Raises OutputTooLarge, Invalid."""
        self._count(size)
        id = protocol.read("RequestPermissionRequest", params).tool_call.tool_call_id
        call = self._turn.calls.get(id) or self._asked.setdefault(id, ToolCall())
        call.update(_rest(params["toolCall"], ("status",)))
        raw: dict[str, Any] = surrogates.replace_in_json(call.raw)
        return raw

    def answered(self, question: str, answer: str) -> None:
        """Notes what a person has answered to a question of the agent."""
        self._turn.updates.append({"permission": {"question": question, "answer": answer}})

    async def checkpoint(self) -> None:
        """Puts what has come so far as a turn, but for the tool calls that are not over."""
        async with self._lock:
            turn = self._turn
            unended = [call for call in turn.records if call.hash is None]
            turn.records = [call for call in turn.records if call.hash is not None]
            if turn.is_empty():
                turn.records = unended
                return
            calls = {id: call for id, call in turn.calls.items() if call.hash is None}
            await self._end_turn()
            self._turn.records = unended
            self._turn.calls = calls

    # -- what the agent had us do -----------------------------------------------------------

    async def file(self, request: FileRequest) -> None:
        """Records that the agent read or wrote a file through us, or tried to."""
        with trio.CancelScope(shield=True):
            async with self._lock:
                tree: Mapping[str, str] = {}
                if request.access != READ:
                    tree = await self._context.record_tree(self._turn.trees)
                hash = await trio.to_thread.run_sync(self._writer.put_file, request, tree)
                await self._add_record(hash)

    async def refused(self, name: str, request: Mapping[str, Any], fault: str) -> None:
        """Records a terminal that was not made."""
        async with self._lock:
            put = self._writer.put_refused
            hash = await trio.to_thread.run_sync(put, name, request, fault)
            await self._add_record(hash)

    def terminal(self, id: str, terminal: Terminal) -> None:
        """Notes a new terminal. It is recorded with the tool call that names it; where none does,
        as one of its own when it is released."""
        self._writer.terminals[id] = terminal

    async def released(self, id: str) -> None:
        with trio.CancelScope(shield=True):
            async with self._lock:
                if not any(id in call.terminals for call in self._turn.records):
                    await self._record_terminal(id)
                self._writer.forget_terminals()

    async def _record_terminal(self, id: str) -> None:
        if id in self._writer.recorded:
            return
        tree = await self._context.record_tree(self._turn.trees)
        hash = await trio.to_thread.run_sync(self._writer.put_terminal, id, tree)
        await self._add_record(hash)

    async def _add_record(self, hash: str) -> None:
        self._turn.records.append(ToolCall(hash=hash))
        if all(record.hash for record in self._turn.records):
            await self._end_turn()

    # -- what the agent reports -------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._pending += size
        if self._pending > MAX_OUTPUT_BYTES:
            raise OutputTooLarge(f"it sent more than {MAX_OUTPUT_BYTES >> 20} MiB in one turn")

    def _add_chunk(self, known: Any, raw: Mapping[str, Any]) -> None:
        turn = self._turn
        counts = protocol.tokens(known.field_meta)
        block = raw["content"]
        text = block["text"] if known.content.type == "text" else ""
        if counts:
            turn.tokens = [old + new for old, new in zip(turn.tokens, counts, strict=True)]
        if not text:
            turn.updates.append(raw)
        elif _rest(raw, CHUNK) or _rest(block, ("type", "text")):
            # without the text: a secret may be spread over several, which are joined
            turn.updates.append({**raw, "content": _rest(block, ("text",))})
        if not text:
            return
        if known.session_update == THOUGHT:
            turn.thoughts.add(text, known.message_id)
            return
        turn.said.add(text, known.message_id)
        is_next = self._report.add(text, known.message_id)
        if is_next:
            self._live.write(MESSAGE_GAP.encode())
        data = text.encode(surrogates.CODEC, surrogates.ERRORS)
        self._live.write(self._decoder.decode(data).encode())

    async def _add_call(self, id: str, raw: Mapping[str, Any]) -> None:
        call = self._turn.calls.get(id)
        if call is None:
            call = self._turn.calls[id] = self._asked.pop(id, ToolCall())
            self._turn.records.append(call)
            self._last = self.report
            self._report = ChunkedText()
        call.update(raw)
        if call.raw.get("status") in ENDED:
            self._over.add(id)
        self._show_tools()
        if id in self._over:
            await self.tool_call_ended(call)
            if all(record.hash for record in self._turn.records):
                await self._end_turn()

    def _show_tools(self) -> None:
        running = [
            {"id": id, **{name: call.raw.get(name) for name in SHOWN}}
            for id, call in self._turn.calls.items()
            if id not in self._over
        ]
        self._live.show_tools(running)

    async def tool_call_ended(self, call: ToolCall) -> None:
        """Records a tool call as soon as it is over: the workspace is as the tool left it, and the
        agent waits for the model."""
        tree = await self._context.record_tree(self._turn.trees)
        call.hash = await trio.to_thread.run_sync(self._writer.put_reported, call, tree)
        self._writer.forget_terminals()

    async def end(self, answer: Any, agent: str) -> None:
        """Ends the turn of a prompt that is answered, or given up (None)."""
        async with self._lock:
            turn = self._turn
            spent = self.spent(answer, agent) if answer else []
            for call in self._asked.values():
                earlier = {"earlier": call.earlier} if call.earlier else {}
                turn.updates.append({"permission": call.raw, **earlier})
            self._asked = {}
            for call in turn.records:
                if call.hash is None:
                    await self.tool_call_ended(call)
            for id in list(self._writer.terminals):
                if id not in self._writer.recorded:
                    put = self._writer.put_terminal
                    hash = await trio.to_thread.run_sync(put, id, {})
                    turn.records.append(ToolCall(hash=hash))
            if spent:
                uncounted = max(0, sum(spent) - self.tokens - sum(turn.tokens))
                output = min(spent[1], uncounted)
                turn.tokens = [turn.tokens[0] + uncounted - output, turn.tokens[1] + output]
            elif not self.tokens and not any(turn.tokens):
                turn.tokens = [self._used, 0]
            if not turn.is_empty():
                await self._end_turn()
            self._show_tools()

    def spent(self, answer: Any, agent: str) -> list[int]:
        """Returns the input and output tokens of an answered prompt; empty where its agent does
        not say."""
        usage = answer.usage
        if usage is None:
            return protocol.tokens(answer.field_meta)
        total = [max(0, usage.total_tokens - usage.output_tokens), usage.output_tokens]
        if not agent.startswith(CUMULATIVE):
            return total
        before = self._before
        self._before = total
        return [max(0, count - then) for count, then in zip(total, before, strict=True)]

    async def _end_turn(self) -> None:
        turn = self._turn
        self._turn = _Turn()
        self._pending = 0
        turn.tokens = [min(count, MAX_COUNT) for count in turn.tokens]
        self.tokens += sum(turn.tokens)
        if not turn.records:
            await self._context.record_tree(turn.trees)
        hash = await trio.to_thread.run_sync(self._put_turn, turn)
        self._turns.append(hash)
        self._writer.forget_terminals()
        await self._context.turn(hash)

    # -- nodes ----------------------------------------------------------------------------

    def detail(self, facts: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Digest:
        """Puts the session so far, with what is said of it; `blobs` become members of it."""
        turns = self._turns
        self._turns = []
        lone = self._lone
        self._lone = 0
        with self._store.batch() as batch:
            payload = {
                "agent": self._context.agent,
                "role": self._context.role,
                "turns": turns,
                "totalTokens": self.total_tokens,
                "durationMs": ms_since(self._started),
                "loneSurrogates": lone,
                **facts,
                **{name: batch.put(data).hash for name, data in blobs.items() if data},
            }
            return batch.put_known("react-session", payload)

    def _put_turn(self, turn: _Turn) -> str:
        updates = [*turn.updates, *self._lone_halves(turn)]
        if turn.plan is not None:
            is_more = turn.plan["entries"] != turn.entries
            if is_more or _rest(turn.plan, ("sessionUpdate", "entries")):
                updates.append(turn.plan)
        texts = {
            "thoughts": turn.thoughts.text(),
            "updates": as_json(updates) if updates else "",
            "otherSessions": as_json(turn.other_sessions) if turn.other_sessions else "",
        }
        with self._store.batch() as batch:
            payload = {
                "input": content.put(batch, turn.input),
                "output": content.put(batch, turn.said.text()),
                "toolCalls": [call.hash for call in turn.records],
                "tokens": dict(zip(("input", "output"), turn.tokens, strict=True)),
                "latencyMs": ms_since(turn.begin),
                "plan": turn.entries,
                **turn.trees,
                **{name: content.put(batch, text) for name, text in texts.items() if text},
            }
            return recorded_state.put_turn(batch, payload).hash

    def _lone_halves(self, turn: _Turn) -> list[dict[str, Any]]:
        """Returns the texts that hold half a character alone, as they came but joined: a secret may
        be spread over chunks."""
        updates = []
        for kind, text in ((MESSAGE, turn.said), (THOUGHT, turn.thoughts)):
            if count := text.lone_count():
                self._lone += count
                block = {"type": "text", "text": text.raw()}
                updates.append({"sessionUpdate": kind, "content": block})
        return updates


def _rest(value: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Returns the members of an object that have a value, but for the known ones."""
    return {
        name: member for name, member in value.items() if name not in known and member is not None
    }
