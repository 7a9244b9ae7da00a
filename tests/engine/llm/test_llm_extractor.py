"""How a step gets its meta: from a block, from the extractor model, from a correction."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from casfs.errors import Failed
from casfs.store.graph import walk
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import attempt_details, threads
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from engine.llm.client import Endpoint
from engine.llm.llm_extractor import Extractor, from_settings
from engine.runtime.run_services import RunServices
from engine.runtime.thread_run import ThreadRun
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.engine import STATUS, daemon, loop, spawn, steps
from tests.support.model_server import Model, Say, served, status, text

DONE = '```json\n{"status": "done"}\n```'
META = '{"status": "done"}'
REF = {
    "name": "ref",
    "type": "object",
    "properties": {"part": {"type": "string", "format": "cas_ref"}},
    "additionalProperties": False,
}
MISSING_HASH = "0" * 64


async def played(
    store: Store, agent: Model, extractor: Model | None, schema: Any = STATUS, **more: Any
) -> Thread:
    """Run a thread of one step whose agent is a model."""
    hash, _ = workflows.add(store, loop(1, schema))
    bound = {"a": Binding("llm", {"baseUrl": agent.url, "model": "m"})}
    thread = lifecycle.create(store, ThreadRequest(hash, "Do it.", bound))
    found = Extractor(Endpoint(extractor.url, "x", attempts=1), **more) if extractor else None
    return await ThreadRun(RunServices(store, extractor=found), thread, dict(os.environ))()


def extraction(store: Store, thread: Thread) -> str:
    (step,) = steps(store, thread)
    assert thread.status == ENDED
    return str(step["extraction"])


async def test_a_block_needs_no_model(disk_store: Store) -> None:
    with served(text(DONE)) as agent, served() as extractor:
        assert extraction(disk_store, await played(disk_store, agent, extractor)) == "block"


async def test_a_model_finds_what_no_block_says(disk_store: Store) -> None:
    with served(text("I am done.")) as agent, served(text(META, 40, 9)) as extractor:
        thread = await played(disk_store, agent, extractor)
    assert extraction(disk_store, thread) == "model"
    (step,) = steps(disk_store, thread)
    assert step["meta"] == {"status": "done"}
    assert step["attempts"] == []
    content = disk_store.node(step["content"], "content").payload
    assert content["text"] == "I am done."
    (turn,) = content["artifacts"]
    payload = disk_store.node(turn, "react-turn").payload
    assert payload["tokens"] == {"input": 40, "output": 9}
    assert disk_store.node(payload["output"], "content").payload["text"] == META
    (body,) = extractor.asked
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["status"]
    assert "I am done." in body["messages"][1]["content"]
    assert "Say how it went." in body["messages"][1]["content"]
    assert thread.record["spent"]["tokens"] == 15 + 49


@pytest.mark.parametrize(
    "script",
    [[status(500, "down")], [text('{"status": "odd"}')], [text("no JSON")], [status(400)]],
)
async def test_else_the_agent_corrects_itself(script: list[Say], disk_store: Store) -> None:
    logged: list[str] = []

    def log(event: str, **fields: Any) -> None:
        logged.append(f"{event} {fields['error']}")

    with served(text("Done."), text(DONE)) as agent, served(*script) as extractor:
        thread = await played(disk_store, agent, extractor, log=log)
    assert extraction(disk_store, thread) == "correction"
    assert [line.split()[0:2] for line in logged] == [["extractor", "failed"]]
    first, second = (request["messages"] for request in agent.asked)
    assert second[: len(first)] == first
    assert [message["role"] for message in second[len(first) :]] == ["assistant", "user"]
    assert "no fenced JSON block and no front matter" in second[-1]["content"]
    (step,) = steps(disk_store, thread)
    assert len(step["attempts"]) == 1


async def test_without_a_model_there_are_corrections_at_once(disk_store: Store) -> None:
    with served(text("Done."), text("Really."), text(DONE)) as agent:
        thread = await played(disk_store, agent, None)
    assert extraction(disk_store, thread) == "correction"
    assert len(agent.asked[2]["messages"]) == len(agent.asked[0]["messages"]) + 4


async def test_a_model_may_read_a_correction_too(disk_store: Store) -> None:
    said = [text("Hm."), text("I am done.")]
    with served(*said) as agent, served(text("{}"), text(META)) as extractor:
        thread = await played(disk_store, agent, extractor)
    assert extraction(disk_store, thread) == "correction"


async def test_a_digest_that_is_nowhere_is_corrected_then_suspended(disk_store: Store) -> None:
    made_up = f"```json\n{json.dumps({'part': MISSING_HASH})}\n```"
    with served(*[text(made_up)] * 3) as agent, served() as extractor:
        thread = await played(disk_store, agent, extractor, REF)
    assert thread.status == SUSPENDED
    assert f"{MISSING_HASH} is not in the store" in thread.record["reason"]
    details = [attempt_details.detail(disk_store, one) for one in thread.record["attempts"]]
    assert [disk_store.node(one or "").type for one in details] == ["react-session"] * 3
    assert "is not in the store" in agent.asked[1]["messages"][-1]["content"]


async def test_a_digest_may_be_corrected(disk_store: Store) -> None:
    part = disk_store.put(b"part").hash
    script = [text(f"```json\n{json.dumps({'part': hash})}\n```") for hash in (MISSING_HASH, part)]
    with served(*script) as agent:
        thread = await played(disk_store, agent, None, REF)
    (step,) = steps(disk_store, thread)
    assert step["extraction"] == "correction"
    assert part in set(walk(disk_store, [threads.get(disk_store, thread.id).hash]))


def settings(**more: str) -> dict[str, str]:
    return {"extractor.url": "", "extractor.model": "", "extractor.key_env": "", **more}


def test_no_model_no_extractor() -> None:
    assert from_settings(settings(), {}) is None


def test_the_settings() -> None:
    given = {"extractor.url": "http://x/v1", "extractor.model": "m", "extractor.key_env": "KEY"}
    found = from_settings(settings(**given), {"KEY": "hunter2-hunter2"})
    assert found is not None
    assert found.endpoint == Endpoint("http://x/v1", "m", "hunter2-hunter2")
    assert found.key_env == "KEY"
    with pytest.raises(Failed, match=r"extractor\.key_env names KEY, which is not set"):
        from_settings(settings(**given), {})
    with pytest.raises(Failed, match=r"extractor\.url is not"):
        from_settings(settings(**{"extractor.model": "m"}), {})


def test_the_daemon_has_what_the_settings_say(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = disk_store.root
    monkeypatch.setenv("CASFS_EXTRACTOR_MODEL", "m")
    refused = spawn("--store", root, "daemon")
    assert refused.returncode == 1
    assert "extractor.model is set and extractor.url is not" in refused.stderr
    workflows.add(disk_store, loop(1, STATUS))
    with served(text("I am done.")) as agent, served(text(META)) as extractor:
        monkeypatch.setenv("FINDER", "hunter2-hunter2")
        settings = f'url = "{extractor.url}"\nkey_env = "FINDER"\n'
        (root / "config.toml").write_text(f"[extractor]\n{settings}")
        bound = {"a": {"name": "llm", "config": {"baseUrl": agent.url, "model": "m"}}}
        with daemon(root):
            task = "Go, hunter2-hunter2."
            made = daemon_socket.request(root, "start", workflow="sample", input=task, agents=bound)
            daemon_socket.request(root, "wait", id=made["id"])
    assert extractor.headers[0]["authorization"] == "Bearer hunter2-hunter2"
    for _, hash, _ in disk_store.blobs.iterate():
        assert b"hunter2" not in disk_store.get(hash)
    assert extraction(disk_store, threads.get(disk_store, made["id"])) == "model"
