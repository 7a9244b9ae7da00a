"""The first pass of an import: a backend that answers like the real one and stores nothing.

It keeps what it is given of schemas, since later nodes are checked against them, and of the
rest the digests. Heads are checked here as well: each must lead to what one of its name may
lead to, and everything that its record mentions must be there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, BinaryIO

from casfs.backend.protocols import Backend, Blob, BlobInfo, Head, Heads, Staged, Swap, targets
from casfs.digest import hash_stream
from casfs.errors import Corrupt
from casfs.maintenance import names as catalogue
from casfs.nodes.registry import Registry


class Rehearsal:
    def __init__(self, real: Backend) -> None:
        self._real = real
        self.blobs: Any = RehearsalBlobs(real)
        self.heads: Heads = real.heads

    def publish(
        self, staged: Iterable[Staged], swaps: Iterable[Swap] = (), require: Collection[str] = ()
    ) -> set[str]:
        del require  # the real one answered for them a moment ago
        self.blobs.keep(staged)
        for swap in swaps:
            if swap.new is not None:
                self._check(swap.name, swap.new)
        return set()

    def _check(self, name: str, head: Head) -> None:
        """Does a head lead to what one of its name must? Raises Corrupt."""
        known = self.blobs.info(targets(head))
        for hash in targets(head):
            if hash not in known:
                raise Corrupt(f"the head {name} leads to {hash}, which is not in it")
        type_hash, names = known[head.hash].type, catalogue.kinds(name)
        if type_hash is None or Registry(self).name(type_hash) not in names:
            raise Corrupt(f"the head {name} leads to {head.hash}: no {' or '.join(names)}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class RehearsalBlobs:
    def __init__(self, real: Backend) -> None:
        self._real = real
        self._info: dict[str, BlobInfo] = {}
        self._schemas: dict[str, bytes] = {}

    def stage(self, source: BinaryIO) -> Staged:
        return Staged(hash_stream(source), None)

    def keep(self, staged: Iterable[Staged]) -> None:
        for one in staged:
            self._info[one.digest.hash] = BlobInfo(one.digest.size_bytes, one.type)
            if one.type is not None and one.data is not None and b'"$id":' in one.data:
                self._schemas[one.digest.hash] = one.data

    def get(self, hash: str) -> Blob:
        if hash in self._schemas:
            return Blob(self._schemas[hash], self._info[hash].type)
        return self._real.blobs.get(hash)

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        ours = {hash: self._info[hash] for hash in hashes if hash in self._info}
        return {**self._real.blobs.info(hashes), **ours}
