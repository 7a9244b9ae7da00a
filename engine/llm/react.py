"""The reactor: a loop of model calls and tool calls (seed 001 phase 5, seed 002).

Two modes, as models differ. `native`: the model has `tool_calls`, and an answer without any
is its report. `json`: every answer is one action, a JSON object that the server forces to
fit a schema, and the action `finish` carries the report and the meta; so a model without tool
calls cannot answer anything else. In both, the last turn that the config allows can only report.

`engine.llm.react_session` records the calls and holds the conversation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from casfs.agents import AgentContext, AgentResult
from casfs.errors import CasfsError, Failed, Invalid
from casfs.threads import live_output
from casfs.threads.live_output import LiveOutput
from engine.llm import client, response_schema, tools
from engine.llm.client import Endpoint
from engine.llm.react_session import ReactSession
from engine.llm.sandbox import Settings
from engine.llm.stream import Reply
from engine.llm.tools import Tool, Toolbox

NATIVE = "native"
JSON = "json"
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
    """`turns`: limit of model calls; `names`: of tools, None for all; `longest`: characters of a
    string in forced JSON."""

    mode: str = NATIVE
    turns: int = DEFAULT_MAX_TURNS
    names: list[str] | None = None
    strict: bool = False
    longest: int | None = None
    shell: Settings = field(default_factory=Settings)


async def answer(
    context: AgentContext,
    endpoint: Endpoint,
    structured: bool,
    strict: bool = False,
    longest: int | None = None,
) -> AgentResult:
    """Makes one model call without tools. `structured`: the answer is the meta alone. Raises
    AgentFailed with its session."""
    session = ReactSession(context, output_format=not structured)
    form = response_schema.portable(context.prompt.schema, longest=longest)
    schema = form if structured else None
    try:
        reply = await client.complete(endpoint, session.messages, schema=schema, strict=strict)
    except CasfsError as error:
        raise await session.failure(error) from error
    await session.record_turn(reply)
    return await session.result(_block(reply.text) if structured else reply.text)


async def react(context: AgentContext, endpoint: Endpoint, options: Options) -> AgentResult:
    """Runs the loop until the model reports. Raises AgentFailed with its session."""
    available = tools.available_tools(context, options.names)
    instructions = [PROTOCOL, _describe(available)] if options.mode == JSON else []
    begin = partial(ReactSession, context, options.mode != JSON, instructions)
    session = await trio.to_thread.run_sync(begin) if context.kept else begin()
    box = Toolbox(context, options.shell)
    try:
        with live_output.recording(context.store.root, context.run, context.secrets) as live:
            loop = _Loop(
                session, box, live=live, available=available, endpoint=endpoint, options=options
            )
            output = await (loop.json() if options.mode == JSON else loop.native())
    except CasfsError as error:
        raise await session.failure(error) from error
    return await session.result(output, box.artifacts)


@dataclass(frozen=True)
class _Loop:
    session: ReactSession
    toolbox: Toolbox
    live: LiveOutput
    available: list[Tool]
    endpoint: Endpoint
    options: Options

    def _turns(self) -> Iterator[bool]:
        """Yields whether a turn is the last, which the model is told. Raises Failed after it."""
        for turn in range(1, self.options.turns + 1):
            last = turn == self.options.turns
            if last and turn > 1:
                self.session.append("user", LAST_TURN_NOTICE)
            yield last
        raise Failed(f"no report within {self.options.turns} turns")

    async def _call(self, name: str, arguments: str) -> tuple[str, str]:
        """Runs a tool call; returns its result, and its record."""
        begin = time.monotonic()
        self.live.show_tools([{"id": str(begin), "title": name, "status": "in_progress"}])
        result = await tools.call_tool(self.toolbox, self.available, name=name, arguments=arguments)
        self.live.show_tools([])
        return result, await self.session.record_tool_call(name, arguments, result, begin)

    async def native(self) -> str:
        for last in self._turns():
            forms = [] if last else [tool.form for tool in self.available]
            reply = await client.complete(self.endpoint, self.session.messages, tools=forms)
            if last or not reply.calls:
                break
            done = [(call.id, *await self._call(call.name, call.arguments)) for call in reply.calls]
            results = [
                {"role": "tool", "content": text, "tool_call_id": id} for id, text, _ in done
            ]
            await self.session.record_turn(reply, [hash for _, _, hash in done], results)
        await self.session.record_turn(reply)
        return reply.text

    async def json(self) -> str:
        meta = self.toolbox.context.prompt.schema
        for last in self._turns():
            forms = [] if last else [tool.form for tool in self.available]
            schema = response_schema.action_schema(
                forms, FINISH, meta=meta, longest=self.options.longest
            )
            reply = await client.complete(
                self.endpoint, self.session.messages, schema=schema, strict=self.options.strict
            )
            try:
                name, arguments = _action(reply)
            except Invalid as error:
                await self.session.record_turn(reply)
                self.session.append("user", f"error: {error}")
                continue
            if name == FINISH:
                break
            result, call = await self._call(name, json.dumps(arguments))
            said = {"role": "user", "content": f"Result of {name}:\n{result}"}
            await self.session.record_turn(reply, [call], [said])
        await self.session.record_turn(reply)
        return _report(arguments)


def _action(reply: Reply) -> tuple[str, Any]:
    """Parses (name, arguments) of an action. Raises Invalid."""
    if reply.cut:
        raise Invalid("your answer was cut off; be shorter")
    try:
        action = json.loads(reply.text)["action"]
        return str(action["tool"]), action["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Invalid("your answer is not an action in JSON") from None


def _report(arguments: Any) -> str:
    """Returns the output of the action `finish`: the report and a block with the meta."""
    fields = arguments if isinstance(arguments, Mapping) else {}
    meta = json.dumps(fields.get("meta"), ensure_ascii=False, indent=2)
    return f"{fields.get('report', '')}\n\n{_block(meta)}".lstrip()


def _block(text: str) -> str:
    """Returns a fenced block. JSON cannot end it early: no line of it begins with the fence."""
    return f"```json\n{text.strip()}\n```\n"


def _describe(available: list[Tool]) -> str:
    lines = [
        f"- {tool.name}: {tool.description} Arguments: {json.dumps(tool.parameters)}"
        for tool in available
    ]
    return "\n".join(["The tools:", *lines])
