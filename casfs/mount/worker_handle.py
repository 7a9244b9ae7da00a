"""A serving process as its keeper sees it: forked, heard, waited for, ended.

It says lines on a pipe: READY, or why it never will be. What its exit code means:

    OVER          unmounted; there is nothing left to serve
    STOPPED       told to end, by SIGTERM
    UNSUPPORTED   its transport does not work on this kernel
    FAILED        anything else that it knows of; who is killed has a negative code
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from casfs.errors import CasfsError
from casfs.fuse.kernel.init import Unsupported
from casfs.system.signals import Signals, blocked

READY = "ready"
OVER, STOPPED, UNSUPPORTED, FAILED = 0, 10, 11, 12
FROM_OUTSIDE = (STOPPED, -signal.SIGKILL, -signal.SIGTERM)
PATIENCE = 5.0  # seconds that a server has to end by itself
IGNORED = {signal.SIGINT: signal.SIG_IGN, signal.SIGHUP: signal.SIG_IGN}  # the keeper's affair


class Child:
    def __init__(self, pid: int, pipe: int = -1) -> None:
        """A child of this process; without a pipe it is one that a predecessor has forked."""
        self.pid = pid
        self.pipe = pipe
        self.started = time.monotonic()
        self.code: int | None = None  # when it has ended
        self.ready = False
        self.complaint = ""
        self._said = b""

    @classmethod
    def fork(
        cls,
        signals: Signals,
        serve: Callable[[Callable[[], None]], bool],
        finish: Callable[[str], None],
    ) -> Child:
        """`serve` is called in the child, with what it is to call when it is ready, and says
        whether it was told to end; `finish` then, with what went wrong."""
        ours, theirs = os.pipe()
        with blocked():
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                _be(signals, theirs, serve, finish)
        os.close(theirs)
        os.set_blocking(ours, False)
        return cls(pid, ours)

    def look(self) -> None:
        """What it has said, and whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        if self.pipe >= 0:
            self._listen()

    def _listen(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self.pipe, 4096):
                self._said += data
            os.close(self.pipe)
            self.pipe = -1
        lines = self._said.decode("utf-8", "replace").splitlines()
        self.ready = READY in lines
        self.complaint = " ".join(line for line in lines if line != READY)

    def stop(self, signals: Signals) -> None:
        """Returns when it has ended."""
        number, deadline = signal.SIGTERM, time.monotonic() + PATIENCE
        self.look()
        while self.code is None:
            os.kill(self.pid, number)
            while self.code is None and (left := deadline - time.monotonic()) > 0:
                signals.wait([], left)
                self.look()
            number, deadline = signal.SIGKILL, time.monotonic() + PATIENCE

    def lived(self) -> float:
        return time.monotonic() - self.started


def _be(
    signals: Signals,
    pipe: int,
    serve: Callable[[Callable[[], None]], bool],
    finish: Callable[[str], None],
) -> None:
    """The child: never returns."""
    code, complaint = FAILED, ""
    try:
        signals.leave(IGNORED)
        code = STOPPED if serve(lambda: _tell(pipe, READY)) else OVER
    except Unsupported as error:
        code, complaint = UNSUPPORTED, str(error)
    except CasfsError as error:
        complaint = str(error)
    except BaseException as error:
        complaint = f"{type(error).__name__}: {error}"
    finally:
        with suppress(BaseException):
            finish(complaint)
        _tell(pipe, complaint)
        os._exit(code)


def _tell(pipe: int, line: str) -> None:
    with suppress(OSError):  # the keeper may have gone, or become another
        os.write(pipe, line.encode("utf-8", "replace") + b"\n")
