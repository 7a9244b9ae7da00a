"""The supervisor's handle of the mounter (`casfs.mount.mounter`): fork, restart, end.

The supervisor keeps both ends of the pipe, so that a mounter that was killed gets a successor.
Every worker inherits the end that is written to. A mount goes on without a mounter where none can
be started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from casfs.mount import native_mounts
from casfs.system.log import Log
from casfs.system.signals import Signals, blocked

RESTARTS = 5
RESTART_WINDOW_S = 60.0
END_TIMEOUT_S = 5.0  # from SIGTERM to SIGKILL
POLL_INTERVAL_S = 0.01
DONE = 0  # nothing is left to mount
STOPPED = 10  # by SIGTERM
FAILED = 12
IGNORED = {signal.SIGINT: signal.SIG_IGN, signal.SIGHUP: signal.SIG_IGN}  # for the supervisor


class MounterProcess:
    """`pid`: 0 while there is none."""

    def __init__(self, store_root: Path, signals: Signals, forked: Callable[[], None], log: Log):
        """Makes the pipe; `start` forks the process. `forked` is called in that, to close what is
        not its own."""
        self._store_root = store_root
        self._signals = signals
        self._forked = forked
        self._log = log
        self._device = ""
        self._starts: deque[float] = deque(maxlen=RESTARTS)
        self._read_end, self.walks = os.pipe()
        for fd in (self._read_end, self.walks):
            os.set_blocking(fd, False)
        self.pid = 0

    @property
    def is_started(self) -> bool:
        return bool(self._starts)

    def start(self, device: str) -> None:
        """Starts it for the FUSE mount on this device."""
        self._device = device
        self._starts.append(time.monotonic())
        with blocked():
            try:
                self.pid = os.fork()
            except OSError as error:
                self._log("no mounter", error=str(error))
                return
            if self.pid == 0:
                self._run()

    def poll(self) -> None:
        """Starts it anew where it was killed, or has failed."""
        if not self.pid or not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            return
        code = os.waitstatus_to_exitcode(ended[1])
        self._clean()
        if code == DONE:
            return
        oldest = time.monotonic() - RESTART_WINDOW_S
        if len(self._starts) == RESTARTS and self._starts[0] > oldest:
            self._log("mounter given up", code=code)
        else:
            self._log("mounter ended", code=code)
            self.start(self._device)

    def end(self) -> None:
        """Ends it; waits for that, except where it cannot be ended."""
        if self.pid:
            end(self.pid)
            self._clean()
        for fd in (self._read_end, self.walks):
            os.close(fd)

    def _clean(self) -> None:
        """Removes what one has left that was killed."""
        pid, self.pid = self.pid, 0
        if native_mounts.work_folder(self._store_root, pid).exists():
            native_mounts.clean(self._store_root, pid)

    def _run(self) -> None:
        """The subprocess's main function; never returns."""
        code = FAILED
        try:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
            self._signals.reset({**IGNORED, signal.SIGTERM: signal.getsignal(signal.SIGTERM)})
            self._forked()
            os.close(self.walks)
            from casfs.mount import mounter  # only here: the supervisor does without it

            mounter.run(self._store_root, self._device, pipe=self._read_end, log=self._log)
            code = DONE
        except SystemExit:
            code = STOPPED
        except BaseException as error:
            self._log("mounter failed", error=f"{type(error).__name__}: {error}")
        finally:
            os._exit(code)


def end(pid: int) -> None:
    """Ends a subprocess by SIGTERM, after END_TIMEOUT_S by SIGKILL, and waits for that."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + END_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    time.sleep(POLL_INTERVAL_S)
                    continue
            return
