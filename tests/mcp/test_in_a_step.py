"""An agent in a step of a called thread, with `mcp: true`: it needs no shell to know its caller."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.summary import content_text
from casfs.threads.threads import ENDED, SUSPENDED, ThreadId
from engine.workflow import registry as workflows
from tests.support.acp import DONE, Script
from tests.support.engine import ONE, daemon, rule, shell, until, workflow

CALLER = workflow(
    [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")], "caller", a=None, b=None
)


def test_it_reads_the_callers_context_and_puts_content(disk_store: Store, tmp_path: Path) -> None:
    calls = [["context", {}], ["cas_put", {"text": "Found by MCP."}], ["read_thread", {}]]
    script = Script(tmp_path, [{"tools": calls}, DONE])
    argv = [sys.executable, "-m", "tests.mcp.agent", str(script.file)]
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    child = {"name": "acp", "config": {"argv": argv, "env": env, "mcp": True}}
    call = {"workflow": "sample", "agents": {"a": child}, "input": "Look."}
    said = shell("echo 'The lamp is in the cellar.'; printf '```json\\n{}\\n```\\n'")
    root = disk_store.root
    for definition in (ONE, CALLER):
        workflows.add(disk_store, definition)
    with daemon(root):
        agents = {
            "a": {"name": "command", "config": said},
            "b": {"name": "workflow", "config": call},
        }
        asked = {"workflow": "caller", "input": "Find the lamp.", "agents": agents}
        id = ThreadId(daemon_socket.request(root, "start", **asked)["id"])
        until(lambda: threads.get(disk_store, id).status in (ENDED, SUSPENDED), "the end")
    caller = threads.get(disk_store, id)
    assert caller.status == ENDED, caller.fields.get("reason")
    (called,) = (one for one in threads.list_threads(disk_store) if one.id != id)
    (step,) = threads.backwards(disk_store, called)
    lines = content_text(disk_store, step.payload["content"]).splitlines()
    context, put, own = (json.loads(line) for line in lines[:3])
    assert (context["thread"], context["caller"]) == (called.id, id)
    assert "Find the lamp." in context["text"]
    assert "The lamp is in the cellar." in context["text"]
    assert disk_store.node(put["hash"]).payload["text"] == "Found by MCP."
    assert (own["id"], own["intent"]["role"]) == (called.id, "a")
