"""Clients of the MCP server: in this process, over stdio, over HTTP."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

from casfs.mcp.reading import Reading
from casfs.mcp.server import Server

CASFS = [sys.executable, "-W", "error", "-P", "-m", "casfs"]
TIMEOUT_S = 60


class Agent:
    """What an agent does with a server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **given: Any) -> dict[str, Any]:
        """Calls a tool; returns the JSON of its result."""
        found = await self.client.call_tool(tool, given)
        assert not found.is_error, found.content
        value: dict[str, Any] = found.structured_content
        return value

    async def fault(self, tool: str, **given: Any) -> str:
        """Calls a tool that fails; returns what it says."""
        found = await self.client.call_tool(tool, given)
        assert found.is_error, found.structured_content
        (said,) = found.content
        assert "\n" not in said.text
        return str(said.text)

    async def tools(self) -> set[str]:
        return {one.name for one in (await self.client.list_tools()).tools}


@asynccontextmanager
async def connected(tools: Reading, mode: str = "auto") -> AsyncIterator[Agent]:
    """Yields an agent of a server in this process."""
    async with Client(Server(tools), mode=mode) as client:
        yield Agent(client)


@asynccontextmanager
async def spoken(
    root: Path, *options: str, errors: Path, cwd: Path | None = None, **env: str
) -> AsyncIterator[Agent]:
    """Yields an agent of a real `casfs mcp`, which it starts; stderr goes to the file `errors`."""
    command = [*CASFS, "--store", str(root), "mcp", *options]
    started = StdioServerParameters(command=command[0], args=command[1:], env=env, cwd=cwd)
    with errors.open("w") as file:
        async with Client(stdio_client(started, errlog=file)) as client:
            yield Agent(client)


@contextmanager
def serving(root: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Starts `casfs mcp --http`; yields its URL and token. It ends without a word on stderr."""
    errors = root.parent / "mcp.err"
    command = [*CASFS, "--store", str(root), "mcp", "--http", *options]
    with errors.open("wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, errors.read_text()
        token = process.stdout.readline().decode().removeprefix("Authorization: Bearer ")
        yield line.decode().strip(), token.strip()
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(TIMEOUT_S)
        process.stdout.close()
    assert (code, errors.read_text()) == (0, "")
