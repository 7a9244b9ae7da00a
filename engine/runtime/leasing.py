"""Leases of a daemon on a shared store: it claims threads while it has free places, and ends the
task of each whose lease is over.

A renewal counts from the instant before it was sent, by a clock that goes on while the machine
sleeps. So MARGIN_S before another daemon may take a thread, its agents are stopped here, whatever
the database answers. The thread stays `running` in the store, and is claimed again by any daemon.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import trio

from casfs.backend.capabilities import Lease, Leases
from casfs.backend.protocols import Head, HeadName
from casfs.errors import CasfsError, Conflict
from casfs.store.store import Store
from casfs.system.log import Log
from casfs.threads import threads
from casfs.threads.threads import RUNNING, ThreadId
from engine.threads.call_stack import is_awaited

CHECK_S = 0.5  # between two looks at what other machines did to the threads
POLL_S = (0.25, 0.5)  # between two looks for threads to claim
WATCH_S = 0.1
BATCH = 8  # threads of one claim: those of a daemon that died are shared, and begin the sooner
MARGIN_S = 2.0  # before the expiry
CLOSE_S = 3.0
T = TypeVar("T")


class Runner(Protocol):
    """The supervisor. `end`: the task of a thread whose lease is over."""

    def status(self) -> dict[str, Any]: ...
    def has_task(self, id: ThreadId) -> bool: ...
    def start(self, lease: Lease) -> None: ...
    def end(self, id: ThreadId) -> None: ...


class ThreadLeases:
    """The leases of one daemon. Nothing is claimed before `launched` is set."""

    def __init__(self, store: Store, leases: Leases, log: Log) -> None:
        self.launched = trio.Event()
        self._store = store
        self._leases = leases
        self._log = log
        self._held: dict[HeadName, float] = {}  # when each expires, by `_now`
        self._over: set[HeadName] = set()  # to be released
        self._wake = trio.Event()
        self._claiming = trio.Lock()
        self._limiter = trio.CapacityLimiter(4)  # apart from the calls of runs

    async def run(self, runner: Runner) -> None:
        async with trio.open_nursery() as nursery:
            for task in (self._claim_all, self._keep, self._watch):
                nursery.start_soon(task, runner)

    def launch(self) -> None:
        self.launched.set()
        self._wake.set()

    def check(self, lease: Lease) -> None:
        """Raises Conflict where the lease is over, by this machine's clock."""
        if _now() >= self._held.get(lease.thread, 0):
            raise Conflict(f"head {lease.thread}: its lease is over")

    def give_up(self, lease: Lease) -> None:
        """Releases the lease of a task that is over."""
        self._held.pop(lease.thread, None)
        self._over.add(lease.thread)
        self._wake.set()

    async def take(self, id: ThreadId) -> Lease | None:
        """Waits until no other task runs a thread, and takes it; None where it runs no more."""
        name = threads.head_name(id)
        while not (leases := await self._claim(1, only=name)):
            if (await self._call(partial(threads.get, self._store, id))).status != RUNNING:
                return None
            await trio.sleep(CHECK_S)
        return leases[0]

    async def close(self) -> None:
        """Releases all leases, once no task is left."""
        with trio.move_on_after(CLOSE_S):
            release = partial(self._leases.release, [*self._over])
            await trio.to_thread.run_sync(release, abandon_on_cancel=True)

    # -- claim ----------------------------------------------------------------------------

    async def _claim_all(self, runner: Runner) -> None:
        await self.launched.wait()
        while True:
            self._wake = trio.Event()
            try:
                if over := [*self._over]:
                    await self._call(partial(self._leases.release, over))
                    self._over.difference_update(over)
                status = runner.status()
                free = min(BATCH, status["limit"] - len(status["running"]))
                leases = await self._claim(free, wanted=partial(self._wanted, runner))
                for lease in leases:
                    runner.start(lease)
                if leases and len(leases) == free:
                    continue
                with trio.move_on_after(random.uniform(*POLL_S)):
                    await self._wake.wait()
            except CasfsError as error:
                self._log("not claimed", error=str(error))
                await trio.sleep(CHECK_S)

    async def _claim(self, limit: int, **which: Any) -> list[Lease]:
        async with self._claiming:
            sent = _now()
            held = [*self._held, *self._over]
            leases = await self._call(partial(self._leases.claim, limit, held=held, **which))
            for lease in leases:
                self._held[lease.thread] = sent + self._leases.ttl_s
                self._over.discard(lease.thread)
            return leases

    def _wanted(self, runner: Runner, heads: Mapping[HeadName, Head]) -> Collection[HeadName]:
        """Chooses those that no task of this daemon runs, nor is about to run for a caller."""
        known = (threads.of_head(*named_head) for named_head in heads.items())
        free = (thread for thread in known if not thread.fault and not runner.has_task(thread.id))
        return [thread.name for thread in free if not is_awaited(self._store, thread, running=True)]

    # -- keep -----------------------------------------------------------------------------

    async def _keep(self, runner: Runner) -> None:
        """Renews all leases in time; looks in between for what others did to their threads."""
        renewed = 0.0
        while True:
            sent = _now()
            held = dict(self._held)
            renews = sent - renewed >= self._leases.ttl_s / 3
            ask = self._leases.renew if renews else self._leases.check
            try:
                lost, stopped = await self._call(partial(ask, held)) if held or renews else ((), ())
                renewed = sent if renews else renewed
            except CasfsError as error:
                self._log("not renewed", error=str(error))
            else:
                for name in held:
                    if self._held.get(name) != held[name]:  # given up, and perhaps taken again
                        continue
                    if name in lost or name in stopped:
                        self._end(name, runner, "lost" if name in lost else "stopped")
                    elif renews:
                        self._held[name] = sent + self._leases.ttl_s
            await trio.sleep(CHECK_S)

    async def _watch(self, runner: Runner) -> None:
        """Ends tasks before their leases expire."""
        while True:
            for name, end in [*self._held.items()]:
                if _now() > end - MARGIN_S:
                    self._end(name, runner, "not renewed")
            await trio.sleep(WATCH_S)

    def _end(self, name: HeadName, runner: Runner, why: str) -> None:
        self._log("lease", thread=threads.thread_id(name), ended=why)
        del self._held[name]
        runner.end(threads.thread_id(name))

    async def _call(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, limiter=self._limiter)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
