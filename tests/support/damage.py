"""A store with known content whose bytes, rows and nodes a test damages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from casfs.backend.protocols import Staged
from casfs.digest import Digest, hash_bytes
from casfs.maintenance import fsck
from casfs.maintenance.blob_check import Fault
from casfs.maintenance.fsck import Report
from casfs.store.store import Store
from tests.support.helpers import (
    LARGE,
    set_head,
)
from tests.support.maintenance import reopened, sql
from tests.support.thread_example import Example

TREE = {"large": LARGE, "small": b"a few bytes", "dir": {"same": LARGE}}


@dataclass
class Victim:
    store: Store
    thread: Example
    checkpoint: str  # the head's name

    @property
    def root(self) -> Path:
        return self.store.root

    def file(self, hash: str) -> Path:
        return self.root / "objects" / hash[:2] / hash[2:]

    def aside(self) -> dict[str, bytes]:
        folder = self.root / "quarantine"
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def sql(self, statement: str, *values: object) -> None:
        sql(self.store, statement, *values)

    def lose(self, hash: str) -> None:
        self.sql("DELETE FROM blobs WHERE hash = ?", bytes.fromhex(hash))

    def data(self, hash: str) -> bytes:
        return self.store.get(hash)

    def overwrite(self, hash: str, data: bytes) -> None:
        self.sql("UPDATE blobs SET data = ? WHERE hash = ?", data, bytes.fromhex(hash))

    def content(self, step: int) -> str:
        return str(self.store.node(self.thread.steps[step]).payload["content"])


def check(store: Store, *, quarantine: bool = True) -> Report:
    with reopened(store) as other:
        return fsck.check(other, quarantine=quarantine)


def only(report: Report) -> Fault:
    assert len(report.faults) == 1, report.faults
    return report.faults[0]


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> bytes:
    """Damage a file that is 0444; returns what is in it now."""
    data = change(path.read_bytes())
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)
    return data


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


LARGE_HASH = hash_bytes(LARGE)


SMALL_HASH = hash_bytes(b"a few bytes")


# -- nodes -----------------------------------------------------------------------------------


def plant(victim: Victim, data: bytes, type: str = "content") -> str:
    """A row whose bytes hash right and are no node; reachable from the checkpoint's side."""
    digest = Digest.of(data)
    type_hash = victim.store.registry.head(type).hash
    victim.store.backend.publish([Staged(digest, data, type=type_hash)])
    set_head(victim.store, "kept/planted", digest.hash)
    return digest.hash


# -- the SQLite file -------------------------------------------------------------------------


def checkpointed(victim: Victim) -> Path:
    """Close the store with all its rows in store.db."""
    sql(victim.store, "PRAGMA wal_checkpoint(TRUNCATE)")
    victim.store.close()
    return victim.root / "store.db"


def run_fsck(root: Path, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "casfs", "--store", str(root), "fsck", *more]
    return subprocess.run(argv, capture_output=True, text=True)
