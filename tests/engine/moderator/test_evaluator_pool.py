"""The pool of processes that evaluate rules: killed, replaced, and sent everything once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import engine
from casfs.errors import Failed, Invalid
from casfs.store.store import Store
from casfs.threads import threads
from casfs.workspaces import desk
from engine.moderator import evaluator_pool
from engine.moderator.conditions import LocalEvaluator
from engine.moderator.decision import DecisionInput, Next, Rule, RuleFailed, decide
from engine.moderator.evaluator_pool import WorkerPool
from engine.workflow import registry as workflows
from tests.support.engine import (
    alive,
    daemon,
    kill,
    rule,
    says,
    spawn,
    start_thread,
    until,
    workflow,
)

ENDLESS = "($f := function($n) { $f($n + 1) }; $f(1))"
HUNG = (ENDLESS, "$sum([1..9000000])", "$contains('" + "a" * 60 + "!', /^(a+)+$/)")
DEVELOP = Path(engine.__file__).parent / "workflows" / "develop.json"


def step(role: str, **meta: Any) -> dict[str, Any]:
    return {"role": role, "meta": meta}


def thread(name: str, steps: int, text: str = "") -> DecisionInput:
    return DecisionInput(
        [step("a", n=n, text=f"{n}{text}") for n in range(steps)], {"depth": 0}, name
    )


def longer(context: DecisionInput, steps: int = 1) -> DecisionInput:
    more = [step("a", n=len(context.steps) + n) for n in range(steps)]
    return DecisionInput([*context.steps, *more], context.start, context.thread_id)


def received(pid: int) -> int:
    """Bytes that a process has read."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in lists for child in file.read_text().split()]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_pool, "EXPRESSION_CPU_S", 0.2)


async def test_nothing_is_started_before_it_is_needed() -> None:
    async with WorkerPool() as pool:
        rules: list[Rule] = [{"from": "a", "to": "b", "when": None}]
        assert await decide(rules, thread("t", 1), pool) == Next("b")
        assert pool.pids == []
        assert await pool.holds("$count(steps) = 2", thread("t", 2))
        (pid,) = pool.pids
        assert alive(pid)
    assert not alive(pid)


async def test_it_decides_what_this_process_would() -> None:
    rules: list[Rule] = json.loads(DEVELOP.read_text())["moderator"]
    phases = [{"hash": f"{n:02x}" * 32, "title": "t"} for n in range(2)]
    steps = [step("planner", status="planned", phases=phases)]
    for status in ("failed", "completed"):
        steps += [step("coder", completedPhase=one["hash"], status=status) for one in phases]
        steps += [step("reviewer", status="rejected"), step("reviewer", status="approved")]
        steps += [step("tester", status="failed"), step("tester", status="passed")]
    start = {"depth": 0}
    async with WorkerPool() as pool:
        for count in range(len(steps) + 1):
            context = DecisionInput(steps[:count], start, "t")
            assert await decide(rules, context, pool) == await decide(
                rules, context, LocalEvaluator()
            )


async def test_steps_are_sent_once() -> None:
    async with WorkerPool() as pool:
        context = thread("t", 300, "x" * 10_000)
        assert await pool.holds("$count(steps) = 300", context)
        (pid,) = pool.pids
        before = received(pid)
        assert before > 3_000_000
        for _ in range(10):
            context = longer(context)
            assert await pool.holds(f"$steps[-1].meta.n = {len(context.steps) - 1}", context)
        assert pool.pids == [pid]
        assert received(pid) - before < 10_000


async def test_other_steps_of_a_thread_are_noticed() -> None:
    """A step that was asked about and never recorded must not stay."""
    async with WorkerPool() as pool:
        context = thread("t", 3)
        assert await pool.holds("$count(steps) = 4", longer(context))
        other = DecisionInput([*context.steps, step("b")], context.start, "t")
        assert await pool.holds("$steps[-1].role = 'b'", other)
        assert await pool.holds(
            "$count(steps) = 2", DecisionInput(context.steps[:2], other.start, "t")
        )
        assert await pool.holds("start.depth = 7", DecisionInput(context.steps, {"depth": 7}, "t"))


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_pool, "WORKER_HISTORY_BYTES", 250_000)
    contexts = [thread(name, 10, "x" * 10_000) for name in "abc"]
    async with WorkerPool() as pool:
        for context in contexts:
            assert await pool.holds("$count(steps) = 10", context)
        (pid,) = pool.pids
        for context, new in zip(contexts[::-1], (False, False, True), strict=True):
            before = received(pid)
            assert await pool.holds("$count(steps) = 10", context)
            assert (received(pid) - before > 100_000) == new


