"""The process that keeps a mount alive: it starts whoever serves, and again when he dies.

    casfs mount ─ keeper ─┬─ server   answers the kernel
                          └─ holds what outlives a server (`casfs.mount.transports`), and the record

The keeper has one thread and imports what a server needs before it forks one, so that a
successor serves within milliseconds. It opens no store for long and answers no request: so
there is little that it could die of.

    a server dies          the next one is started. Whoever is killed from outside is always
                           replaced; of those that fail by themselves at once, RESTARTS within
                           a WINDOW, then the mount is given up, and the log says why
    unmounted              by anybody, in any way: the server ends, then the keeper
    SIGTERM, SIGINT, SIGHUP    the mount is unmounted lazily, the server ended, then the keeper
    SIGUSR1                the keeper executes the program anew, with the same descriptors; that
                           one ends the old server and starts its own (`casfs mount --replace`).
                           Until then the old one serves, even if there never is a new one
    the keeper is killed   its server goes on alone until it is unmounted, or told to end by
                           SIGTERM, and leaves nothing mounted then. Readers notice nothing
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from casfs.errors import CasfsError, Failed, Refused
from casfs.mount import attach, registry
from casfs.mount.registry import Held, Record
from casfs.mount.transports import WAYS, Way
from casfs.mount.worker import AUTO, BUILTIN, PYFUSE3, Plan
from casfs.mount.worker_handle import FROM_OUTSIDE, OVER, UNSUPPORTED, Child
from casfs.store import Store
from casfs.system.log import Log, silent
from casfs.system.processes import start_time
from casfs.system.signals import Signals, blocked

ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
REPLACE = signal.SIGUSR1
AT_ONCE = 1.0  # seconds; who fails later has served
RESTARTS, WINDOW = 5, 60.0  # seconds


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever runs a keeper: `ready` is called once; `forked` in each server, to close what
    the keeper alone may have; `again` gives the command that executes the program anew, for
    a transport and for what `resume` has to be told."""

    ready: Callable[[], None] = _nothing
    forked: Callable[[], None] = _nothing
    again: Callable[[str, str], list[str]] | None = None


def keep(plan: Plan, caller: Caller, log: Log = silent) -> None:
    """Mount, and have it served until it is over. Raises CasfsError."""
    attach.check_machine(allow_other=plan.allow_other)
    Store.open(plan.store).close()
    chosen = replace(plan, transport=BUILTIN) if plan.transport == AUTO else plan
    keeper = Keeper(chosen, caller, log, fallback=plan.transport == AUTO)
    keeper.run(lambda: Held.make(plan.store, log))


def resume(plan: Plan, caller: Caller, state: str, log: Log = silent) -> None:
    """The same, in a program that was executed anew; `state` is what its predecessor left."""
    left: dict[str, Any] = json.loads(state)
    keeper = Keeper(plan, caller, log, left)
    keeper.run(lambda: Held.inherit(left["record"], log))


