"""A file that is a blob, and the view `blobs/<hash>`."""

from __future__ import annotations

from casfs.fuse.views.store_reader import Reader
from casfs.fuse.views.vnode import LONG_AGO, READ_FILE, Attr, ByDigest, Extent, File, Vnode


class BlobFile(File):
    """The size comes from whoever refers to the blob; reading checks it."""

    __slots__ = ("_hash", "_mode", "_mtime_ns", "_reader", "_size")

    def __init__(
        self,
        key: bytes,
        reader: Reader,
        hash: str,
        size: int,
        mode: int = READ_FILE,
        mtime_ns: int = LONG_AGO,
    ) -> None:
        super().__init__(key)
        self._reader = reader
        self._hash = hash
        self._size = size
        self._mode = mode
        self._mtime_ns = mtime_ns

    def attr(self) -> Attr:
        return Attr(self._mode, self._size, self._mtime_ns)

    @property
    def digest(self) -> str:
        return self._hash

    @property
    def ready(self) -> bool:
        return self._reader.ready(self._hash, self._size)

    def prepare(self) -> None:
        self._reader.prepare(self._hash)

    def read(self, offset: int, size: int) -> bytes:
        return self._reader.read(self._hash, self._size, offset, size)

    def extent(self, offset: int, size: int) -> Extent | None:
        return self._reader.extent(self._hash, self._size, offset, size)

    def seek(self, offset: int, whence: int, size: int) -> int:
        return self._reader.seek(self._hash, size, offset, whence)


def blobs(key: bytes, reader: Reader) -> ByDigest:
    """Any blob of the store."""

    def find(key: bytes, hash: str) -> Vnode | None:
        info = reader.info([hash]).get(hash)
        return None if info is None else BlobFile(key, reader, hash, info.size)

    return ByDigest(key, find)
