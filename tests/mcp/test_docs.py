"""docs/mcp.md: its example runs, its lines start a server, and it names every tool."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from casfs.mcp import reading, writing
from casfs.store.store import Store
from tests.support import doc_examples

PAGE = Path(__file__).resolve().parents[2] / "docs/mcp.md"
TEXT = PAGE.read_text("utf-8")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ['PATH']}")


def test_the_example_runs(disk_store: Store) -> None:
    doc_examples.run(PAGE, {"__name__": "mcp", "STORE": str(disk_store.root)})


async def test_the_set_up_starts_a_server(disk_store: Store) -> None:
    one, other = (
        json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", TEXT, re.M | re.S)
    )
    server = one["mcpServers"]["casfs"]
    command = [server["command"], *server["args"]]
    assert other["mcp"]["casfs"]["command"] == command
    env = {"CASFS_STORE": str(disk_store.root)}
    started = StdioServerParameters(command=command[0], args=command[1:], env=env)
    async with Client(stdio_client(started)) as client:
        assert len((await client.list_tools()).tools) == len(reading.TOOLS)


def test_it_names_every_tool() -> None:
    named = set(re.findall(r"`([a-z_]+)`", TEXT))
    assert {*reading.TOOLS, *writing.TOOLS} <= named
