"""How each transport is mounted, restarted and unmounted, for the supervisor and its workers.

    builtin   the supervisor mounts and holds /dev/fuse and the inode table. Requests queue in
              the kernel while no worker runs; the next worker goes on with both
    libfuse   pyfuse3 mounts, in the worker, and the mount dies with it. The next worker
              unmounts the dead mount and mounts again: files that were open get errors, later
              opens succeed

The supervisor calls everything but `serve`, which a worker calls after the fork.
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
from casfs.fuse.inode_table import InodeTable
from casfs.mount import attach, worker
from casfs.mount.worker import BUILTIN, LIBFUSE, MountOptions
from casfs.system import mounts
from casfs.system.extras import install_line
from casfs.system.log import Log
from casfs.system.store_mounts import TYPE

INSTALL_PYFUSE3 = f"{install_line('pyfuse3')} (needs a C compiler and libfuse3-dev)"


class MountTransport(Protocol):
    def prepare(self) -> None:
        """Called before the first worker starts. Raises Failed."""

    def prepare_restart(self, answered: bool) -> None:
        """Called before every later worker starts. `answered`: the kernel has had its answer
        to INIT. Raises Failed."""

    def serve(
        self, answered: bool, on_ready: Callable[[], None], log: Log, walks: int = -1
    ) -> bool:
        """Serves, in a worker, until unmounted (False) or SIGTERM (True). `answered`: an
        earlier worker has been ready; `walks`: the pipe to the mounter, -1 without one. Raises
        CasfsError."""

    def device(self) -> str:
        """Returns the device of the mount, "" if there is none."""

    def detach(self, served: bool) -> None:
        """Unmounts lazily, so that no new user enters; before the last worker ends. `served`:
        it still runs."""

    def close(self) -> None:
        """Called after the last worker has ended: leaves nothing mounted."""

    def inheritable_fds(self) -> dict[str, int]:
        """Returns the descriptors that the supervisor keeps across an exec, by name."""


class BuiltinTransport:
    def __init__(self, options: MountOptions, inherited: Mapping[str, int] | None = None) -> None:
        self._options = options
        self._fd = -1
        if inherited is not None:
            self._fd = inherited["fuse"]
            self._table = InodeTable(inherited["table"])
            for fd in inherited.values():
                os.set_inheritable(fd, False)
        self._device = _device(options)

    def prepare(self) -> None:
        worker.load(BUILTIN)
        if self._fd < 0:
            options = self._options
            self._table = InodeTable()
            self._fd = attach.attach(options.source, options.point, allow_other=options.allow_other)
            self._device = _device(options)

    def prepare_restart(self, answered: bool) -> None:
        """The kernel sends INIT once; if the worker that read it died unanswered, only a new
        mount helps."""
        if not answered:
            self.detach(False)
            self.close()
            self._table.close()
            self.prepare()

    def serve(
        self, answered: bool, on_ready: Callable[[], None], log: Log, walks: int = -1
    ) -> bool:
        return worker.serve_builtin(
            self._options,
            self._fd,
            table=self._table.fd,
            answered=answered,
            on_ready=on_ready,
            log=log,
            walks=walks,
        )

    def device(self) -> str:
        return self._device

    def detach(self, served: bool) -> None:
        if self._fd >= 0 and _is_connected(self._fd) and _device(self._options) == self._device:
            _unmount(self._options)

    def close(self) -> None:
        """Closes /dev/fuse: files that are still open there get errors from now on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _unmount_dead(self._options, self._device)

    def inheritable_fds(self) -> dict[str, int]:
        return {"fuse": self._fd, "table": self._table.fd}


class Pyfuse3Transport:
    def __init__(self, options: MountOptions, inherited: Mapping[str, int] | None = None) -> None:
        self._options = options
        self._device = _device(options) if inherited is not None else ""

    def prepare(self) -> None:
        try:
            worker.load(LIBFUSE)
        except ImportError as error:
            raise Failed(f"cannot load pyfuse3 ({error}); {INSTALL_PYFUSE3}") from None

    def prepare_restart(self, answered: bool) -> None:
        _unmount_dead(self._options, self._device)

    def serve(
        self, answered: bool, on_ready: Callable[[], None], log: Log, walks: int = -1
    ) -> bool:
        def ready() -> None:
            self.device()
            on_ready()

        return worker.serve_pyfuse3(self._options, answered, on_ready=ready, log=log)

    def device(self) -> str:
        self._device = _device(self._options)
        return self._device

    def detach(self, served: bool) -> None:
        if served and self._device and _device(self._options) == self._device:
            _unmount(self._options)

    def close(self) -> None:
        _unmount_dead(self._options, self._device)

    def inheritable_fds(self) -> dict[str, int]:
        return {}


TRANSPORTS: dict[str, Callable[[MountOptions, Mapping[str, int] | None], MountTransport]] = {
    BUILTIN: BuiltinTransport,
    LIBFUSE: Pyfuse3Transport,
}


def _device(options: MountOptions) -> str:
    mount = mounts.mounted_at(options.point)
    return mount.device if mount is not None and mount.type == TYPE else ""


def _unmount_dead(options: MountOptions, device: str) -> None:
    """Unmounts a mount that has no worker. The kernel reuses device numbers: a mount with the
    same number that still answers is another one, and stays."""
    if device and _device(options) == device and _is_dead(options.point):
        _unmount(options)


def _is_dead(point: Path) -> bool:
    try:
        os.statvfs(point)  # stat could be answered from the kernel's cache
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _unmount(options: MountOptions) -> None:
    with suppress(OSError):
        attach.detach(options.point, lazy=True)


def _is_connected(fd: int) -> bool:
    """Whether the file system of this /dev/fuse is still mounted."""
    poll = select.poll()
    poll.register(fd, 0)
    return not any(events & select.POLLERR for _, events in poll.poll(0))
