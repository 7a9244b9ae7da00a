"""Compaction while a thread runs: its tokens count, its failure does not stop the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import CompactPolicy, ThreadRequest
from engine.threads.record import Budget
from engine.workflow import registry as workflows
from tests.engine.runtime.test_policies import spender
from tests.support.engine import carry_on, loop, says, shell, steps


def start(store: Store, summariser: Binding, length: int = 4, **more: Any) -> Thread:
    flow, _ = workflows.add(store, loop(length))
    bound = {"a": Binding("command", says({"long": "x" * 400}))}
    policy = CompactPolicy(100, summariser)
    return lifecycle.create(store, ThreadRequest(flow, "x", bound, compact=policy, **more))


@pytest.mark.parametrize("script", ["exit 1", "true", "echo >&2; kill -9 $$"])
async def test_a_failing_summariser_leaves_the_step_its_whole_history(
    script: str, disk_store: Store
) -> None:
    said: list[dict[str, Any]] = []

    def log(event: str, **fields: Any) -> None:
        said.append({"event": event, **fields})

    made = start(disk_store, Binding("command", shell(script)))
    ended = await carry_on(disk_store, made, log=log)
    assert (ended.status, len(steps(disk_store, ended))) == (ENDED, 4)
    warned = [one for one in said if one["event"] == "not compacted"]
    assert [one["index"] for one in warned] == [3, 4]
    assert all(one["error"].startswith("__compact__: ") for one in warned)


async def test_the_tokens_of_a_summariser_count(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = "return AgentResult('short', detail)"
    summariser = spender(tmp_path, monkeypatch, then)
    made = start(disk_store, summariser, budget=Budget(tokens=50))
    suspended = await carry_on(disk_store, made)
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, "budget")
    assert suspended.record["spent"]["tokens"] == 60


async def test_the_tokens_of_a_failing_summariser_count(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summariser = spender(tmp_path, monkeypatch, "raise AgentFailed('no', detail.hash)")
    made = start(disk_store, summariser, 3)
    ended = await carry_on(disk_store, made)
    assert (ended.status, ended.record["spent"]["tokens"]) == (ENDED, 60)
