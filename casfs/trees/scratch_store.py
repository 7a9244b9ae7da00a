"""A view of a store in which looking at a directory stores nothing.

What is put goes to memory: the nodes with their bytes, of file contents the digest alone. They are
read from the directory again, and verified, when a patch shows them. Everything else is read from
the store itself. So whatever compares recorded trees can compare a directory, and no byte of it is
left in the store: it may hold secrets that a checkpoint would leave out.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from casfs.backend.derived import open_stream
from casfs.backend.protocols import Blob, BlobInfo, Blobs, Heads, Staged, Swap
from casfs.digest import CHUNK, BlobHash, Digest, Hasher, TreeHash, hash_bytes
from casfs.errors import Conflict, NotFound, Refused
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system.paths import FILE_FLAGS
from casfs.trees import tree

HELD_BYTES = 1 << 16  # a longer content is read from the directory again


class ScratchStore(Store):
    """Reads `store`; writes nothing."""

    def __init__(self, store: Store) -> None:
        self._stored_blobs = store.blobs
        self._scratch = ScratchBlobs(store.blobs)
        super().__init__(ScratchBackend(self._scratch, store.heads), store.root)

    def stored(self, hashes: Iterable[str]) -> Collection[str]:
        """Returns those of the hashes that the store itself has."""
        return self._stored_blobs.info(list(hashes)).keys()

    def looked_at(self, directory: Path, root: TreeHash) -> None:
        """Notes that the contents of the tree `root` are in `directory`."""
        for path, entry in tree.walk(self, root):
            if isinstance(entry, File) and self._scratch.lacks(entry.digest.hash):
                self._scratch.paths[entry.digest.hash] = directory / os.fsdecode(path)


class ScratchBlobs:
    """`paths`: where a content can be read that is neither stored nor held."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._held: dict[str, Staged] = {}
        self._sizes: dict[str, int] = {}  # of all that was published
        self.paths: dict[str, Path] = {}

    def add(self, staged: Staged) -> bool:
        """Takes what is published; returns whether it was here already."""
        hash = staged.digest.hash
        is_known = hash in self._sizes
        self._sizes[hash] = staged.digest.size_bytes
        if staged.data is not None:
            self._held[hash] = staged
        return is_known

    def lacks(self, hash: str) -> bool:
        """Returns whether a content is in its directory only."""
        is_new = hash in self._sizes and hash not in self._held
        return is_new and not self._blobs.info([hash])

    def stage_bytes(self, digest: Digest, data: bytes) -> Staged:
        return Staged(digest, data if len(data) <= HELD_BYTES else None)

    def stage(self, source: BinaryIO) -> Staged:
        hasher = Hasher()
        size = 0
        held = io.BytesIO()
        while piece := source.read(CHUNK):
            hasher.update(piece)
            size += len(piece)
            if size <= HELD_BYTES:
                held.write(piece)
        digest = Digest(BlobHash(hasher.hexdigest()), size)
        return Staged(digest, held.getvalue() if size <= HELD_BYTES else None)

    def get(self, hash: str) -> Blob:
        staged = self._held.get(hash)
        if staged is not None and staged.data is not None:
            return Blob(staged.data, staged.type)
        if hash in self.paths:
            return Blob(self._read(hash), type=None)
        return self._blobs.get(hash)

    def open(self, hash: str) -> BinaryIO:
        if self._is_ours(hash):
            return io.BytesIO(self.get(hash).data)
        return self._blobs.open(hash)

    def stream(self, hash: str) -> BinaryIO:
        return self.open(hash) if self._is_ours(hash) else open_stream(self._blobs, hash)

    def get_many(self, hashes: Iterable[str]) -> Iterator[bytes | None]:
        wanted = list(hashes)
        if not any(self._is_ours(hash) for hash in wanted):
            yield from self._blobs.get_many(wanted)
            return
        for hash in wanted:
            if self._is_ours(hash):
                yield self.get(hash).data
            else:
                yield from self._blobs.get_many([hash])

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        known = self._blobs.info(hashes)
        for hash in hashes:
            if hash in self._sizes and hash not in known:
                staged = self._held.get(hash)
                known[hash] = BlobInfo(self._sizes[hash], None if staged is None else staged.type)
        return known

    def local_among(self, hashes: Collection[str]) -> set[str]:
        return self._blobs.local_among(hashes)

    def unmark_local(self, hashes: Collection[str]) -> None:
        """Nothing: a view of a store changes none of its marks."""

    def iterate(self, after: int = 0) -> Iterator[tuple[int, str, BlobInfo]]:
        return self._blobs.iterate(after)

    def _is_ours(self, hash: str) -> bool:
        return hash in self._held or hash in self.paths

    def _read(self, hash: str) -> bytes:
        """Raises NotFound; Conflict where the file was changed since it was hashed."""
        path = self.paths[hash]
        try:
            with open(os.open(path, FILE_FLAGS), "rb") as file:
                data = file.read(self._sizes[hash] + 1)
        except OSError as error:
            raise NotFound(f"cannot read {path} again: {error.strerror}") from None
        if hash_bytes(data) != hash:
            raise Conflict(f"{path} was changed while it was compared; try again")
        return data


class ScratchBackend:
    """Publishes to memory; moves no head."""

    def __init__(self, blobs: ScratchBlobs, heads: Heads) -> None:
        self.blobs = blobs
        self.heads = heads

    def publish(
        self,
        staged: Iterable[Staged],
        swaps: Iterable[Swap] = (),
        require: Collection[str] = (),
        local: Collection[str] = (),
    ) -> set[str]:
        if any(True for _ in swaps):
            raise Refused("a view of a store moves no head")
        missing = set(require) - self.blobs.info(list(require)).keys()
        if missing:
            raise NotFound(f"no blob {min(missing)} in this store")
        return {staged_blob.digest.hash for staged_blob in staged if self.blobs.add(staged_blob)}

    def close(self) -> None:
        """The store stays open: it is another's."""
