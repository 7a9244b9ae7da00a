"""The scripted agent of ACP, which also calls tools of the MCP server that its session is given.

`python -m tests.mcp.agent SCRIPT`; the action {"tools": [[name, arguments], …]} says what each
returned, as a line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trio
from mcp import Client, StdioServerParameters, stdio_client

from tests.support.acp_agent import Agent


class McpAgent(Agent):
    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "session/new":
            (self.server,) = params["mcpServers"]
        return super().answer(method, params)

    def do_tools(self, calls: list[tuple[str, dict[str, Any]]]) -> None:
        env = {one["name"]: one["value"] for one in self.server["env"]}
        command, arguments = self.server["command"], self.server["args"]
        started = StdioServerParameters(command=command, args=arguments, env=env)

        async def ask() -> list[Any]:
            async with Client(stdio_client(started), mode="legacy") as client:
                return [(await client.call_tool(*one)).structured_content for one in calls]

        for found in trio.run(ask):
            self.do_say(json.dumps(found) + "\n")


if __name__ == "__main__":
    McpAgent(json.loads(Path(sys.argv[1]).read_text())).serve()
