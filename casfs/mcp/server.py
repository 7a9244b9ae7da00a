"""The SDK's server, with the tools and resources of a store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar
from urllib.parse import quote

import trio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.types import CallToolResult, Completion, Resource, TextContent, ToolAnnotations
from pydantic import ValidationError

from casfs import threads
from casfs.checkpoints import checkpoint
from casfs.errors import CasfsError, NotFound, Refused
from casfs.mcp import reading, writing
from casfs.mcp.reading import Reading
from casfs.mcp.values import Value
from casfs.mcp.writing import Writing
from casfs.system import interruption
from casfs.system.safe_text import UNSAFE, escape
from casfs.version import VERSION

READ_LIMIT_S, WRITE_LIMIT_S = 30.0, 600.0  # of one call
WORKERS = 8  # calls that run at once
MAX_LISTED = 20  # threads, and checkpoints
MAX_COMPLETIONS = 100
JSON = "application/json"
ABOUT = """
casfs keeps what agents did: threads are runs of workflows, their steps have prompts, outputs and
trees of files. Start with list_threads or search; in a step, with context.
"""
T = TypeVar("T")


class Server(MCPServer[Any]):
    def __init__(self, tools: Reading) -> None:
        super().__init__("casfs", version=VERSION, instructions=ABOUT, log_level="WARNING")
        self._tools = tools
        self._limiter = trio.CapacityLimiter(WORKERS)
        writes = writing.TOOLS if isinstance(tools, Writing) else []
        for name in [*reading.TOOLS, *writes]:
            self._add(name, name in writes)
        self._add_resources()
        self.completion()(self._complete)  # type: ignore[no-untyped-call]

    # -- tools ----------------------------------------------------------------------------

    def _add(self, name: str, writes: bool) -> None:
        function = getattr(self._tools, name)
        limit_s = WRITE_LIMIT_S if writes else READ_LIMIT_S

        @wraps(function)
        async def tool(**given: Any) -> CallToolResult:
            try:
                return _result(await self._run(partial(function, **given), limit_s))
            except CasfsError as error:
                raise ToolError(escape(str(error))) from None

        hints = ToolAnnotations(
            read_only_hint=not writes and name != "cas_put",
            destructive_hint=name == "restore",
            open_world_hint=False,
        )
        description = " ".join(function.__doc__.split())
        self.add_tool(tool, name, None, description, hints, structured_output=False)

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """As the SDK's, but the faults of arguments are one line and unknown ones are refused."""
        tool = self._tool_manager.get_tool(name)
        known = arguments if tool is None else tool.parameters["properties"]
        if other := [one for one in arguments if one not in known]:
            raise ToolError(f"{escape(other[0])}: no such argument; there are {', '.join(known)}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                faults = error.__cause__.errors(include_url=False, include_input=False)
                texts = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in faults)
                raise ToolError("; ".join(texts)) from None
            raise

    async def _run(self, work: Callable[[], T], limit_s: float = READ_LIMIT_S) -> T:
        """Runs blocking work in a worker thread. Work that is cancelled, or takes too long, is
        given up: it ends at its next check. Raises Refused, and what the work raises."""
        gone = threading.Event()

        def check() -> None:
            if gone.is_set():
                raise Refused("the call was cancelled")

        def run() -> T:
            with interruption.interruptible(check):
                return work()

        with trio.move_on_after(limit_s):
            try:
                limiter = self._limiter
                return await trio.to_thread.run_sync(run, limiter=limiter, abandon_on_cancel=True)
            finally:
                gone.set()
        raise Refused(f"this took longer than {limit_s:g} s and was given up; ask for less at once")

    # -- resources ------------------------------------------------------------------------

    def _add_resources(self) -> None:
        @self.resource("casfs://thread/{id}", mime_type=JSON)
        async def thread(id: str) -> str | bytes:
            """A thread: state, task, its newest steps."""
            return await self._read(lambda: self._tools.read_thread(id))

        @self.resource("casfs://thread/{id}/step/{step}", mime_type=JSON)
        async def step(id: str, step: int) -> str | bytes:
            """A step: output, meta, artifacts."""
            return await self._read(lambda: self._tools.read_step(id, step))

        @self.resource("casfs://node/{hash}", mime_type=JSON)
        async def node(hash: str) -> str | bytes:
            """A node: type and payload."""
            return await self._read(lambda: self._tools.cas_get(hash))

        @self.resource("casfs://tree/{revision}/{+path}")
        async def tree(revision: str, path: str) -> str | bytes:
            """A file of a tree, or the entries of a directory as JSON."""
            return await self._read(lambda: self._tools.read_path(f"{revision}:{path}"))

    async def _read(self, work: Callable[[], Value | str | bytes]) -> str | bytes:
        try:
            found = await self._run(work)
        except CasfsError as error:
            kind = ResourceNotFoundError if isinstance(error, NotFound) else ResourceError
            raise kind(escape(str(error))) from None
        return _json(found) if isinstance(found, dict) else found

    async def list_resources(self) -> list[Resource]:
        """Returns the newest threads and checkpoints."""
        found = await self._run(lambda: self._tools.list_threads(limit=MAX_LISTED))
        marks = await self._run(lambda: self._tools.list_checkpoints(limit=MAX_LISTED))
        named = [(f"thread/{one['id']}", one["task"]) for one in found["threads"]]
        named += [(f"tree/{one['revision']}/", one["message"]) for one in marks["checkpoints"]]
        return [
            Resource(uri=f"casfs://{quote(path, '/@')}", name=path, description=escape(text or ""))
            for path, text in named
        ]

    async def _complete(self, ref: Any, argument: Any, context: Any) -> Completion:
        """Completes ids of threads, and names of checkpoints."""
        store = self._tools.store
        known = await self._run(lambda: threads.list_threads(store))
        found = [str(one.id) for one in reversed(known)]
        if argument.name == "revision":
            found = [*await self._run(lambda: checkpoint.names(store)), *found]
        is_known = argument.name in ("id", "revision")
        values = [one for one in found if is_known and one.startswith(argument.value)]
        return Completion(values=values[:MAX_COMPLETIONS], total=len(values))


def _result(value: Value) -> CallToolResult:
    """Returns a result: the JSON, and for models text with the rest of the JSON below it."""
    value = json.loads(_json(value))
    rest = {name: one for name, one in value.items() if name != "text"}
    texts = [escape(value["text"])] if "text" in value else []
    content = [TextContent(text=one) for one in [*texts, _json(rest)]]
    return CallToolResult(content=list(content), structured_content=value)


def _json(value: Any) -> str:
    """Returns JSON without controls; what is not UTF-8 in paths is `?`."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
