"""The SDK's server, with the tools and resources of a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar
from urllib.parse import quote

import trio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.types import CallToolResult, Resource, TextContent, ToolAnnotations
from pydantic import ValidationError

from casfs.errors import CasfsError, NotFound, Refused
from casfs.mcp import reading, writing
from casfs.mcp.reading import Reading, Value
from casfs.mcp.writing import Writing
from casfs.system import interruption
from casfs.system.safe_text import UNSAFE, escape
from casfs.version import VERSION

READ_LIMIT_S = 30.0  # of one call
WRITE_LIMIT_S = 600.0
WORKERS = 8  # calls that run at once
MAX_LISTED = 20  # threads, and checkpoints
ABOUT = (
    "casfs keeps what agents did: threads are runs of workflows, whose steps have prompts, outputs"
    " and trees of files. Begin with list_threads or search; in a step, with context."
)
T = TypeVar("T")


class Server(MCPServer[Any]):
    def __init__(self, tools: Reading) -> None:
        super().__init__("casfs", version=VERSION, instructions=ABOUT, log_level="WARNING")
        self._tools = tools
        self._limiter = trio.CapacityLimiter(WORKERS)
        for name in [*reading.TOOLS, *(writing.TOOLS if isinstance(tools, Writing) else ())]:
            self._add(name, getattr(tools, name), name in writing.TOOLS)
        for name, uri, read in (
            ("thread", "thread/{id}", lambda id: tools.read_thread(id)),
            ("step", "thread/{id}/step/{step}", lambda id, step: tools.read_step(id, int(step))),
            ("node", "node/{hash}", lambda hash: tools.cas_get(hash)),
            ("tree", "tree/{rev}/{+path}", lambda rev, path: tools.read_path(f"{rev}:{path}")),
        ):
            self.resource(f"casfs://{uri}", name=name)(self._reader(read))

    async def _run(self, work: Callable[[], T], limit_s: float) -> T:
        """Runs blocking work in a worker thread. Work that is cancelled, or takes too long, is
        given up: it ends at its next check. Raises Refused, and what the work raises."""

        def run() -> T:
            with interruption.interruptible(trio.from_thread.check_cancelled):
                return work()

        with trio.move_on_after(limit_s):
            limiter = self._limiter
            return await trio.to_thread.run_sync(run, limiter=limiter, abandon_on_cancel=True)
        raise Refused(f"this took longer than {limit_s:g} s and was given up; ask for less at once")

    # -- tools ----------------------------------------------------------------------------

    def _add(self, name: str, function: Callable[..., Value], writes: bool) -> None:
        @wraps(function)
        async def tool(**arguments: Any) -> CallToolResult:
            limit_s = WRITE_LIMIT_S if writes else READ_LIMIT_S
            try:
                return _result(await self._run(partial(function, **arguments), limit_s))
            except CasfsError as error:
                said = [TextContent(text=escape(str(error)))]
                return CallToolResult(content=list(said), is_error=True)

        hints = ToolAnnotations(
            read_only_hint=not writes and name != "cas_put", destructive_hint=name == "restore"
        )
        about = " ".join((function.__doc__ or "").split())
        self.add_tool(tool, name, None, about, hints, structured_output=False)

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """As the SDK's, but the faults of arguments are one line, and unknown ones are refused."""
        tools = {tool.name: tool.input_schema["properties"] for tool in await self.list_tools()}
        known = tools.get(name, arguments)
        if other := [argument for argument in arguments if argument not in known]:
            raise ToolError(f"{escape(other[0])}: no such argument; there are {', '.join(known)}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            faults = error.__cause__.errors(include_url=False, include_input=False)
            texts = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
            raise ToolError(escape("; ".join(texts), one_line=True)) from None

    # -- resources ------------------------------------------------------------------------

    def _reader(self, read: Callable[..., Value | str | bytes]) -> Callable[..., Any]:
        @wraps(read)
        async def reader(**arguments: str) -> str | bytes:
            try:
                content = await self._run(partial(read, **arguments), READ_LIMIT_S)
            except (CasfsError, ValueError) as error:
                kind = ResourceNotFoundError if isinstance(error, NotFound) else ResourceError
                raise kind(escape(str(error))) from None
            return _json(content) if isinstance(content, dict) else content

        return reader

    async def list_resources(self) -> list[Resource]:
        """Returns the newest threads and checkpoints."""

        def listed() -> list[tuple[str, str]]:
            threads = self._tools.list_threads(limit=MAX_LISTED)["threads"]
            marks = self._tools.list_checkpoints(limit=MAX_LISTED)["checkpoints"]
            named = [(f"thread/{thread['id']}", thread["task"] or "") for thread in threads]
            return named + [(f"tree/{mark['revision']}/", mark["message"]) for mark in marks]

        return [
            Resource(uri=f"casfs://{quote(path, '/@')}", name=path, description=escape(text))
            for path, text in await self._run(listed, READ_LIMIT_S)
        ]


def _result(value: Value) -> CallToolResult:
    """Returns the JSON, and for models its `text` with the rest of the JSON below."""
    value = json.loads(_json(value))
    other_fields = {name: field for name, field in value.items() if name != "text"}
    texts = [escape(value["text"])] if "text" in value else []
    content = [TextContent(text=text) for text in [*texts, _json(other_fields)]]
    return CallToolResult(content=list(content), structured_content=value)


def _json(value: Any) -> str:
    """Returns JSON without controls; what is not UTF-8 in paths is `?`."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