class Keeper:
    def __init__(
        self,
        plan: Plan,
        caller: Caller,
        log: Log,
        left: Mapping[str, Any] | None = None,
        *,
        fallback: bool = False,
    ) -> None:
        """`fallback`: where one transport does not work, the other may."""
        self._plan, self._caller, self._log = plan, caller, log
        self._fallback = fallback
        self._pid = os.getpid()
        self._way = _way(plan, None if left is None else left["fds"])
        self._server = None if left is None else Child(left["server"])
        self._starts = 0 if left is None else left["starts"]
        self._generation = 0 if left is None else left["generation"] + 1
        self._ready = left is not None  # somebody has been told so
        self._shown = False  # this server is in the record as one that serves
        self._asked = False  # to execute the program anew, as soon as one serves
        self._failures: deque[float] = deque(maxlen=RESTARTS)
        self._record: Held | None = None

    def run(self, take: Callable[[], Held | None]) -> None:
        with Signals([*ENDING, REPLACE, signal.SIGCHLD]) as self._signals:
            self._record = take()
            try:
                self._way.prepare()
                if self._server is not None:
                    self._server.stop(self._signals)
                    self._way.revive(self._ready)
                gc.freeze()
                self._start()
                while self._goes_on():
                    pass
            except CasfsError as error:
                self._log("mount given up", mount=self._plan.point, error=str(error))
                raise
            finally:
                self._end()

    def _goes_on(self) -> bool:
        """Wait for something to happen and see to it; False when all is over."""
        server = self._server
        assert server is not None
        seen = self._signals.wait([server.pipe] if server.pipe >= 0 else [])
        server.look()
        if server.ready and not self._shown:
            self._serves()
        if seen & ENDING:
            return False
        if server.code is not None and not self._succeeded(server):
            return False
        self._asked = self._asked or REPLACE in seen
        if self._asked and self._shown:
            self._asked = False
            self._become_new()
        return True

    def _end(self) -> None:
        self._way.withdraw(self._server is not None and self._server.code is None)
        if self._server is not None:
            self._server.stop(self._signals)
        self._way.end()
        if self._record is not None:
            self._record.remove()

    # -- servers ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._starts += 1
        self._shown = False
        self._server = Child.fork(self._signals, self._serve, self._finish)
        self._note()

    def _serve(self, on_ready: Callable[[], None]) -> bool:
        """In the server."""
        self._caller.forked()
        return self._way.serve(self._ready, on_ready, self._log)

    def _finish(self, complaint: str) -> None:
        """In the server, when it is done: without a keeper it does what that one would do."""
        if os.getppid() == self._pid:
            return
        self._log("a server without a keeper ended", mount=self._plan.point, error=complaint)
        self._way.withdraw(False)
        self._way.end()
        if self._record is not None:
            self._record.remove()

    def _serves(self) -> None:
        self._shown = True
        self._note()
        attach.read_ahead(self._way.device())
        if not self._ready:
            self._ready = True
            self._caller.ready()

    def _note(self) -> None:
        if self._record is not None and self._server is not None:
            self._record.write(
                mount=str(self._plan.point),
                device=self._way.device(),
                transport=self._plan.transport,
                keeper=self._pid,
                server=self._server.pid,
                serves=self._shown,
                starts=self._starts,
                generation=self._generation,
            )

    def _succeeded(self, server: Child) -> bool:
        """A server has ended: is there another one now? Raises Failed."""
        self._log("server ended", server=server.pid, code=server.code, error=server.complaint)
        if server.code == OVER:
            return False
        if server.code not in FROM_OUTSIDE:
            if server.code == UNSUPPORTED and self._fallback and not self._ready:
                self._fall_back(server.complaint)
            elif not self._ready:
                raise Failed(server.complaint or f"the server ended by itself ({server.code})")
            elif server.lived() < AT_ONCE:
                self._count_failure(server)
        self._way.revive(self._ready)
        self._start()
        return True

    def _fall_back(self, reason: str) -> None:
        self._log("another transport", transport=PYFUSE3, reason=reason)
        self._way.withdraw(False)
        self._way.end()
        self._fallback = False
        self._plan = replace(self._plan, transport=PYFUSE3)
        self._way = _way(self._plan, None)
        try:
            self._way.prepare()
        except Failed as error:
            raise Failed(f"{reason}: {error}") from None

    def _count_failure(self, server: Child) -> None:
        now = time.monotonic()
        if len(self._failures) == RESTARTS and now - self._failures[0] < WINDOW:
            why = server.complaint or f"exit code {server.code}"
            raise Failed(f"{self._plan.point}: servers fail at once, again and again: {why}")
        self._failures.append(now)

    # -- the next generation ------------------------------------------------------------------

    def _become_new(self) -> None:
        """Execute the program anew; returns only where that cannot be."""
        server, held = self._server, self._record
        if self._caller.again is None or server is None or held is None:
            self._log("not replaced", mount=self._plan.point)
            return
        fds = self._way.inherited()
        state = {
            "fds": fds,
            "record": {"path": str(held.path), "fd": held.fd},
            "server": server.pid,
            "starts": self._starts,
            "generation": self._generation,
        }
        command = self._caller.again(self._plan.transport, json.dumps(state))
        for fd in (*fds.values(), held.fd):
            os.set_inheritable(fd, True)
        with blocked():  # until the new program knows what they mean
            try:
                os.execv(command[0], command)
            except OSError as error:
                self._log("not replaced", mount=self._plan.point, error=str(error))


def _way(plan: Plan, fds: Mapping[str, int] | None) -> Way:
    return WAYS[plan.transport](plan, fds)


def replace_program(found: Record) -> Record:
    """Have the keeper of a mount execute its program anew; returns when that one serves.

    Raises Refused, Failed.
    """
    if not found.kept:
        raise Refused(f"the keeper of {found.mount} is gone; `casfs umount` and mount it again")
    try:
        os.kill(found.keeper, REPLACE)
    except OSError as error:
        raise Refused(f"cannot replace {found.mount}: {error.strerror}") from None
    now: Record | None = found

    def serves() -> bool:
        nonlocal now
        now = found.again()
        if now is None or start_time(now.keeper) is None:
            return True
        return now.generation > found.generation and now.serves

    registry.until(serves, f"the new keeper of {found.mount} does not serve; see the store's log")
    if now is None or now.generation == found.generation:
        raise Failed(f"the new keeper of {found.mount} ended at once; see the store's log")
    return now