async def test_a_thread_longer_than_the_bound_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_pool, "WORKER_HISTORY_BYTES", 1000)
    context = thread("t", 10, "x" * 10_000)
    async with WorkerPool() as pool:
        assert await pool.holds("$count(steps) = 10", context)
        before = received(pool.pids[0])
        assert await pool.holds("$count(steps) = 11", longer(context))
        assert received(pool.pids[0]) - before < 10_000


@pytest.mark.parametrize("when", HUNG)
@pytest.mark.usefixtures("hasty")
async def test_a_rule_without_an_end_is_stopped(when: str) -> None:
    rules: list[Rule] = [
        {"from": "a", "to": "b", "when": "false"},
        {"from": "a", "to": "c", "when": when},
        {"from": "a", "to": "d", "when": None},
    ]
    async with WorkerPool() as pool:
        decision = await decide(rules, thread("t", 1), pool)
        assert isinstance(decision, RuleFailed)
        assert decision.reason.startswith("moderator rule 1 (a to c, when ")
        assert "): stopped after 0.2 s: " in decision.reason
        assert pool.pids == []
        assert await pool.holds("$count(steps) = 1", thread("t", 1))


async def test_nobody_waits_for_rules_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_pool, "EXPRESSION_CPU_S", 300)
    async with WorkerPool() as pool:
        assert await pool.holds("true", thread("endless", 1))
        (pid,) = pool.pids
        over: list[str] = []

        async def endless(name: str, when: str) -> None:
            await pool.holds(when, thread(name, 1))
            over.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(endless, "endless", HUNG[0])
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(endless, "also", HUNG[2])
            nursery.start_soon(endless, "too", ENDLESS)
            for count in range(1, 20):
                assert await pool.holds(f"$count(steps) = {count}", thread("other", count))
            assert over == []
            assert alive(pid)
            assert pid not in pool.pids
            nursery.cancel_scope.cancel()
        assert not alive(pid)  # a thread that is cancelled takes its process along
        assert len(pool.pids) <= 1  # who waited may have taken the last one with him


async def test_more_questions_than_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_pool, "MAX_WORKERS", 2)
    monkeypatch.setattr(evaluator_pool, "SPAWN_DELAY_S", 0)
    monkeypatch.setattr(evaluator_pool, "STARTUP_ALLOWANCE_S", 0)
    done: list[int] = []
    async with WorkerPool() as pool:

        async def one(number: int) -> None:
            context = thread(f"t{number}", number)
            for _ in range(3):
                assert await pool.holds(f"$count(steps) = {number}", context)
            done.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(one, number)
        assert sorted(done) == list(range(12))
        assert 1 <= len(pool.pids) <= 2


async def test_what_is_not_needed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_pool, "SPAWN_DELAY_S", 0)
    monkeypatch.setattr(evaluator_pool, "STARTUP_ALLOWANCE_S", 0)
    others = set(children(os.getpid()))  # of tests that ran before
    async with WorkerPool() as pool:
        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(pool.holds, "$count([1..3000]) = 3000", thread("t", number))
        assert 1 <= len(pool.pids) <= evaluator_pool.MAX_IDLE_WORKERS
        assert set(pool.pids) == set(children(os.getpid())) - others


async def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async with WorkerPool() as pool:
        with monkeypatch.context() as patch:
            patch.setattr(evaluator_pool.sys, "executable", "/nowhere/python")
            with pytest.raises(Failed, match="cannot start a rule worker: No such file"):
                await pool.holds("true", thread("t", 1))
        assert await pool.holds("true", thread("t", 1))


async def test_a_process_that_died_is_replaced() -> None:
    lines: list[dict[str, Any]] = []

    def log(event: str, **fields: Any) -> None:
        lines.append({"event": event, **fields})

    async with WorkerPool(log) as pool:
        context = thread("t", 5)
        assert await pool.holds("$count(steps) = 5", context)
        (pid,) = pool.pids
        kill(pid)
        assert await pool.holds("$count(steps) = 6", longer(context))
        assert pool.pids != [pid]
        why = f"the process that evaluates rules ended ({-signal.SIGKILL})"
        assert lines == [{"event": "worker ended", "thread": "t", "pid": pid, "why": why}]


async def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_pool, "WORKER_MEMORY_BYTES", 128 << 20)
    monkeypatch.setattr(evaluator_pool, "EXPRESSION_CPU_S", 60)
    async with WorkerPool() as pool:
        assert await pool.holds("true", thread("other", 1))
        with pytest.raises(Invalid, match=r"^stopped: it needs more than 128 MiB of memory$"):
            await pool.holds("$length($pad('x', 900000000)) > 1", thread("t", 1))
        assert pool.pids == []
        assert await pool.holds("true", thread("t", 1))


async def test_the_memory_of_others_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process full of other threads' steps is replaced by an empty one."""
    monkeypatch.setattr(evaluator_pool, "WORKER_MEMORY_BYTES", 192 << 20)
    monkeypatch.setattr(evaluator_pool, "WORKER_HISTORY_BYTES", 1 << 40)
    async with WorkerPool() as pool:
        for name in "abcdef":
            context = DecisionInput([step("a", text=name * 40_000_000)], {}, name)
            assert await pool.holds("$count(steps) = 1", context)


