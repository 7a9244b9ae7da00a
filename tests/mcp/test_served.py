"""Real servers: `casfs mcp` over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from casfs.store.store import Store
from tests.support.engine import Cli
from tests.support.helpers import put_tree
from tests.support.mcp import CASFS, Agent, serving, spoken
from tests.support.thread_example import make_thread

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


async def test_over_stdio(disk_store: Store, tmp_path: Path) -> None:
    thread = make_thread(disk_store)
    thread.step("planner", "Said.")
    errors = tmp_path / "errors"
    own = {
        "CASFS_STORE": str(disk_store.root), "CASFS_THREAD": thread.id,
        "CASFS_SECRETS": "KEY", "KEY": "s3cret-value",
    }  # fmt: skip
    async with spoken(disk_store.root, errors=errors, **own) as agent:
        assert (await agent.call("read_step"))["text"] == "Said."
        context = await agent.call("context")
        assert (context["thread"], context["caller"]) == (thread.id, None)
        hash = (await agent.call("cas_put", text="the key s3cret-value"))["hash"]
        assert disk_store.node(hash).payload["text"] == "the key $KEY"
        assert "restore" not in await agent.tools()
    assert errors.read_text() == ""


def test_stdout_carries_protocol_only_and_the_end_of_stdin_ends_it(disk_store: Store) -> None:
    lines = [INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    lines += [{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}]
    lone = {"name": "search", "arguments": {"text": "half \ud83d"}}
    lines += [{"jsonrpc": "2.0", "id": "three", "method": "tools/call", "params": lone}]
    text = "".join(json.dumps(one) + "\n" for one in lines) + "no JSON\n"
    with subprocess.Popen(
        [*CASFS, "--store", str(disk_store.root), "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write(text)
        server.stdin.flush()
        answers: dict[object, Any] = {}
        while not {2, "three"} <= set(answers):  # the end of stdin cancels what is asked
            one = json.loads(server.stdout.readline())
            answers[one.get("id")] = one
        server.stdin.close()
        answers |= {one.get("id"): one for one in map(json.loads, server.stdout)}
    assert server.returncode == 0
    assert answers[1]["result"]["serverInfo"]["name"] == "casfs"
    assert "half of a surrogate pair" in answers["three"]["error"]["message"]
    assert "search" in {one["name"] for one in answers[2]["result"]["tools"]}


async def test_what_it_may_write_is_the_current_directory_unless_it_is_told(
    disk_store: Store, tmp_path: Path
) -> None:
    tree = put_tree(disk_store, {b"a": b"x"})
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    for options, inside, outside in (
        ((), here, there),
        (("--dir", str(there)), there, here),
        (("--dir", str(here), "--dir", str(there)), there, tmp_path),
    ):
        given = disk_store.root, "--allow-write", *options
        async with spoken(*given, errors=tmp_path / "errors", cwd=here) as agent:
            target = inside / f"new{len(options)}"
            await agent.call("restore", tree=tree, directory=str(target))
            assert (target / "a").read_text() == "x"
            said = await agent.fault("restore", tree=tree, directory=str(outside / "new"))
            assert "is outside of" in said
    assert not (tmp_path / "new").exists()


def test_a_signal_ends_it_while_it_waits_for_its_client(disk_store: Store) -> None:
    command = [*CASFS, "--store", str(disk_store.root), "mcp"]
    for number in (signal.SIGINT, signal.SIGTERM):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(INITIALIZE) + "\n")
            process.stdin.flush()
            assert "serverInfo" in process.stdout.readline()
            process.send_signal(number)
            assert process.wait(60) == -number


def test_over_http(disk_store: Store) -> None:
    """The client runs under asyncio: under trio it leaves streams of events to the collector."""

    async def talk(url: str, token: str, mode: str) -> None:
        bearer = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=bearer) as sending:
            transport = streamable_http_client(url, http_client=sending)
            async with Client(transport, mode=mode) as client:
                agent = Agent(client)
                hash = (await agent.call("cas_put", text="by HTTP"))["hash"]
                assert disk_store.node(hash).payload["text"] == "by HTTP"
                assert "resume_thread" not in await agent.tools()

    with serving(disk_store.root) as (url, token):
        assert (disk_store.root / "mcp.json").stat().st_mode & 0o777 == 0o600
        for mode in ("auto", "legacy"):
            asyncio.run(talk(url, token, mode))
    with serving(disk_store.root) as again:
        assert again == (url, token), "configured clients go on"


def test_a_request_without_the_token_or_of_another_site_is_refused(disk_store: Store) -> None:
    with serving(disk_store.root) as (url, token):
        good = {"Authorization": f"Bearer {token}"}

        def ask(method: str = "POST", path: str = "/mcp", **more: str) -> int:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
            try:
                sent = {**HEADERS, **{name.replace("_", "-"): one for name, one in more.items()}}
                connection.request(method, path, json.dumps(INITIALIZE), sent)
                return connection.getresponse().status
            finally:
                connection.close()

        assert ask(**good) == 200
        assert ask() == 401
        assert ask(Authorization=f"Bearer {token}x") == 401
        assert ask(Authorization=token) == 401
        assert ask(Cookie=f"token={token}") == 401
        assert ask("GET", f"/mcp?token={token}") == 401
        assert ask(**good, Host="evil.example") == 403
        assert ask(**good, Host="127.0.0.1.evil.example:80") == 403
        assert ask(**good, Host="localhost:1") == 200, "a forwarded port"
        assert ask(**good, Origin="http://evil.example") == 401
        assert ask(**good, Origin="null") == 401
        assert ask("DELETE") == 401
        assert ask("POST", "/other", **good) == 404


def test_what_the_command_line_refuses(cli: Cli, tmp_path: Path) -> None:
    assert "no store at" in cli("--store", str(tmp_path / "none"), "mcp", code=3).err
    for wrong in (["--dir", "."], ["--port", "1"]):
        assert "--dir goes with --allow-write, --port with" in cli("mcp", *wrong, code=2).err
    refused = cli("mcp", "--allow-write", "--dir", "/", code=4).err
    assert "refusing to record the root or home directory" in refused
    (cli.root / "format").write_text("casfs 9\n")
    assert "has format 'casfs 9'" in cli("mcp", code=4).err


@pytest.mark.parametrize(
    ("missing", "options", "extra"),
    [("mcp", (), "mcp"), ("pydantic", (), "mcp"), ("hypercorn", ("--http",), "mcp,web")],
)
def test_without_the_extra_one_line_names_it(
    cli: Cli, missing: str, options: tuple[str, ...], extra: str
) -> None:
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from casfs.cli.main import main
main()
"""
    command = [*CASFS[:1], "-c", code, "--store", str(cli.root), "mcp", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"casfs: no module {missing}; run `pip install 'casfs-store[{extra}]'`\n"
