"""A thread that really runs, seen in a real mount: its turns while they come, what failed
beside what did not, and the threads that it called."""

from __future__ import annotations

import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from casfs.checkpoints import revisions
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from engine.workflow import registry as workflows
from tests.support.engine import ONE, STATUS, daemon, loop, rule, says, until, workflow
from tests.support.model_server import Say, served, status, text, tool_calls
from tests.support.programs import needs_device
from tests.support.served import Mount

pytestmark = needs_device
TURNS = 11  # more than a record names
DONE = '```json\n{"status": "done"}\n```'


def start(store: Store, agents: dict[str, Any]) -> str:
    asked = {"workflow": "sample", "input": "Go.", "agents": agents}
    return str(daemon_socket.request(store.root, "start", **asked)["id"])


def grep(words: str, where: Path) -> list[str]:
    """The files below a directory that have the words, as grep names them."""
    done = subprocess.run(["grep", "-rlF", words, "."], cwd=where, capture_output=True, text=True)
    return sorted(done.stdout.split())


def test_a_step_is_seen_while_it_runs_and_what_failed_before_it(mount: Mount) -> None:
    """The first try is refused by the server after a turn, the second goes on for a while."""
    go_on = threading.Event()

    def late(handler: BaseHTTPRequestHandler) -> None:
        go_on.wait(60)
        text(DONE)(handler)

    put = [tool_calls(("cas_put", f'{{"text": "needle {n}"}}')) for n in range(TURNS)]
    script: list[Say] = [tool_calls(("cas_put", '{"text": "lost"}')), status(400, "no"), *put, late]
    definition = workflow(ONE["moderator"], a=STATUS)
    definition["roles"]["a"]["policy"] = {"retries": 1}
    workflows.add(mount.store, definition)
    with served(*script) as model, daemon(mount.store.root):
        config = {"baseUrl": model.url, "model": "m"}
        try:
            id = start(mount.store, {"a": {"name": "react", "config": config}})
            running = mount.path / "threads" / id / "running"
            until(lambda: len(model.asked) == 2 + TURNS + 1, "the last turn")
            assert (running / "role").read_text() == "a\n"
            assert (running / "attempt").read_text() == "2\n"
            assert sorted(os.listdir(running / "turns")) == [f"{n:04}" for n in range(TURNS)]
            assert grep("needle 7", running / "turns/0007/toolCalls") != []
            assert grep("needle 0", running / "turns") != []
        finally:
            go_on.set()
        daemon_socket.request(mount.store.root, "wait", id=id)
    where = mount.path / "threads" / id
    until(lambda: not running.exists(), "the end of running/")
    assert (where / "status").read_text() == "succeeded\n"
    step = where / "steps/000001-a"
    assert (step / "output.md").read_text().rstrip() == DONE
    assert len(os.listdir(step / "detail/turns")) == TURNS + 1
    assert grep("lost", step / "attempts") != []
    assert grep("lost", step / "detail") == []


def test_each_turn_shows_its_tree(mount: Mount) -> None:
    write = ("write_file", '{"path": "b.txt", "text": "b\\n"}')
    look = ("read_file", '{"path": "b.txt"}')
    workflows.add(mount.store, ONE)
    with served(tool_calls(write), tool_calls(look), text(DONE)) as model, daemon(mount.store.root):
        config = {"baseUrl": model.url, "model": "m"}
        asked = {"workflow": "sample", "input": "Go.", "turn_trees": True}
        asked["agents"] = {"a": {"name": "react", "config": config}}
        id = daemon_socket.request(mount.store.root, "start", **asked)["id"]
        daemon_socket.request(mount.store.root, "wait", id=id)
        turns = mount.path / "threads" / id / "steps/000001-a/detail/turns"
        assert (turns / "0000/workspace/b.txt").read_text() == "b\n"
        assert "+b\n" in (turns / "0000/changes.diff").read_text()
        assert (turns / "0001/workspace").resolve() == (turns / "0000/workspace").resolve()
        assert not (turns / "0001/changes.diff").exists()
        by_hash = mount.path / "nodes" / revisions.turns(mount.store, steps(mount, id)["detail"])[0]
        assert (by_hash / "workspace/b.txt").read_text() == "b\n"


def steps(mount: Mount, id: str) -> dict[str, Any]:
    return threads.step_at(mount.store, threads.get(mount.store, threads.ThreadId(id)), 1).payload


def test_who_called_and_who_was_called(mount: Mount) -> None:
    workflows.add(mount.store, {**loop(1), "name": "inner"})
    rules = [rule("__start__", "a"), rule("a", "__end__")]
    workflows.add(mount.store, workflow(rules, a=None))
    inner = {"a": {"name": "command", "config": says({}, "echo I am the child.")}}
    with daemon(mount.store.root):
        agent = {"name": "workflow", "config": {"workflow": "inner", "agents": inner}}
        id = start(mount.store, {"a": agent})
        daemon_socket.request(mount.store.root, "wait", id=id)
    where = mount.path / "threads" / id
    (child,) = os.listdir(where / "children")
    output = (where / "children" / child / "steps/000001-a/output.md").read_text()
    assert output.startswith("I am the child.\n")
    parent = where.parent / child / "parent"
    assert (parent / "thread.json").read_bytes() == (where / "thread.json").read_bytes()
