"""The supervisor of a mount: starts the worker that serves it, and restarts it when it ends.

    casfs mount ─ supervisor ─┬─ worker   answers the kernel
                              ├─ mounter  mounts trees natively (`casfs.mount.mounter`)
                              └─ holds what outlives a worker (`casfs.mount.transports`), and
                                 the state file (`casfs.mount.registry`)

The supervisor has one thread and imports what a worker needs before it forks one, so that a
new worker serves within milliseconds. It answers no request and does not keep the store open,
so that little can make it fail.

    a worker ends          the next one is started. A worker that was killed from outside is
                           always replaced; of workers that fail within EARLY_EXIT_S, RESTARTS
                           within RESTART_WINDOW_S, then the mount is given up and the log
                           says why
    unmounted              by any program: the worker ends, then the supervisor
    SIGTERM, SIGINT, SIGHUP    lazy unmount, then the worker ends, then the supervisor
    SIGUSR1                the supervisor executes the program anew with the same descriptors;
                           the new program stops the old worker and starts its own (`casfs mount
                           --replace`). The old worker serves until then, also if the exec fails
    the supervisor is killed   its worker goes on alone until it is unmounted or gets SIGTERM,
                           and leaves nothing mounted then. Readers notice nothing
"""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from casfs.errors import CasfsError, Failed, Refused
from casfs.mount import attach, registry
from casfs.mount.child_process import ENDED_FROM_OUTSIDE, UNMOUNTED, ChildProcess, RestartLimit
from casfs.mount.mounter_process import MounterProcess
from casfs.mount.registry import MountState, MountStateFile
from casfs.mount.transports import TRANSPORTS, MountTransport
from casfs.mount.worker import MountOptions
from casfs.store.store import Store
from casfs.system.log import Log, silent
from casfs.system.processes import start_time
from casfs.system.signals import Signals, blocked
from casfs.version import VERSION

END_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
REPLACE_SIGNAL = signal.SIGUSR1
EARLY_EXIT_S = 1.0  # a worker that lived longer has served


def _no_op() -> None:
    pass


@dataclass(frozen=True, slots=True)
class SupervisorHooks:
    """What the program around a supervisor provides. `ready` is called once; `forked` in each
    worker, to close the supervisor's own descriptors; `command` returns the command that
    executes the program anew, for a transport and the state for `resume`."""

    ready: Callable[[], None] = _no_op
    forked: Callable[[], None] = _no_op
    command: Callable[[str, str], list[str]] | None = None


def supervise(options: MountOptions, hooks: SupervisorHooks, log: Log = silent) -> None:
    """Mounts, and returns when the mount has ended. Raises CasfsError."""
    attach.check_machine(allow_other=options.allow_other)
    Store.open(options.store).close()
    supervisor = Supervisor(options, hooks, log)
    supervisor.run(lambda: MountStateFile.create(options.store, log))


def resume(options: MountOptions, hooks: SupervisorHooks, state: str, log: Log = silent) -> None:
    """The same, in a program that was executed anew; `state` is JSON of its predecessor."""
    inherited: dict[str, Any] = json.loads(state)
    supervisor = Supervisor(options, hooks, log=log, inherited=inherited)
    supervisor.run(lambda: MountStateFile.inherit(inherited["record"], log))


