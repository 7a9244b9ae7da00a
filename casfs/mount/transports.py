"""How a keeper has a mount served, one class for each transport.

    kernel    the keeper mounts and holds /dev/fuse and the table of inodes. The kernel's
              requests wait while nobody serves; a successor goes on with both
    pyfuse3   the library mounts, in the serving process, and the mount dies with it. A
              successor unmounts what is dead and mounts again: who had something open there
              gets errors, who comes later does not

Both are used by the keeper and, after a fork, by its server (`serve`).
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from casfs.errors import Failed
from casfs.fuse.inode_table import Table
from casfs.mount import attach, worker
from casfs.mount.worker import BUILTIN, PYFUSE3, Plan
from casfs.system import mounts
from casfs.system.log import Log

INSTALL_PYFUSE3 = "pip install 'casfs[pyfuse3]' (needs a C compiler and libfuse3-dev)"


class Way(Protocol):
    def prepare(self) -> None:
        """Before the first server. Raises Failed."""

    def revive(self, answered: bool) -> None:
        """Before any other. `answered`: the kernel has had its first answer. Raises Failed."""

    def serve(self, answered: bool, on_ready: Callable[[], None], log: Log) -> bool:
        """In a server: until it is unmounted (False) or told to stop (True). `answered`: some
        server before it has been ready. Raises CasfsError."""

    def device(self) -> str:
        """Of the mount, while it is there."""

    def withdraw(self, served: bool) -> None:
        """Before the last server ends, if it has not yet: nobody comes in any more."""

    def end(self) -> None:
        """After the last server: nothing of it stays mounted."""

    def inherited(self) -> dict[str, int]:
        """The descriptors that a successor of the keeper needs."""


class Kernel:
    def __init__(self, plan: Plan, inherited: Mapping[str, int] | None = None) -> None:
        self._plan = plan
        self._fd = -1
        if inherited is not None:
            self._fd, self._table = inherited["fuse"], Table(inherited["table"])
            for fd in inherited.values():
                os.set_inheritable(fd, False)
        self._device = _device(plan)

    def prepare(self) -> None:
        worker.load(BUILTIN)
        if self._fd < 0:
            plan = self._plan
            self._table = Table()
            self._fd = attach.attach(plan.source, plan.point, allow_other=plan.allow_other)
            self._device = _device(plan)

    def revive(self, answered: bool) -> None:
        """What the kernel asks first is asked once, and died with who had read it."""
        if not answered:
            self.withdraw(False)
            self.end()
            self._table.close()
            self.prepare()

    def serve(self, answered: bool, on_ready: Callable[[], None], log: Log) -> bool:
        return worker.by_kernel(self._plan, self._fd, self._table.fd, answered, on_ready, log)

    def device(self) -> str:
        return self._device

    def withdraw(self, served: bool) -> None:
        if self._fd >= 0 and _connected(self._fd) and _device(self._plan) == self._device:
            _unmount(self._plan)

    def end(self) -> None:
        """Whoever has still something open there gets errors from now on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _bury(self._plan, self._device)

    def inherited(self) -> dict[str, int]:
        return {"fuse": self._fd, "table": self._table.fd}


class Pyfuse3:
    def __init__(self, plan: Plan, inherited: Mapping[str, int] | None = None) -> None:
        self._plan = plan
        self._device = _device(plan) if inherited is not None else ""

    def prepare(self) -> None:
        try:
            worker.load(PYFUSE3)
        except ImportError as error:
            raise Failed(f"cannot load pyfuse3 ({error}); {INSTALL_PYFUSE3}") from None

    def revive(self, answered: bool) -> None:
        _bury(self._plan, self._device)

    def serve(self, answered: bool, on_ready: Callable[[], None], log: Log) -> bool:
        def ready() -> None:
            self.device()
            on_ready()

        return worker.by_pyfuse3(self._plan, answered, ready, log)

    def device(self) -> str:
        self._device = _device(self._plan)
        return self._device

    def withdraw(self, served: bool) -> None:
        if served and self._device and _device(self._plan) == self._device:
            _unmount(self._plan)

    def end(self) -> None:
        _bury(self._plan, self._device)

    def inherited(self) -> dict[str, int]:
        return {}


WAYS: dict[str, Callable[[Plan, Mapping[str, int] | None], Way]] = {
    BUILTIN: Kernel,
    PYFUSE3: Pyfuse3,
}


def _device(plan: Plan) -> str:
    found = mounts.mounted_at(plan.point)
    return found.device if found is not None and found.type == attach.TYPE else ""


def _bury(plan: Plan, device: str) -> None:
    """Unmount what nobody serves any more. The number of a device is given again when its
    mount is gone: what has it now may be somebody else's, and that one answers."""
    if device and _device(plan) == device and _is_dead(plan.point):
        _unmount(plan)


def _is_dead(point: Path) -> bool:
    try:
        os.statvfs(point)  # stat would be answered from the kernel's cache
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _unmount(plan: Plan) -> None:
    with suppress(OSError):
        attach.detach(plan.point, lazy=True)


def _connected(fd: int) -> bool:
    """Is /dev/fuse that of a mount, still?"""
    poll = select.poll()
    poll.register(fd, 0)
    return not any(events & select.POLLERR for _, events in poll.poll(0))
