"""The supervisor's handle of the mounter (`casfs.mount.mounter`): its pipe, start, restart, end.

The supervisor keeps both ends of the pipe, so that a mounter that was killed gets a successor.
Every worker inherits the end that is written to. A mount goes on without a mounter where none can
be started.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from casfs.mount import native_mounts
from casfs.mount.child_process import UNMOUNTED, ChildProcess, RestartLimit
from casfs.system.log import Log
from casfs.system.signals import Signals


class MounterProcess:
    def __init__(self, store_root: Path, signals: Signals, forked: Callable[[], None], log: Log):
        """Makes the pipe; `start` forks the process. `forked` is called in that, to close what is
        not its own."""
        self._store_root = store_root
        self._signals = signals
        self._forked = forked
        self._log = log
        self._device = ""
        self._limit = RestartLimit()
        self._process: ChildProcess | None = None
        self._read_end, self.walks = os.pipe()
        for fd in (self._read_end, self.walks):
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_started(self) -> bool:
        return bool(self._device)

    def start(self, device: str) -> None:
        """Starts it for the FUSE mount on this device."""
        self._device = device
        if self._limit.is_reached():
            self._log("mounter given up")
            return
        try:
            self._process = ChildProcess.fork(self._signals, self._serve, lambda error: None)
        except OSError as error:
            self._log("no mounter", error=str(error))

    def poll(self) -> None:
        """Starts it anew where it was killed, or has failed."""
        process = self._process
        if process is None:
            return
        process.poll()
        if process.exit_code is not None:
            self._process = None
            native_mounts.clean(self._store_root, process.pid)
            if process.exit_code != UNMOUNTED:
                self._log("mounter ended", code=process.exit_code, error=process.error)
                self.start(self._device)

    def end(self) -> None:
        if self._process is not None:
            self._process.stop(self._signals)
            native_mounts.clean(self._store_root, self._process.pid)
        for fd in (self._read_end, self.walks):
            os.close(fd)

    def _serve(self, on_ready: Callable[[], None]) -> bool:
        """Runs in the mounter. Returns True after SIGTERM."""
        self._forked()
        os.close(self.walks)
        from casfs.mount import mounter  # only here: the supervisor does without it

        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            mounter.run(self._store_root, self._device, pipe=self._read_end, log=self._log)
        except SystemExit:
            return True
        return False
