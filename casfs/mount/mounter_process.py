"""The supervisor's handle of the mounter (`casfs.mount.mounter`): fork, restart, end.

The supervisor keeps both ends of the pipe, so that a mounter that was killed gets a successor.
Every worker inherits the end that is written to.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from casfs.system.log import Log
from casfs.system.signals import Signals, blocked

RESTARTS = 5
END_TIMEOUT_S = 5.0  # from SIGTERM to SIGKILL
POLL_INTERVAL_S = 0.01
FAILED = 1
IGNORED = {signal.SIGINT: signal.SIG_IGN, signal.SIGHUP: signal.SIG_IGN}  # for the supervisor


class MounterProcess:
    def __init__(self, store_root: Path, point: Path, log: Log) -> None:
        """The pipe alone; `start` forks the process."""
        self._store_root = store_root
        self._point = point
        self._log = log
        self._read_end, self.walks = os.pipe()
        for fd in (self._read_end, self.walks):
            os.set_blocking(fd, False)
        self._starts = 0
        self.pid = 0

    @property
    def is_started(self) -> bool:
        return self._starts > 0

    def start(self, signals: Signals, forked: Callable[[], None]) -> None:
        """`forked` is called in the new process, to close what is not its own."""
        self._starts += 1
        with blocked():
            self.pid = os.fork()
            if self.pid == 0:
                self._run(signals, forked)

    def poll(self, signals: Signals, forked: Callable[[], None]) -> None:
        """Starts it anew where it was killed, or has failed."""
        if self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                code = os.waitstatus_to_exitcode(status)
                if code and self._starts <= RESTARTS:
                    self._log("mounter ended", mount=self._point, code=code)
                    self.start(signals, forked)

    def end(self) -> None:
        """Ends it; waits for that, except where it cannot be ended."""
        if self.pid:
            end(self.pid)
        for fd in (self._read_end, self.walks):
            os.close(fd)

    def _run(self, signals: Signals, forked: Callable[[], None]) -> None:
        """The subprocess's main function; never returns."""
        code = FAILED
        try:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            signals.reset({**IGNORED, signal.SIGTERM: signal.getsignal(signal.SIGTERM)})
            forked()
            os.close(self.walks)
            from casfs.mount import mounter  # only here: the supervisor does without it

            mounter.run(self._store_root, self._point, self._read_end, self._log)
            code = 0
        except SystemExit:
            code = 0
        except BaseException as error:
            self._log("mounter failed", mount=self._point, error=f"{type(error).__name__}: {error}")
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
