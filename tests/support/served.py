"""A real mount, kept and served by other processes: one that serves itself can deadlock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casfs.mount import registry
from casfs.mount.mount_points import unmount
from casfs.store.store import Store
from casfs.system import mounts
from casfs.system.processes import start_time
from casfs.system.store_mounts import TYPE
from casfs.workspaces import overlay_mount
from tests.support.programs import needs_pyfuse3

CASFS = [sys.executable, "-m", "casfs"]
TRANSPORTS = ("builtin", "libfuse")
BY_EACH = ["builtin", pytest.param("libfuse", marks=needs_pyfuse3)]  # parameters of tests
TIMEOUT_S = 60  # seconds before a process that hangs fails the test


@dataclass
class Mount:
    """`supervisor`: the process whose child, the worker, serves."""

    store: Store
    path: Path
    supervisor: subprocess.Popen[bytes]
    transport: str

    def requests(self) -> dict[str, int]:
        """How many requests of each kind reached the worker so far."""
        report: dict[str, Any] = json.loads((self.path / ".casfs/stats.json").read_text())
        counts: dict[str, int] = report["requests"]
        return counts

    def state(self) -> registry.MountState:
        """What the store knows of this mount."""
        (found,) = (one for one in registry.listing(self.store.root) if one.mount == self.path)
        return found

    def kill(self) -> None:
        """Ends the supervisor and the worker, so that the mount is dead."""
        found = self.state()
        self.supervisor.kill()
        self.supervisor.wait()
        os.kill(found.worker, signal.SIGKILL)
        registry.wait_until(lambda: found.reload() is None, f"{found.worker} goes on")


@contextmanager
def serving(
    store: Store,
    where: Path,
    *,
    xattr: bool = False,
    with_local: bool = False,
    transport: str = "builtin",
    native: str = "off",
    before: Sequence[str] = (),
) -> Iterator[Mount]:
    """Mount `store` at `where`; unmounted and its process gone at the end, whatever happens."""
    where.mkdir(exist_ok=True)
    options = ["--transport", transport, "--native", native]
    options += [*["--xattr"] * xattr, *["--with-local"] * with_local]
    supervisor = start(store, where, *options, before=before)
    try:
        yield Mount(store, where, supervisor, transport)
    finally:
        end(where, supervisor)


def start(
    store: Store, where: Path, *options: str, before: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Returns the supervisor of a mount that is ready; run by the command `before`, if any."""
    command = [*before, sys.executable, "-m", "casfs", "--store", str(store.root)]
    ours, theirs = os.pipe()
    with open(ours, encoding="utf-8") as pipe:
        supervisor = subprocess.Popen(
            [*command, "mount", str(where), *options, "--foreground", "--ready-fd", str(theirs)],
            pass_fds=(theirs,),
        )
        os.close(theirs)
        line = pipe.readline()
    if line != "ready\n":
        supervisor.wait(TIMEOUT_S)
    assert line == "ready\n"
    return supervisor


def end(where: Path, supervisor: subprocess.Popen[bytes]) -> None:
    """Unmounted, and its process gone, whatever it is up to."""
    found = mounts.mounted_at(where)
    if found is not None and found.type == TYPE:
        unmount(where, lazy=True)
    try:
        supervisor.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
        raise


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def states(store: Store) -> list[registry.MountState]:
    return registry.listing(store.root)


def gone(*pids: int) -> None:
    """Wait for the end of processes that need not be children of this one."""
    registry.wait_until(lambda: not any(start_time(pid) for pid in pids), f"{pids} go on")


@contextmanager
def unmounted_after(folder: Path) -> Iterator[Path]:
    """A new directory; what is mounted below it at the end is unmounted."""
    folder.mkdir()
    yield folder
    for point in mounts.mounted_below(folder):
        overlay_mount.unmount(point, lazy=True)


@contextmanager
def held(path: Path) -> Iterator[int]:
    """A descriptor of a file whose mount may end meanwhile: then closing it says so."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        with suppress(OSError):
            os.close(fd)
