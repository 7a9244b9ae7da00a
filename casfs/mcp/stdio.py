"""Serving an agent over stdin and stdout, with an answer to every request that has an id."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any, cast

import trio
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_PARAMS, ErrorData, JSONRPCError

from casfs.mcp.server import Server

LONE = "a string has half of a surrogate pair; send the whole pair"


async def serve(server: Server) -> None:
    """Serves until the end of stdin."""
    # Children read the null device, as where the SDK opens stdin itself.
    # A worker thread may still wait for a line when this ends: its descriptor stays open.
    wire = open(os.dup(0), encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    lines = _Lines(trio.wrap_file(wire))
    lowlevel = server._lowlevel_server
    async with stdio_server(stdin=cast(Any, lines)) as (requests, answers):
        lines.answers = answers
        await lowlevel.run(requests, answers, lowlevel.create_initialization_options())


class _Lines:
    """The lines of stdin, without requests that the SDK drops in silence: those are answered."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines
        self.answers: Any = None

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._lines:
            fault = _fault(line)
            if fault is None:
                yield line
            else:
                await self.answers.send(SessionMessage(fault))


def _fault(line: str) -> JSONRPCError | None:
    """Returns the answer to a request with a lone surrogate."""
    if "\\ud" not in line.lower():
        return None
    try:
        request = json.loads(line)
        json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        id = request.get("id") if isinstance(request, dict) else None
        if isinstance(id, int) or (isinstance(id, str) and id.isascii()):
            error = ErrorData(code=INVALID_PARAMS, message=LONE)
            return JSONRPCError(jsonrpc="2.0", id=id, error=error)
    except (ValueError, RecursionError):
        pass
    return None
