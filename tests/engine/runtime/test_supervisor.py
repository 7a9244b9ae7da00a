"""The queue of threads above the limit: its order, also in the next daemon, and its callers."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing

from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import CANCELLED, ENDED, SUSPENDED, Thread
from engine.moderator.decision import Next
from engine.runtime import stop_thread
from engine.runtime.run_services import RunServices
from engine.runtime.supervisor import Supervisor
from engine.threads import suspension, transitions
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest, create
from engine.workflow import registry as workflows
from tests.support.engine import DEADLINE, ONE, STATUS, begin, carry_on, loop, says


@asynccontextmanager
async def supervised(store: Store, limit: int) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(RunServices(store), dict(os.environ), limit)
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as supervisor.nursery:
            yield supervisor


def queued(store: Store, count: int, script: str = "true") -> list[Thread]:
    return [begin(store, ONE, {"a": says({}, script)}) for _ in range(count)]


def ids(found: list[Thread]) -> list[str]:
    return [one.id for one in found]


async def test_first_in_first_out(disk_store: Store, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    found = queued(disk_store, 6, f"echo $CASFS_THREAD >>{ran}")
    async with supervised(disk_store, 1) as supervisor:
        for one in found:
            supervisor.launch(one.id)
        now = supervisor.status()
        assert (now["limit"], now["running"], now["called"]) == (1, ids(found[:1]), [])
        assert now["queued"] == ids(found[1:])
    assert ran.read_text().split() == ids(found)
    assert (supervisor.status()["running"], supervisor.status()["queued"]) == ([], [])


async def test_a_cancelled_one_leaves_the_queue(disk_store: Store, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    found = queued(disk_store, 3, f"echo $CASFS_THREAD >>{ran}")
    async with supervised(disk_store, 1) as supervisor:
        for one in found:
            supervisor.launch(one.id)

        def cancel(store: Store, id: threads.ThreadId, *_: Any) -> None:
            transitions.cancel(store, threads.get(store, id))

        await supervisor.stop(found[1].id, cancel)
    assert ran.read_text().split() == [found[0].id, found[2].id]


async def test_the_next_daemon_keeps_the_order(disk_store: Store) -> None:
    """What had begun is first; the rest by when it was queued, not by when it was created."""
    failed = await carry_on(disk_store, queued(disk_store, 1, "exit 1")[0])
    begun, last = queued(disk_store, 2)
    transitions.begin(disk_store, begun, Next("a"), 0, 100, 1)
    await trio.sleep(0.002)  # the record counts milliseconds
    suspension.resume(disk_store, failed)
    async with supervised(disk_store, 1) as supervisor:
        await supervisor.launch_all()
        now = supervisor.status()
        assert (now["running"], now["queued"]) == ([begun.id], [last.id, failed.id])
        supervisor.nursery.cancel_scope.cancel()


async def test_a_caller_does_not_wait_for_the_queue(disk_store: Store, tmp_path: Path) -> None:
    """Its child was resumed by itself, and is queued behind its caller."""
    luck = tmp_path / "luck"
    workflows.add(disk_store, {**loop(1, STATUS), "name": "inner"})
    inner = {"a": {"name": "command", "config": says({"status": "done"}, f"[ -e {luck} ]||exit 1")}}
    agent = Binding("workflow", {"workflow": "inner", "agents": inner})
    hash, _ = workflows.add(disk_store, ONE)
    caller = create(disk_store, ThreadRequest(hash, "Do it.", {"a": agent}))
    caller = await carry_on(disk_store, caller)
    assert caller.status == SUSPENDED
    child = threads.get(disk_store, caller.record["children"][0])
    suspension.resume(disk_store, caller)
    luck.touch()
    async with supervised(disk_store, 1) as supervisor:
        supervisor.launch(caller.id)
        supervisor.launch(child.id)
        assert supervisor.status()["queued"] == [child.id]
    found = threads.list_threads(disk_store)
    assert [(one.id, one.status) for one in found] == [(caller.id, ENDED), (child.id, ENDED)]


async def test_who_waits_sees_that_a_thread_was_cancelled(disk_store: Store) -> None:
    """Its task is over before its head says so."""
    (found,) = queued(disk_store, 1, "sleep 600")
    seen: list[str] = []
    stopping, go_on = trio.Event(), threading.Event()

    def cancel(*arguments: Any) -> None:
        trio.from_thread.run_sync(stopping.set)
        go_on.wait(DEADLINE)
        stop_thread.cancel(*arguments)

    async with supervised(disk_store, 1) as supervisor:
        supervisor.launch(found.id)

        async def wait() -> None:
            seen.append((await supervisor.wait(found.id)).status)

        supervisor.nursery.start_soon(wait)
        supervisor.nursery.start_soon(supervisor.stop, found.id, cancel)
        await stopping.wait()
        await trio.testing.wait_all_tasks_blocked(0.1)
        go_on.set()
    assert seen == [CANCELLED]