class Supervisor:
    def __init__(
        self,
        options: MountOptions,
        hooks: SupervisorHooks,
        log: Log,
        inherited: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = options
        self._hooks = hooks
        self._log = log
        self._pid = os.getpid()
        self._transport = _transport(options, None if inherited is None else inherited["fds"])
        self._worker = None if inherited is None else ChildProcess(inherited["server"])
        self._mounter: MounterProcess | None = None
        # One that an older version has left there was not started.
        old_mounter = 0 if inherited is None else inherited.get("mounter", 0)
        self._old_mounter = ChildProcess(old_mounter) if old_mounter else None
        self._starts = 0 if inherited is None else inherited["starts"]
        self._generation = 0 if inherited is None else inherited["generation"] + 1
        self._ready = inherited is not None  # hooks.ready was called
        self._serves = False  # the state file says that this worker serves
        self._replacing = False  # execute the program anew, as soon as a worker serves
        self._failures = RestartLimit()
        self._state_file: MountStateFile | None = None

    def run(self, open_state_file: Callable[[], MountStateFile | None]) -> None:
        with Signals([*END_SIGNALS, REPLACE_SIGNAL, signal.SIGCHLD]) as self._signals:
            self._state_file = open_state_file()
            if self._options.native:
                self._mounter = MounterProcess(
                    self._options.store, self._signals, self._close_in_mounter, self._log
                )
            try:
                self._transport.prepare()
                if self._worker is not None:
                    self._worker.stop(self._signals)
                    self._transport.prepare_restart(self._ready)
                gc.freeze()
                self._start_worker()
                while self._handle_event():
                    pass
            except CasfsError as error:
                self._log("mount given up", mount=self._options.point, error=str(error))
                raise
            finally:
                running = self._worker is not None and self._worker.exit_code is None
                self._transport.detach(running)
                if self._worker is not None:
                    self._worker.stop(self._signals)
                if self._mounter is not None:
                    self._mounter.end()
                self._close()

    def _handle_event(self) -> bool:
        """Waits for a signal or the worker's output and acts on it; False ends the mount."""
        worker = self._worker
        assert worker is not None
        received = self._signals.wait([worker.pipe] if worker.pipe >= 0 else [])
        worker.poll()
        if self._mounter is not None:
            self._mounter.poll()
        if worker.ready and not self._serves:
            self._on_worker_ready()
        if received & END_SIGNALS:
            return False
        if worker.exit_code is not None and not self._restart_after(worker):
            return False
        self._replacing = self._replacing or REPLACE_SIGNAL in received
        if self._replacing and self._serves:
            self._replacing = False
            self._exec_program()
        return True

    def _close(self) -> None:
        self._transport.close()
        if self._state_file is not None:
            self._state_file.remove()

    # -- workers ------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        self._starts += 1
        self._serves = False
        self._worker = ChildProcess.fork(self._signals, self._serve, self._finish)
        self._write_state()

    def _serve(self, on_ready: Callable[[], None]) -> bool:
        """Runs in the worker."""
        self._hooks.forked()
        walks = -1 if self._mounter is None else self._mounter.walks
        return self._transport.serve(self._ready, on_ready, self._log, walks)

    def _finish(self, error: str) -> None:
        """Runs in the worker at its end: cleans up if the supervisor no longer can."""
        if os.getppid() == self._pid:
            return
        self._log("worker ended without a supervisor", mount=self._options.point, error=error)
        self._transport.detach(False)
        self._close()

    def _on_worker_ready(self) -> None:
        self._serves = True
        self._write_state()
        attach.set_read_ahead(self._transport.device())
        self._start_mounter()
        if not self._ready:
            self._ready = True
            self._hooks.ready()

    def _start_mounter(self) -> None:
        """Not before a worker serves: the last mounter unmounts by paths through the mount."""
        if self._old_mounter is not None:
            self._old_mounter.stop(self._signals)
            self._old_mounter = None
        if self._mounter is not None and not self._mounter.is_started:
            self._mounter.start(self._transport.device())

    def _close_in_mounter(self) -> None:
        """Runs in the mounter. The mount ends with the last process that has /dev/fuse open, and
        its state is stale as soon as the lock of the state file is free."""
        self._hooks.forked()
        descriptors = [*self._transport.inheritable_fds().values()]
        if self._state_file is not None:
            descriptors.append(self._state_file.fd)
        if self._worker is not None and self._worker.pipe >= 0:
            descriptors.append(self._worker.pipe)
        for fd in descriptors:
            os.close(fd)

    def _write_state(self) -> None:
        if self._state_file is not None and self._worker is not None:
            self._state_file.write(
                mount=str(self._options.point),
                device=self._transport.device(),
                transport=self._options.transport,
                supervisor=self._pid,
                worker=self._worker.pid,
                serves=self._serves,
                starts=self._starts,
                generation=self._generation,
                version=VERSION,
            )

    def _restart_after(self, worker: ChildProcess) -> bool:
        """Starts the successor of a worker that has ended; False if the mount has ended.
        Raises Failed."""
        code = worker.exit_code
        self._log("worker ended", worker=worker.pid, code=code, error=worker.error)
        if code == UNMOUNTED:
            return False
        if code not in ENDED_FROM_OUTSIDE:
            if not self._ready:
                raise Failed(worker.error or f"the worker ended by itself ({code})")
            if worker.age_s() < EARLY_EXIT_S:
                self._count_failure(worker)
        self._transport.prepare_restart(self._ready)
        self._start_worker()
        return True

    def _count_failure(self, worker: ChildProcess) -> None:
        if self._failures.is_reached():
            reason = worker.error or f"exit code {worker.exit_code}"
            raise Failed(f"{self._options.point}: workers keep failing at once: {reason}")

    # -- replacing the program ----------------------------------------------------------------

    def _exec_program(self) -> None:
        """Executes the program anew; returns only if that is not possible."""
        worker = self._worker
        state_file = self._state_file
        if self._hooks.command is None or worker is None or state_file is None:
            self._log("not replaced", mount=self._options.point)
            return
        fds = self._transport.inheritable_fds()
        state = {  # read by `resume`, of this program's version or a newer one
            "fds": fds,
            "record": {"path": str(state_file.path), "fd": state_file.fd},
            "server": worker.pid,
            "starts": self._starts,
            "generation": self._generation,
            "mounter": 0 if self._mounter is None else self._mounter.pid,
        }
        command = self._hooks.command(self._options.transport, json.dumps(state))
        for fd in (*fds.values(), state_file.fd):
            os.set_inheritable(fd, True)
        with blocked():  # until the new program has installed its handlers
            try:
                os.execv(command[0], command)
            except OSError as error:
                self._log("not replaced", mount=self._options.point, error=str(error))


def _transport(options: MountOptions, fds: Mapping[str, int] | None) -> MountTransport:
    return TRANSPORTS[options.transport](options, fds)


def replace_program(before: MountState) -> MountState:
    """Has the supervisor of a mount execute its program anew, and waits until that serves. Raises
    Refused, Failed."""
    if not before.supervised:
        raise Refused(
            f"the supervisor of {before.mount} has ended; `casfs umount` and mount it again"
        )
    try:
        os.kill(before.supervisor, REPLACE_SIGNAL)
    except OSError as error:
        raise Refused(f"cannot replace {before.mount}: {error.strerror}") from None
    current: MountState | None = before

    def serves() -> bool:
        nonlocal current
        current = before.reload()
        if current is None or start_time(current.supervisor) is None:
            return True
        return current.generation > before.generation and current.serves

    message = f"the new program for {before.mount} does not serve; see the store's log"
    registry.wait_until(serves, message)
    if current is None or current.generation == before.generation:
        raise Failed(f"the new program for {before.mount} ended at once; see the store's log")
    return current
