"""The supervisor's handle of a process that it has forked, the worker or the mounter: fork, status,
stop, and how often one is started anew.

It writes lines to a pipe: READY, or an error message. Its exit codes:

    UNMOUNTED   nothing is left to serve
    STOPPED     ended by SIGTERM
    FAILED      any other error; one that was killed has a negative code
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from casfs.errors import CasfsError
from casfs.system.signals import Signals, blocked

READY = "ready"
UNMOUNTED = 0
STOPPED = 10
FAILED = 12
ENDED_FROM_OUTSIDE = (STOPPED, -signal.SIGKILL, -signal.SIGTERM)
STOP_TIMEOUT_S = 5.0  # from SIGTERM to SIGKILL
RESTARTS = 5
RESTART_WINDOW_S = 60.0
IGNORED = {signal.SIGINT: signal.SIG_IGN, signal.SIGHUP: signal.SIG_IGN}  # for the supervisor

Serve = Callable[[Callable[[], None]], bool]  # on_ready -> stopped by SIGTERM


class ChildProcess:
    def __init__(self, pid: int, pipe: int = -1) -> None:
        """A subprocess of this one; one that was forked before an exec has no pipe."""
        self.pid = pid
        self.pipe = pipe
        self.started = time.monotonic()
        self.exit_code: int | None = None
        self.ready = False
        self.error = ""
        self._output = b""

    @classmethod
    def fork(cls, signals: Signals, serve: Serve, finish: Callable[[str], None]) -> ChildProcess:
        """Calls `serve` in the subprocess, then `finish` with the error message, or ""."""
        ours, theirs = os.pipe()
        with blocked():
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                _run_child(signals, theirs, serve=serve, finish=finish)
        os.close(theirs)
        os.set_blocking(ours, False)
        return cls(pid, ours)

    def poll(self) -> None:
        """Updates `exit_code`, `ready` and `error`."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        if self.pipe >= 0:
            self._read_pipe()

    def _read_pipe(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self.pipe, 4096):
                self._output += data
            os.close(self.pipe)
            self.pipe = -1
        lines = self._output.decode("utf-8", "replace").splitlines()
        self.ready = READY in lines
        self.error = " ".join(line for line in lines if line != READY)

    def stop(self, signals: Signals) -> None:
        """Ends it by SIGTERM, after STOP_TIMEOUT_S by SIGKILL, and waits for that."""
        number = signal.SIGTERM
        deadline = time.monotonic() + STOP_TIMEOUT_S
        self.poll()
        while self.exit_code is None:
            os.kill(self.pid, number)
            while self.exit_code is None and (left := deadline - time.monotonic()) > 0:
                signals.wait([], left)
                self.poll()
            number = signal.SIGKILL
            deadline = time.monotonic() + STOP_TIMEOUT_S

    def age_s(self) -> float:
        return time.monotonic() - self.started


class RestartLimit:
    """At most RESTARTS within RESTART_WINDOW_S."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=RESTARTS)

    def is_reached(self) -> bool:
        """Returns whether there were as many; else counts one more."""
        now_s = time.monotonic()
        if len(self._times) == RESTARTS and now_s - self._times[0] < RESTART_WINDOW_S:
            return True
        self._times.append(now_s)
        return False


def _run_child(signals: Signals, pipe: int, serve: Serve, finish: Callable[[str], None]) -> None:
    """The subprocess's main function; never returns."""
    code = FAILED
    message = ""
    try:
        signals.reset(IGNORED)
        code = STOPPED if serve(lambda: _write_line(pipe, READY)) else UNMOUNTED
    except CasfsError as error:
        message = str(error)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
    finally:
        with suppress(BaseException):
            finish(message)
        _write_line(pipe, message)
        os._exit(code)


def _write_line(pipe: int, line: str) -> None:
    with suppress(OSError):  # the supervisor has ended, or executed another program
        os.write(pipe, line.encode("utf-8", "replace") + b"\n")
