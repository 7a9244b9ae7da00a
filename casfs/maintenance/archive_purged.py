"""Purged content and archives: it is left out; its tombstone, and its substitute, are in there.

A tombstone in an archive is a head `purged/<hash>` of the manifest. An import marks what is not in
this store; content that is here stays, since what comes from elsewhere takes nothing away. What has
a tombstone, here or in the archive, is not stored, should the archive hold it all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from casfs.backend.protocols import Head
from casfs.backend.purged_contents import PURGED
from casfs.digest import BlobHash, NodeHash, is_hash
from casfs.errors import Corrupt, Invalid
from casfs.store import graph, tombstones
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.store.write_batch import Batch


def reached(store: Store, roots: Iterable[str], *, with_local: bool) -> list[Tombstone]:
    """Returns the tombstones of what the roots reach, and of what the substitutes of these do."""
    all = {tombstone.hash: tombstone for tombstone in tombstones.listing(store)}
    reached_tombstones: list[Tombstone] = []
    waiting = list(roots)
    while all and waiting:
        hashes = set(graph.walk(store, waiting, with_local=with_local))
        new = [all.pop(hash) for hash in sorted(all.keys() & hashes)]
        reached_tombstones += new
        waiting = [tombstone.substitute for tombstone in new if tombstone.substitute]
    return reached_tombstones


def is_tombstone(value: object) -> bool:
    return isinstance(value, dict) and str(value.get("name")).startswith(PURGED)


def parse_tombstone(value: dict[str, Any]) -> Tombstone:
    """Parses {name, hash, record}. Raises Invalid."""
    name = value.get("name")
    hash = value.get("hash")
    record = value.get("record")
    if not is_hash(hash) or not isinstance(record, dict) or name != tombstones.head_name(hash):
        raise Invalid(f"the head {name} is not a tombstone")
    head = Head(NodeHash(BlobHash(hash)), record)
    if fault := head_kinds.fault(name, head):
        raise Invalid(f"the head {name}: {fault}")
    return tombstones.decode(head)


class Taking:
    """Takes tombstones of an archive, as the substitutes arrive in a batch. `taken`: how many;
    `kept`: hashes of what is in the store, and stays."""

    def __init__(self, batch: Batch, archive_tombstones: list[Tombstone]) -> None:
        self._batch = batch
        self._found = {tombstone.hash: tombstone for tombstone in archive_tombstones}
        self._purged_here = {name for name, _ in batch.backend.heads.list(PURGED)}
        infos = batch.blobs.info(self._found.keys())
        self.kept = sorted(hash for hash, info in infos.items() if not info.purged)
        self.taken = 0
        self._waiting: dict[str, list[Tombstone]] = {}  # by substitute
        new = [tombstone for tombstone in archive_tombstones if tombstone.hash not in infos]
        stored = batch.blobs.info(
            {tombstone.substitute for tombstone in new if tombstone.substitute}
        )
        for new_tombstone in new:
            if new_tombstone.substitute is not None and new_tombstone.substitute not in stored:
                self._waiting.setdefault(new_tombstone.substitute, []).append(new_tombstone)
        self._take([tombstone for tombstone in new if tombstone.substitute not in self._waiting])

    def refuses(self, hash: str) -> bool:
        """Must the content of a member not be stored?"""
        return hash in self._found or tombstones.head_name(hash) in self._purged_here

    def source(self, hash: str) -> str:
        """Returns the blob of the archive whose bytes readers of another one get."""
        tombstone = self._found.get(hash)
        return hash if tombstone is None else tombstone.substitute or hash

    def note_stored(self, hash: str) -> None:
        """Marks what a member is the substitute of."""
        if waiting := self._waiting.pop(hash, None):
            self._batch.commit()
            self._take(waiting)

    def finish(self) -> None:
        """Raises Corrupt where a substitute is missing."""
        if self._waiting:
            raise Corrupt(f"{min(self._waiting)} is missing: readers of purged content need it")

    def _take(self, new_tombstones: list[Tombstone]) -> None:
        infos = self._batch.blobs.info(
            {tombstone.substitute for tombstone in new_tombstones if tombstone.substitute}
        )
        for hash, info in infos.items():
            tombstones.check_substitute(self._batch.type_name(info.type), hash)
        tombstones.take(self._batch.backend, new_tombstones)
        self.taken += len(new_tombstones)
