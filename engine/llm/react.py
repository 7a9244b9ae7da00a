"""The reactor: a model, tools, and a record of every call (seed 001 phase 5, seed 002).

One call of the model is a `react-turn`, one use of a tool a `react-tool-call`; each is put
as soon as it is over and told to the engine, so it can be watched. The texts of a turn are
what was *new* in it: the conversation before it stands in the turns before it, and a
session costs what was said, not its square. The totals are sums of what the server counted.

Two modes, as models differ. `native`: the model has `tool_calls`, and an answer without any
is its report. `json`: every answer is one action, a JSON object that the server forces to
fit a schema, and the action `finish` carries the report and the meta; so a model that knows
nothing of tools can still not say anything else. In both, the last turn that the config
allows can only report.

The conversation lives in `context.conversation`: a correction is its next turn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFailed, AgentResult
from casfs.agents.prompt import Prompt
from casfs.digest import Digest
from casfs.errors import CasfsError, Failed, Invalid
from casfs.store import Store
from engine import content
from engine.llm import client, response_schema, tools
from engine.llm.client import Endpoint, Message
from engine.llm.sandbox import Settings
from engine.llm.stream import Reply, ToolCall
from engine.llm.tools import Tool, ToolContext

NATIVE, JSON = "native", "json"
FINISH = "finish"
DEFAULT_MAX_TURNS = 40
PROTOCOL = (
    "Answer with one JSON object at a time: a short `thought`, and an `action` with the name of "
    "a `tool` and its `arguments`. You will be shown the tool's result. When you are done, use "
    "the tool `finish`: `report` says in words what you did, `meta` holds the facts asked for."
)
LAST_TURN_NOTICE = "This is your last turn: use no more tools, report now."


@dataclass(frozen=True)
class Options:
    """How a reactor works: `names`: tools, None for all; `turns`: calls of the model at most;
    `longest`: characters of a string in forced JSON."""

    mode: str = NATIVE
    turns: int = DEFAULT_MAX_TURNS
    names: list[str] | None = None
    strict: bool = False
    longest: int | None = None
    shell: Settings = field(default_factory=Settings)


class ReactSession:
    """The record of one try, and the conversation that goes on through all tries of a step."""

    def __init__(self, context: AgentContext, form: bool = True, more: Sequence[str] = ()) -> None:
        """`form`: tell the model how the meta is written; `more`: for the system prompt."""
        self._context = context
        self._turns: list[str] = []
        self._tokens = 0
        self._begin = time.monotonic()
        self.messages: list[Message] = context.conversation.setdefault("messages", [])
        self._known = len(self.messages)  # how many stand in earlier turns
        prompt = context.prompt
        if self.messages and prompt.correction:
            self.say("user", prompt.correction_text())
        else:
            self._open(prompt, form, more)

    def _open(self, prompt: Prompt, form: bool, more: Sequence[str]) -> None:
        self.messages.clear()
        self._known = 0
        self.say("system", "\n\n".join([prompt.system.strip(), *more]))
        self.say("user", prompt.user_message(form))

    def say(self, role: str, text: str, **more: Any) -> None:
        self.messages.append({"role": role, "content": text, **more})

    async def heard(self, reply: Reply, calls: Sequence[str] = ()) -> None:
        """Record a turn: what was new before it, the reply, the tool calls that it led to."""
        new = "\n\n".join(map(_shown, self.messages[self._known :]))
        store = self._context.store
        hash = await trio.to_thread.run_sync(put_turn, store, new, reply, calls)
        self._turns.append(hash)
        self._tokens += reply.input_tokens + reply.output_tokens
        more = {"tool_calls": [_asked(call) for call in reply.calls]} if reply.calls else {}
        self.say("assistant", reply.text, **more)
        self._known = len(self.messages)
        await self._context.turn(hash)

    async def tool_call(self, name: str, arguments: str, result: str, begin: float) -> str:
        duration = round((time.monotonic() - begin) * 1000)

        def put() -> str:
            with self._context.store.batch() as batch:
                given, got = content.put(batch, arguments), content.put(batch, result)
                payload = {"name": name or "?", "arguments": given, "result": got}
                return batch.put_node("react-tool-call", {**payload, "durationMs": duration}).hash

        return await trio.to_thread.run_sync(put)

    def detail(self) -> Digest:
        """Put the session as far as it has come."""
        payload = {
            "agent": self._context.agent,
            "role": self._context.role,
            "turns": list(self._turns),
            "totalTokens": self._tokens,
            "durationMs": round((time.monotonic() - self._begin) * 1000),
        }
        return self._context.store.put_node("react-session", payload)

    async def result(self, output: str, artifacts: Sequence[str] = ()) -> AgentResult:
        detail = await trio.to_thread.run_sync(self.detail)
        return AgentResult(output, detail, tuple(dict.fromkeys(artifacts)))

    async def failed(self, error: CasfsError) -> AgentFailed:
        """The error with what there is of the session as its detail."""
        detail = await trio.to_thread.run_sync(self.detail)
        return AgentFailed(str(error), detail.hash)


def put_turn(store: Store, new: str, reply: Reply, calls: Sequence[str]) -> str:
    """Put a `react-turn`. `new`: what was said since the turn before."""
    with store.batch() as batch:
        payload = {
            "input": content.put(batch, new),
            "output": content.put(batch, _said(reply)),
            "toolCalls": list(calls),
            "tokens": {"input": reply.input_tokens, "output": reply.output_tokens},
            "latencyMs": reply.latency_ms,
        }
        return batch.put_node("react-turn", payload).hash


async def answer(
    context: AgentContext,
    endpoint: Endpoint,
    structured: bool,
    strict: bool = False,
    longest: int | None = None,
) -> AgentResult:
    """One call without tools. `structured`: the answer is the meta, and nothing else."""
    session = ReactSession(context, form=not structured)
    form = response_schema.portable(context.prompt.schema, longest=longest)
    schema = form if structured else None
    try:
        reply = await client.complete(endpoint, session.messages, schema=schema, strict=strict)
    except CasfsError as error:
        raise await session.failed(error) from error
    await session.heard(reply)
    return await session.result(_block(reply.text) if structured else reply.text)


async def react(context: AgentContext, endpoint: Endpoint, options: Options) -> AgentResult:
    """Let a model work with tools until it reports. Raises AgentFailed with its session."""
    bench = ToolContext(context, options.shell)
    offered = tools.available_tools(context, options.names)
    loop = _json if options.mode == JSON else _native
    more = [PROTOCOL, _described(offered)] if options.mode == JSON else []
    session = ReactSession(context, form=options.mode != JSON, more=more)
    try:
        output = await loop(session, bench, offered, endpoint, options)
    except CasfsError as error:
        raise await session.failed(error) from error
    return await session.result(output, bench.made)


async def _native(
    session: ReactSession,
    bench: ToolContext,
    offered: list[Tool],
    endpoint: Endpoint,
    options: Options,
) -> str:
    for turn in range(1, options.turns + 1):
        last = turn == options.turns
        if last and turn > 1:
            session.say("user", LAST_TURN_NOTICE)
        given = [] if last else [tool.form for tool in offered]
        reply = await client.complete(endpoint, session.messages, tools=given)
        if last or not reply.calls:
            await session.heard(reply)
            return reply.text
        await _call_all(session, bench, offered, reply)
    raise Failed(f"no report within {options.turns} turns")


async def _call_all(
    session: ReactSession, bench: ToolContext, offered: list[Tool], reply: Reply
) -> None:
    """Use the tools that a reply asks for, one after the other, and record the turn."""
    results, calls = [], []
    for call in reply.calls:
        begin = time.monotonic()
        result = await tools.call_tool(bench, offered, call.name, call.arguments)
        calls.append(await session.tool_call(call.name, call.arguments, result, begin))
        results.append((call.id, result))
    await session.heard(reply, calls)
    for id, result in results:
        session.say("tool", result, tool_call_id=id)


async def _json(
    session: ReactSession,
    bench: ToolContext,
    offered: list[Tool],
    endpoint: Endpoint,
    options: Options,
) -> str:
    meta = bench.context.prompt.schema
    for turn in range(1, options.turns + 1):
        last = turn == options.turns
        if last and turn > 1:
            session.say("user", LAST_TURN_NOTICE)
        given = [] if last else [tool.form for tool in offered]
        schema = response_schema.action_schema(given, FINISH, meta, options.longest)
        reply = await client.complete(
            endpoint, session.messages, schema=schema, strict=options.strict
        )
        try:
            name, arguments = _action(reply)
        except Invalid as error:
            await session.heard(reply)
            session.say("user", f"error: {error}")
            continue
        if name == FINISH:
            await session.heard(reply)
            return _report(arguments)
        await _call_one(session, bench, offered, reply, name, json.dumps(arguments))
    raise Failed(f"no report within {options.turns} turns")


async def _call_one(
    session: ReactSession,
    bench: ToolContext,
    offered: list[Tool],
    reply: Reply,
    name: str,
    arguments: str,
) -> None:
    begin = time.monotonic()
    result = await tools.call_tool(bench, offered, name, arguments)
    call = await session.tool_call(name, arguments, result, begin)
    await session.heard(reply, [call])
    session.say("user", f"Result of {name}:\n{result}")


def _action(reply: Reply) -> tuple[str, Any]:
    """Name and arguments. Raises Invalid for what is no action."""
    if reply.cut:
        raise Invalid("your answer was cut off; be shorter")
    try:
        action = json.loads(reply.text)["action"]
        return str(action["tool"]), action["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Invalid("your answer is not an action in JSON") from None


def _report(arguments: Any) -> str:
    """The output of an agent whose last action was `finish`: the extractor finds its block."""
    given = arguments if isinstance(arguments, Mapping) else {}
    meta = json.dumps(given.get("meta"), ensure_ascii=False, indent=2)
    return f"{given.get('report', '')}\n\n{_block(meta)}".lstrip()


def _block(text: str) -> str:
    """A fenced block, which JSON cannot end early: no line of it begins with the fence."""
    return f"```json\n{text.strip()}\n```\n"


def _described(offered: list[Tool]) -> str:
    lines = [
        f"- {tool.name}: {tool.description} Arguments: {json.dumps(tool.parameters)}"
        for tool in offered
    ]
    return "\n".join(["The tools:", *lines])


def _asked(call: ToolCall) -> dict[str, Any]:
    """A tool call as the conversation repeats it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _shown(message: Message) -> str:
    return f"[{message['role']}]\n{message['content']}"


def _said(reply: Reply) -> str:
    """A reply as text; tool calls, which stand beside it in the turn, only by name."""
    names = [f"[calls {call.name}]" for call in reply.calls]
    return "\n".join([reply.text, *names] if reply.text else names)
