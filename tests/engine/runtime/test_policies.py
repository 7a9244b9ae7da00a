"""Policies, and why a thread is suspended: retries, time, budgets, people, unknown outcomes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from casfs import canonical
from casfs.backend.protocols import MAX_RECORD_BYTES, targets
from casfs.directories.projects import MAX_FIELDS_BYTES
from casfs.errors import Conflict
from casfs.store.graph import walk
from casfs.store.store import Store
from casfs.threads import attempt_details, threads
from casfs.threads.threads import ENDED, RUNNING, SUSPENDED, Thread
from engine.moderator.decision import Next
from engine.threads import lifecycle, record, suspension, transitions
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.threads.record import Budget
from engine.threads.suspension import Suspension
from engine.workflow import registry as workflows
from tests.support.engine import (
    ONE,
    STATUS,
    carry_on,
    resumed,
    role,
    rule,
    says,
    shell,
    steps,
    workflow,
)

SESSION = {"role": "a", "turns": [], "totalTokens": 60, "durationMs": 1}


def with_policy(policy: dict[str, Any], schema: Any = None) -> dict[str, Any]:
    rules = [rule("__start__", "a"), rule("a", "a", "$count($steps) < 2"), rule("a", "__end__")]
    made = workflow(rules)
    made["roles"] = {"a": {**role("a", schema), "policy": policy}}
    return made


def start(store: Store, definition: dict[str, Any], agent: Binding, **more: Any) -> Thread:
    hash, _ = workflows.add(store, definition)
    return lifecycle.create(store, ThreadRequest(hash, "Do it.", {"a": agent}, **more))


def command(config: dict[str, Any]) -> Binding:
    return Binding("command", config)


# -- policy -------------------------------------------------------------------------------


async def test_a_failed_try_is_repeated_as_often_as_the_role_says(
    disk_store: Store, tmp_path: Path
) -> None:
    side = tmp_path / "side"
    script = f"echo >>{side}; [ $(wc -l <{side}) -ge 3 ] || {{ echo no >&2; exit 1; }}"
    made = start(disk_store, with_policy({"retries": 2}), command(says({}, script)))
    ended = await carry_on(disk_store, made)
    assert ended.status == ENDED
    first, second = steps(disk_store, ended)
    assert (len(first["attempts"]), second["attempts"]) == (2, [])
    codes = [disk_store.node(hash).payload["exitCode"] for hash in first["attempts"]]
    assert codes == [1, 1]


async def test_then_it_suspends(disk_store: Store) -> None:
    made = start(disk_store, with_policy({"retries": 2}), command(says({}, "exit 1")))
    suspended = await carry_on(disk_store, made)
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, record.FAILURE)
    assert (len(suspended.record["attempts"]), suspended.record["intent"]["attempt"]) == (3, 3)


async def test_a_role_may_take_only_so_long(disk_store: Store) -> None:
    script = "echo so far; echo oh >&2; sleep 600"
    made = start(disk_store, with_policy({"timeoutS": 1}), command(shell(script)))
    suspended = await carry_on(disk_store, made)
    assert (suspended.record["cause"], suspended.record["reason"]) == (
        record.TIMEOUT,
        "a: took longer than 1 s",
    )
    (trace,) = suspended.record["attempts"]
    detail = disk_store.node(trace, "command-detail").payload
    said = [disk_store.get(detail[stream]) for stream in ("stdout", "stderr")]
    assert said == [b"so far\n", b"oh\n"]


async def test_a_try_that_left_nothing_is_told_of_all_the_same(
    disk_store: Store, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    made = start(disk_store, with_policy({"retries": 1}), command({"argv": [str(program)]}))
    suspended = await carry_on(disk_store, made)
    texts = [
        disk_store.node(hash, "content").payload["text"] for hash in suspended.record["attempts"]
    ]
    why = f"failed: a: cannot run {program}: No such file or directory"
    assert texts == [f"attempt 1 of a {why}", f"attempt 2 of a {why}"]
    program.write_text("#!/bin/sh\nprintf '%s\\n' '```json' '{}' '```'\n")
    program.chmod(0o755)
    ended = await resumed(disk_store, suspended)
    first, second = steps(disk_store, ended)
    assert (first["attempts"], second["attempts"]) == (suspended.record["attempts"], [])
    assert set(first["attempts"]) <= set(walk(disk_store, [ended.hash]))


async def test_a_try_that_spends_the_budget_is_the_last(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = spender(tmp_path, monkeypatch, "raise AgentFailed('no', detail.hash)")
    made = start(disk_store, with_policy({"retries": 9}), agent, budget=Budget(tokens=100))
    suspended = await carry_on(disk_store, made)
    assert suspended.record["reason"] == "a: no; budget: 120 of 100 tokens are spent"
    details = [attempt_details.detail(disk_store, one) for one in suspended.record["attempts"]]
    assert [disk_store.node(one or "").type for one in details] == ["react-session"] * 2


async def test_an_unknown_outcome_is_left_to_a_person_where_the_role_says_so(
    disk_store: Store, tmp_path: Path
) -> None:
    side = tmp_path / "side"
    made = start(
        disk_store, with_policy({"unknown": "suspend"}), command(says({}, f"echo >>{side}"))
    )
    transitions.begin(disk_store, made, Next("a"), 0, 100, 1)
    suspended = await carry_on(disk_store, made)
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, record.UNKNOWN)
    assert "outcome unknown" in suspended.record["reason"]
    assert not side.exists()
    (trace,) = suspended.record["attempts"]
    assert "outcome unknown" in disk_store.node(trace, "content").payload["text"]
    ended = await resumed(disk_store, suspended)
    assert [step["attempts"] for step in steps(disk_store, ended)] == [[trace], []]
    assert (ended.status, side.read_text()) == (ENDED, "\n\n")


@pytest.mark.parametrize(
    "policy", [{}, {"retries": 0}, {"timeoutS": 0}, {"unknown": "again"}, {"more": 1}, 5]
)
def test_a_policy_that_says_nothing_or_nonsense_is_refused(policy: Any, store: Store) -> None:
    from engine.workflow.definition import check

    assert any(".policy" in error for error in check(with_policy(policy)).errors)


# -- budgets ------------------------------------------------------------------------------


def spender(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    then: str = "return AgentResult('```json\\n{}\\n```', detail)",
) -> Binding:
    """An agent whose detail says that it took 60 tokens."""
    info = tmp_path / "spender-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spender\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[casfs.agents]\nspender = policies_spender\n")
    (tmp_path / "policies_spender.py").write_text(
        "from casfs.agents import AgentFailed, AgentResult\n"
        "package_descriptor = {}\n"
        "def create_agent(config):\n"
        "    async def agent(context):\n"
        "        put = context.store.put_node\n"
        "        turn = put('content', {'text': f'turn {context.step}', 'artifacts': []})\n"
        "        for _ in range(20):\n"
        "            await context.turn(turn.hash)\n"
        f"        detail = put('react-session', {{**{SESSION!r}, 'agent': context.agent}})\n"
        f"        {then}\n"
        "    return agent\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "policies_spender", raising=False)
    return Binding("spender")


async def test_a_spent_budget_suspends_and_is_allowed_anew(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = spender(tmp_path, monkeypatch)
    flow = with_policy({"retries": 1})
    made = start(disk_store, flow, agent, budget=Budget(tokens=50))
    assert threads.start(disk_store, made).payload["budget"] == {"tokens": 50, "wallMs": None}
    suspended = await carry_on(disk_store, made)
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, record.BUDGET)
    assert suspended.record["reason"] == "budget: 60 of 50 tokens are spent"
    assert len(steps(disk_store, suspended)) == 1
    ended = await resumed(disk_store, suspended)
    assert (ended.status, ended.record["spent"]["tokens"]) == (ENDED, 60)
    assert len(steps(disk_store, ended)) == 2


async def test_running_time_is_a_budget_too(disk_store: Store) -> None:
    agent = command(shell("echo so far; sleep 600"))
    made = start(disk_store, ONE, agent, budget=Budget(wall_ms=1000))
    suspended = await carry_on(disk_store, made)
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, record.BUDGET)
    assert suspended.record["spent"]["wallMs"] >= 1000
    assert suspended.record["attempts"] == [], "no attempt has failed"
    paused = disk_store.node(suspended.intent["paused"], "content").payload
    (detail,) = paused["artifacts"]
    assert (
        disk_store.get(disk_store.node(detail, "command-detail").payload["stdout"]) == b"so far\n"
    )
    again = suspension.resume(disk_store, suspended)
    assert again.intent["paused"] == suspended.intent["paused"]


# -- a person -----------------------------------------------------------------------------


async def test_a_person_answers(disk_store: Store) -> None:
    flow = workflow(ONE["moderator"], a=STATUS)
    made = start(disk_store, flow, Binding("human", {"question": "Is it good?"}))
    suspended = await carry_on(disk_store, made)
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, "human")
    assert suspended.record["reason"] == "a: Is it good?"
    assert "# Task\n\nDo it." in disk_store.node(suspended.record["question"]).payload["text"]
    assert suspended.record["attempts"] == []
    with pytest.raises(Conflict, match="waits for an answer"):
        suspension.resume(disk_store, suspended)
    wrong = await carry_on(disk_store, suspension.resume(disk_store, suspended, '{"status": "?"}'))
    assert (wrong.status, wrong.record["cause"]) == (SUSPENDED, "human")
    assert "does not fit" in wrong.record["reason"]
    ended = await carry_on(disk_store, suspension.resume(disk_store, wrong, '{"status": "done"}'))
    (step,) = steps(disk_store, ended)
    assert step["meta"] == {"status": "done"}
    detail = disk_store.node(step["detail"], "human-detail").payload
    assert disk_store.node(detail["answer"]).payload["text"] == '{"status": "done"}'
    assert (ended.record["answer"], ended.record["question"]) == (None, None)


async def test_nobody_who_asked_nothing_is_answered(disk_store: Store) -> None:
    suspended = await carry_on(disk_store, start(disk_store, ONE, command(says({}, "exit 1"))))
    with pytest.raises(Conflict, match="has asked nothing"):
        suspension.resume(disk_store, suspended, "yes")


# -- the record ---------------------------------------------------------------------------


def test_a_record_with_everything_in_it_fits(store: Store) -> None:
    letter, long = "\U0001f525", "r" * 64
    hashes = [store.put(bytes([n])).hash for n in range(30)]
    made = start(store, ONE, command(says({})), key="k")
    now = transitions.begin(store, made, Next("a"), 0, 100, 1)
    other = transitions.cancel(store, start(store, ONE, command(says({}))))
    intent = record.new_intent(long, 10**6, 999, [other.id] * record.MAX_CALLS)
    intent |= {"pid": 4194304, "pidStart": 10**9, "resumed": True}
    for hash in hashes:
        intent = record.with_turn(intent, hash, lambda before: hashes[0])
    now = transitions.update_record(
        store,
        now,
        workflow="w" * 64,
        intent=intent,
        answer=hashes[0],
        compact=hashes[0],
        parent=made.id,
        children=[made.id] * threads.MAX_CHILDREN,
        fork={"thread": made.id, "step": 10**6},
        agents=hashes[0],
        spent={"tokens": 10**12, "wallMs": 10**12},
        **{threads.PROJECT: "p" * (MAX_FIELDS_BYTES - len(threads.PROJECT) - len('{"":""}'))},
        name="n" * 64,
        archived=True,
        pinned=True,
    )
    now = suspension.suspend(
        store, now, Suspension(letter * 5000, "child", hashes, question=hashes[0])
    )
    assert len(canonical.encode(dict(now.record))) <= MAX_RECORD_BYTES
    assert now.record["intent"]["turnCount"] == 30
    assert now.record["intent"]["turns"] == hashes[24:]


# -- turns --------------------------------------------------------------------------------


async def test_turns_are_noted_while_they_come_and_gone_with_the_step(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    noted = transitions.add_turn

    def turn(store: Store, thread: Thread, hash: str) -> Thread:
        moved = noted(store, thread, hash)
        counts.append(threads.get(store, thread.id).record["intent"]["turnCount"])
        return moved

    monkeypatch.setattr(transitions, "add_turn", turn)
    ended = await carry_on(disk_store, start(disk_store, ONE, spender(tmp_path, monkeypatch)))
    assert counts == list(range(1, 21))
    assert (ended.status, ended.record["intent"]) == (ENDED, None)


def test_every_turn_is_kept_however_many_there_are(store: Store) -> None:
    now = transitions.begin(store, start(store, ONE, command(says({}))), Next("a"), 0, 100, 1)
    done: list[str] = []
    for number in range(3 * record.MAX_TURNS + 2):
        done.append(store.put_node("content", {"text": f"{number}", "artifacts": []}).hash)
        now = transitions.add_turn(store, now, done[-1])
        assert threads.turns(store, now.record["intent"]) == done
        assert len(now.record["intent"]["turns"]) <= record.MAX_TURNS
    assert set(done) <= set(walk(store, targets(now.head)))
    suspended = suspension.suspend(store, now, Suspension("no luck"))
    assert threads.turns(store, suspended.record["intent"]) == []
    (trace,) = suspended.record["attempts"]
    assert set(done) <= set(walk(store, [trace]))


# -- keys, and the end of a name ----------------------------------------------------------


def test_an_idempotency_key_gives_the_same_thread(store: Store) -> None:
    first = start(store, ONE, command(says({})), key="one")
    assert start(store, ONE, command(says({})), key="one") == first
    assert start(store, ONE, command(says({})), key="two").id != first.id
    with pytest.raises(Conflict, match=first.id):
        start(store, ONE, command(says({"other": 1})), key="one")
    assert len(threads.list_threads(store)) == 2


def test_the_name_of_an_ended_thread_can_be_dropped(store: Store) -> None:
    made = start(store, ONE, command(says({})), key="one")
    with pytest.raises(Conflict, match="is queued"):
        lifecycle.remove(store, made)
    lifecycle.remove(store, transitions.cancel(store, made))
    assert threads.list_threads(store) == []
    again = start(store, ONE, command(says({})), key="one")
    assert (again.status, again.id != made.id) == (RUNNING, True)
    assert json.dumps(dict(again.record))
