"""A real model plays all roles of a workflow: real HTTP, real streaming, real grammar.

What it says is poor and is not looked at. That the thread ends, that every step has a meta
that fits its role-schema, and that the figures are the server's own is the test. Only with
`--llm`: the packages are 130 MB, and a thread takes a minute.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.store.graph import walk
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from engine.output.parser import role_schema
from engine.workflow import registry as workflows
from tests.support import real_model
from tests.support.engine import daemon

pytestmark = pytest.mark.llm
ROOT = Path(__file__).resolve().parents[3]
WORKFLOW = ROOT / "engine/workflows/solve-issue.json"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with real_model.served(real_model.install(ROOT / ".venv/llm")) as base:
            yield base
    except real_model.Missing as error:
        pytest.skip(f"no model: {error}")


@pytest.fixture
def workspace(disk_store: Store, tmp_path: Path) -> str:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "add.py").write_text("def add(a, b):\n    return a - b\n")
    with disk_store.batch() as batch:
        return walker.snapshot(batch, folder, IgnoreRules()).node.hash


def config(url: str, **more: Any) -> dict[str, Any]:
    given = {"baseUrl": url, "model": real_model.MODEL, "temperature": 0, "maxTokens": 400}
    return {**given, "timeoutS": 300, "longestString": 40, **more}


def played(store: Store, workspace: str, agents: dict[str, Any]) -> threads.Thread:
    root = store.root
    workflows.add(store, json.loads(WORKFLOW.read_text("utf-8")))
    with daemon(root):
        task = "add() in add.py subtracts. Correct it."
        asked = {"workflow": "solve-issue", "input": task, "agents": agents}
        made = daemon_socket.request(root, "start", workspace=workspace, **asked)
        daemon_socket.request(root, "wait", id=made["id"])
    return threads.get(store, made["id"])


@pytest.mark.timeout(400)  # the model computes on the processors that the other tests use
@pytest.mark.parametrize("turns", [1, 3])
def test_solve_issue(turns: int, url: str, disk_store: Store, workspace: str) -> None:
    react = config(url, mode="json", maxTurns=turns, tools=["read_file", "list_dir"])
    agents = {
        "preparer": {"name": "react", "config": react},
        "developer": {"name": "llm", "config": config(url, reply="json")},
        "submitter": {"name": "react", "config": react},
    }
    thread = played(disk_store, workspace, agents)
    assert (thread.status, thread.record["reason"]) == (ENDED, None)
    assert thread.record["returnCode"] == 0
    flow = workflows.load(disk_store, workflows.find(disk_store, "solve-issue"))
    steps = [node.payload for node in threads.backwards(disk_store, thread)][::-1]
    assert [step["role"] for step in steps] == ["preparer", "developer", "submitter"]
    total = 0
    for step in steps:
        role_schema(flow.roles[step["role"]].schema).check(step["meta"])
        session = disk_store.node(step["detail"], "react-session").payload
        turns_ = [disk_store.node(turn, "react-turn").payload for turn in session["turns"]]
        counted = [turn["tokens"] for turn in turns_]
        assert all(one["input"] > 50 and one["output"] > 5 for one in counted)
        assert session["totalTokens"] == sum(one["input"] + one["output"] for one in counted)
        total += session["totalTokens"]
    assert thread.record["spent"]["tokens"] >= total
    list(walk(disk_store, [thread.hash]))  # nothing is missing
