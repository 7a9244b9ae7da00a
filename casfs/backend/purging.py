"""Purges in the disk backend: rows with a mark in place of their bytes (`purge_marks`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import BinaryIO

from casfs.backend.disk_metadata import DiskMetadata
from casfs.backend.group_commit import GroupCommit
from casfs.backend.mapped_rows import doom_patches, patches_of, users
from casfs.backend.protocols import Purge, Swap
from casfs.backend.purge_marks import AWAITED_MARK, IS_PURGED, purge_mark
from casfs.backend.sqlite_connection import Connection, Database
from casfs.backend.sqlite_statements import (
    key_of,
    record_touched,
    rows_in,
    swap,
    unmark_local,
)
from casfs.errors import Conflict, CorruptBlob, Invalid, NotFound
from casfs.system.clock import now_ms

SET_MARK = """
INSERT INTO blobs (hash, size, type, touched, data) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (hash) DO UPDATE SET data = excluded.data, pack = NULL, member = NULL
"""
UNPURGE = f"""
UPDATE blobs SET data = x'{AWAITED_MARK.hex()}' WHERE hash = ? AND type IS NULL AND {IS_PURGED}
"""
TOMBSTONES = "SELECT 1 FROM heads WHERE name >= 'purged/' AND name < 'purged0' LIMIT 1"
PURGED_AMONG = f"SELECT hash FROM blobs WHERE {IS_PURGED} AND hash IN"


class DiskPurging(DiskMetadata, ABC):
    def __init__(self, db: Database, commits: GroupCommit) -> None:
        super().__init__(db)
        self._commits = commits
        # erases purged blobs from files, packs and mirrors
        self.erase: Callable[..., None] = lambda **_: None

    def purge(self, purges: Collection[Purge], swaps: Sequence[Swap] = ()) -> bool:
        hashes = {purge.hash for purge in purges}
        while True:
            with self._db.write(erasing=True) as db:
                patches = patches_of(db, hashes)
                waiting = users(db, patches | hashes) - hashes
                if not waiting:
                    _purge(db, purges, swaps)
                    doom_patches(db, patches - hashes)
                    break
            # Blobs that have blocks of what goes: they get files of their own first.
            for user in waiting:
                try:
                    with suppress(NotFound):  # gc deleted it meanwhile
                        self.release(user)
                except CorruptBlob:  # damaged already; what is purged must go
                    self.quarantine(user)
        if not patches and all(purge.is_new for purge in purges):
            return True  # there were no bytes
        self.erase()
        return self._db.shrink()

    @abstractmethod
    def release(self, hash: str) -> None:
        """Makes a mapped blob a file. Raises NotFound, CorruptBlob."""

    @abstractmethod
    def quarantine(self, hash: str) -> None:
        """As `casfs.backend.capabilities.Repairable`."""

    def erase_remains(self, is_found: Callable[[BinaryIO], bool]) -> bool:
        self.erase(all_garbage=True)
        is_erased = self._db.shrink()
        for path in self._db.files():
            with suppress(FileNotFoundError), path.open("rb") as source:
                if is_found(source):
                    return self._db.rebuild()
        return is_erased

    def unmark_local(self, hashes: Collection[str]) -> None:
        self._commits.run(lambda db: unmark_local(db, hashes))

    def unpurge(self, hash: str, swaps: Sequence[Swap] = ()) -> None:
        self._commits.run(lambda db: _unpurge(db, hash, swaps))


def _purge(db: Connection, purges: Collection[Purge], swaps: Sequence[Swap]) -> None:
    """Replaces contents by marks, and moves the heads. Raises NotFound, Invalid, Conflict."""
    substitutes = [purged.substitute for purged in purges if purged.substitute is not None]
    keys = [key_of(hash) for hash in [*substitutes, *(purged.hash for purged in purges)]]
    types = dict(rows_in(db, "SELECT hash, type FROM blobs WHERE hash IN", keys))
    now_s = int(time.time())
    for purge in purges:
        key = key_of(purge.hash)
        new_type = None
        if purge.substitute is not None:
            substitute_key = key_of(purge.substitute)
            if substitute_key not in types:
                raise NotFound(f"no blob {purge.substitute} in this store for {purge.hash}")
            new_type = types[substitute_key]
        if purge.is_new and key in types:
            raise Conflict(f"{purge.hash} was stored meanwhile; try again")
        if types.get(key, new_type) != new_type:
            raise Invalid(f"{purge.hash} can only be purged with a substitute of its type")
        db.execute(SET_MARK, (key, purge.size, new_type, now_s, purge_mark(purge.substitute)))
    # What is gone need not be hidden; what is left of it must be.
    unmark_local(db, [purged.hash for purged in purges if purged.substitute is None])
    for move in swaps:
        swap(db, move, now_ms())
    if db.execute("SELECT 1 FROM collecting").fetchone():
        record_touched(db, [*substitutes, *(purged.hash for purged in purges)], swaps)


def _unpurge(db: Connection, hash: str, swaps: Sequence[Swap]) -> None:
    """Raises NotFound, Conflict."""
    if db.execute(UNPURGE, (key_of(hash),)).rowcount != 1:
        raise NotFound(f"no purged blob {hash} in this store that is not a node")
    for move in swaps:
        swap(db, move, now_ms())


def find_purged(db: Connection, hashes: Collection[str]) -> set[str]:
    """Returns those that are purged; cheap in a store without tombstones."""
    if not hashes or db.execute(TOMBSTONES).fetchone() is None:
        return set()
    rows = rows_in(db, PURGED_AMONG, [key_of(hash) for hash in hashes])
    return {key.hex() for (key,) in rows}
