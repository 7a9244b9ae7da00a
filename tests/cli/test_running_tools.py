"""A tool call of an agent is shown while it runs: mount, command line, web."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from casfs.agents.secrets import Secrets
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import live_output
from engine.workflow import registry as workflows
from tests.support.acp import DONE, Script
from tests.support.engine import DEADLINE, ONE, Cli, daemon, until
from tests.support.fuse import read
from tests.support.helpers import put_tree
from tests.support.model_server import served, text, tool_calls

TOKEN = "0123456789abcdef" * 2
TITLE = "Read <b>calc.py</b>\x1b[2J\nnow"
LINE = "- Read <b>calc.py</b>\\x1b[2J now (read, in_progress)"


def test_a_tool_is_shown_while_it_runs(cli: Cli, opened: Store, tmp_path: Path) -> None:
    go = tmp_path / "go"
    begun: dict[str, Any] = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Read",
                             "status": "pending"}  # fmt: skip
    named = {"sessionUpdate": "tool_call_update", "toolCallId": "1", "title": TITLE,
             "kind": "read", "status": "in_progress"}  # fmt: skip
    done = {"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}
    actions = [{"update": begun}, {"update": named}, {"wait": str(go)}, {"update": done}, DONE]
    script = Script(tmp_path, actions, new={"models": {"currentModelId": "local/x"}})
    workflows.add(opened, ONE)
    with daemon(cli.root):
        agents = {"a": {"name": "acp", "config": script.config()}}
        made = daemon_socket.request(
            cli.root, "start", workflow="sample", input="Do it.", agents=agents
        )
        id = str(made["id"])

        def shown() -> Any:
            return cli("thread", "show", id, "--json").json["tools"]

        tools = until(lambda: (found := shown()) and "kind" in found[0] and found)
        assert tools == [{"id": "1", "title": TITLE, "kind": "read", "status": "in_progress"}]
        assert f"       {LINE}\n" in cli("thread", "show", id).text
        assert (
            read(opened, f"threads/{id}/running/tools").decode()
            == LINE.replace("\\x1b", "\x1b") + "\n"
        )
        argv = [sys.executable, "-m", "casfs", "--store", str(cli.root)]
        argv += ["thread", "log", id, "--follow"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "... 000001 a started\n"
            assert process.stdout.readline() == LINE + "\n"
            go.touch()
            process.stdout.read()
            assert process.wait(DEADLINE) == 0
        assert "now (read, completed)" in cli("thread", "log", id, "--turns").text
        assert shown() == []
        assert "\nagents: a=acp (scripted 1.0, local/x)\n" in cli("thread", "show", id).text
        (agent,) = cli("thread", "show", id, "--json").json["agents"].values()
        assert (agent["name"], agent["model"]) == ("scripted 1.0", "local/x")
        assert list((cli.root / "live").iterdir()) == []


def test_it_shows_no_secret(tmp_path: Path) -> None:
    secret = "hunter22hunter22"
    title = "x" * (live_output.MAX_TOOL_CHARS - 8) + secret
    with live_output.recording(tmp_path, TOKEN, Secrets({"KEY": secret})) as live:
        live.show_tools([{"id": "1", "title": title, "kind": None, "status": secret}])
        (call,) = live_output.tools(tmp_path, TOKEN).calls
        assert "hunter" not in json.dumps(call)
        assert "kind" not in call
    assert live_output.tools(tmp_path, TOKEN).calls == []


def test_a_tool_of_react_is_shown_while_it_runs(cli: Cli, opened: Store) -> None:
    command = json.dumps({"command": "until [ -e go ]; do sleep 0.02; done"})
    workflows.add(opened, ONE)
    tree = put_tree(opened, {"a.txt": b"one\n"})
    says = tool_calls(("run_command", command)), text(DONE["say"])
    with served(*says) as model, daemon(cli.root):
        config = {"model": "m", "baseUrl": model.url, "allowShell": True}
        agents = {"a": {"name": "react", "config": config}}
        given = {"workflow": "sample", "input": "Do it.", "agents": agents, "workspace": tree}
        made = daemon_socket.request(cli.root, "start", **given)

        def shown() -> str:
            return cli("thread", "show", made["id"]).text

        until(lambda: "       - run_command (in_progress)\n" in shown())
        (where, *_) = (cli.root / "workspaces").rglob("a.txt")
        (where.parent / "go").touch()
        until(lambda: "(in_progress)" not in shown())
