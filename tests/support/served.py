"""A real mount, kept and served by other processes: one that serves itself can deadlock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casfs.mount import registry
from casfs.mount.mount_points import TYPE, unmount
from casfs.store import Store
from casfs.system import mounts
from tests.support.programs import needs_pyfuse3

TRANSPORTS = ("builtin", "pyfuse3")
BY_EACH = ["builtin", pytest.param("pyfuse3", marks=needs_pyfuse3)]  # parameters of tests
PATIENCE = 60  # seconds before a process that hangs fails the test


@dataclass
class Mount:
    """`server` is the keeper, whose child serves."""

    store: Store
    path: Path
    server: subprocess.Popen[bytes]
    transport: str

    def requests(self) -> dict[str, int]:
        """How many requests of each kind reached the server so far."""
        report: dict[str, Any] = json.loads((self.path / ".casfs/stats.json").read_text())
        counts: dict[str, int] = report["requests"]
        return counts

    def record(self) -> registry.Record:
        """What the store knows of this mount."""
        assert self.store.root is not None
        (found,) = (one for one in registry.listing(self.store.root) if one.mount == self.path)
        return found

    def kill(self) -> None:
        """End the keeper and who serves, so that the mount is dead."""
        found = self.record()
        self.server.kill()
        self.server.wait()
        os.kill(found.server, signal.SIGKILL)
        registry.until(lambda: found.again() is None, f"{found.server} goes on")


@contextmanager
def serving(
    store: Store,
    where: Path,
    *,
    xattr: bool = False,
    transport: str = "auto",
    before: Sequence[str] = (),
) -> Iterator[Mount]:
    """Mount `store` at `where`; unmounted and its process gone at the end, whatever happens."""
    where.mkdir(exist_ok=True)
    options = ["--transport", transport, *["--xattr"] * xattr]
    keeper = start(store, where, *options, before=before)
    try:
        yield Mount(store, where, keeper, transport)
    finally:
        end(where, keeper)


def start(
    store: Store, where: Path, *options: str, before: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """A keeper whose mount is ready; run by the command `before`, if any."""
    command = [*before, sys.executable, "-m", "casfs", "--store", str(store.root)]
    ours, theirs = os.pipe()
    with open(ours, encoding="utf-8") as pipe:
        keeper = subprocess.Popen(
            [*command, "mount", str(where), *options, "--foreground", "--ready-fd", str(theirs)],
            pass_fds=(theirs,),
        )
        os.close(theirs)
        line = pipe.readline()
    if line != "ready\n":
        keeper.wait(PATIENCE)
    assert line == "ready\n"
    return keeper


def end(where: Path, keeper: subprocess.Popen[bytes]) -> None:
    """Unmounted, and its process gone, whatever it is up to."""
    found = mounts.mounted_at(where)
    if found is not None and found.type == TYPE:
        unmount(where, lazy=True)
    try:
        keeper.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()
        raise
