"""The first pass of an import: a backend that answers like the real one and stores nothing.

It keeps the schemas that are put, since later nodes are checked against them, and of all
other blobs the digest, size and type. It checks heads as well: the target of each must have
a type that its name allows, and every hash in its record must exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, BinaryIO

from casfs.backend.protocols import (
    Backend,
    Blob,
    BlobInfo,
    Head,
    HeadName,
    Heads,
    Purge,
    Staged,
    Swap,
    targets,
)
from casfs.digest import hash_stream
from casfs.errors import Corrupt, Refused
from casfs.exchange.portable_heads import allowed_types
from casfs.store.nodes import head_kinds
from casfs.store.nodes.registry import Registry
from casfs.store.tombstones import Markable


class DryRunBackend:
    def __init__(self, real: Backend) -> None:
        self._real = real
        self.blobs: Any = DryRunBlobs(real)
        self.heads: Heads = real.heads

    def publish(
        self,
        staged: Iterable[Staged],
        swaps: Iterable[Swap] = (),
        require: Collection[str] = (),
        local: Collection[str] = (),
    ) -> set[str]:
        del require  # the real backend has just answered for them
        self.blobs.note(staged)
        for swap in swaps:
            if swap.new is not None:
                self._check(swap.name, swap.new)
        return set()

    def _check(self, name: HeadName, head: Head) -> None:
        """Raises Corrupt for a head with a missing target or one of the wrong type."""
        known = self.blobs.info(targets(head))
        for hash in targets(head):
            if hash not in known:
                raise Corrupt(f"the head {name} leads to {hash}, which is not in the file")
        type_hash = known[head.hash].type
        names = allowed_types(name)
        if type_hash is None or Registry(self).name(type_hash) not in names:
            raise Corrupt(f"the head {name} leads to {head.hash}: not a {' or '.join(names)}")
        for ref in head_kinds.refs(name, head):
            type_hash = known[ref.hash].type
            type_name = "blob" if type_hash is None else Registry(self).name(type_hash)
            if ref.cas_type not in (None, type_name):
                raise Corrupt(f"the head {name}: {ref.hash} is a {type_name}, not a {ref.cas_type}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class DryRunBlobs:
    def __init__(self, real: Backend) -> None:
        self._real = real
        self._info: dict[str, BlobInfo] = {}
        self._schemas: dict[str, bytes] = {}

    def stage(self, source: BinaryIO) -> Staged:
        return Staged(hash_stream(source), data=None)

    def note(self, staged: Iterable[Staged]) -> None:
        for blob in staged:
            self._info[blob.digest.hash] = BlobInfo(blob.digest.size_bytes, blob.type)
            if blob.type is not None and blob.data is not None and b'"$id":' in blob.data:
                self._schemas[blob.digest.hash] = blob.data

    def purge(self, purges: Collection[Purge], swaps: Sequence[Swap] = ()) -> bool:
        """Notes what the real store would mark."""
        if not isinstance(self._real.blobs, Markable):
            raise Refused("this kind of store cannot take an archive with purged content")
        for purge in purges:
            known = self.info([purge.substitute]) if purge.substitute else {}
            type = known[purge.substitute].type if purge.substitute in known else None
            self._info[purge.hash] = BlobInfo(
                size=purge.size, type=type, purged=True, substitute=purge.substitute
            )
        return True

    def get(self, hash: str) -> Blob:
        if hash in self._schemas:
            return Blob(self._schemas[hash], self._info[hash].type)
        return self._real.blobs.get(hash)

    def local_among(self, hashes: Collection[str]) -> set[str]:
        return self._real.blobs.local_among(hashes)

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        ours = {hash: self._info[hash] for hash in hashes if hash in self._info}
        return {**self._real.blobs.info(hashes), **ours}