async def test_what_the_process_is_left_with() -> None:
    """No descriptor of the daemon but its own pipe."""
    handle = os.open("/dev/null", os.O_RDONLY)
    try:
        async with WorkerPool() as pool:
            assert await pool.holds("true", thread("t", 0))
            (pid,) = pool.pids
            assert sorted(os.listdir(f"/proc/{pid}/fd"))[:3] == ["0", "1", "2"]
            assert len(os.listdir(f"/proc/{pid}/fd")) == 4  # and where its answers go
            assert os.getsid(pid) == pid
    finally:
        os.close(handle)


# -- where it is used --------------------------------------------------------------------


def test_a_rule_without_an_end_suspends_its_thread_alone(disk_store: Store) -> None:
    root = Path(disk_store.root)
    rules = [rule("__start__", "a"), rule("a", "a", ENDLESS), rule("a", "__end__")]
    workflows.add(disk_store, workflow(rules, "endless", a=None))
    ten = [rule("__start__", "a"), rule("a", "a", "$count(steps) < 10"), rule("a", "__end__")]
    workflows.add(disk_store, workflow(ten, "ten", a=None))
    agents = {"a": says({})}
    with daemon(root) as pid:
        stuck = start_thread(root, "endless", agents)
        ended = start_thread(root, "ten", agents)
        until(lambda: threads.get(disk_store, ended).status == threads.ENDED, "its end")
        until(lambda: threads.get(disk_store, stuck).status == threads.SUSPENDED, "a suspension")
        assert len(threads.steps(disk_store, threads.get(disk_store, ended))) == 10
        processes = children(pid)
        assert processes
    assert not any(map(alive, processes))
    found = threads.get(disk_store, stuck)
    assert found.record["reason"].startswith("moderator rule 1 (a to a, when ($f := function")
    assert "stopped after 1 s" in found.record["reason"]
    assert len(threads.steps(disk_store, found)) == 1  # the step itself is kept


def test_three_hung_rules_hold_up_nobody(disk_store: Store) -> None:
    """One second of the processor is what each may have; the others go on meanwhile."""
    root = Path(disk_store.root)
    for number, when in enumerate(HUNG):
        rules = [rule("__start__", "a", when), rule("__start__", "a"), rule("a", "__end__")]
        workflows.add(disk_store, workflow(rules, f"hung{number}", a=None))
    ten = [rule("__start__", "a"), rule("a", "a", "$count(steps) < 10"), rule("a", "__end__")]
    workflows.add(disk_store, workflow(ten, "ten", a=None))
    agents = {"a": says({})}
    with daemon(root):
        hung = [start_thread(root, f"hung{number}", agents) for number in range(len(HUNG))]
        ended = start_thread(root, "ten", agents)
        for id in (*hung, ended):
            until(lambda id=id: threads.get(disk_store, id).status != threads.RUNNING, "a rest")
    found = [threads.get(disk_store, id) for id in hung]
    assert [one.status for one in found] == [threads.SUSPENDED] * 3
    for one in found:
        assert one.record["cause"] == "rule"
        assert "moderator rule 0 (__start__ to a" in one.record["reason"]
        assert "stopped after 1 s: " in one.record["reason"]
    last = threads.get(disk_store, ended)
    assert last.status == threads.ENDED
    assert len(threads.steps(disk_store, last)) == 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_they_end_with_the_daemon(disk_store: Store, number: int) -> None:
    root = Path(disk_store.root)
    rules = [rule("__start__", "a", "true"), rule("a", "__end__")]
    workflows.add(disk_store, workflow(rules, "one", a=None))
    with daemon(root) as pid:
        id = start_thread(root, "one", {"a": says({})})
        until(lambda: threads.get(disk_store, id).status == threads.ENDED, "its end")
        processes = children(pid)
        assert processes
        os.kill(pid, number)
        until(lambda: not alive(pid), "the end of the daemon")
        until(lambda: not any(map(alive, processes)), "the end of its processes")
    desk.unmount_all(root)  # what the killed one had mounted


def test_workflow_next_comes_back(tmp_path: Path) -> None:
    rules = [rule("__start__", "a", ENDLESS), rule("__start__", "a"), rule("a", "__end__")]
    file = tmp_path / "endless.json"
    file.write_text(json.dumps(workflow(rules, a=None)))
    (tmp_path / "steps.json").write_text("[]")
    ended = spawn("workflow", "next", file, "--steps", tmp_path / "steps.json")
    assert ended.returncode == 1
    assert "moderator rule 0 (__start__ to a" in ended.stderr
    assert ended.stderr.count("\n") == 1
