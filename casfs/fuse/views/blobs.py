"""Files that are blobs: verified reads through open descriptors, and the view `blobs/<hash>`.

A short blob that is read whole is read and verified at once. Of other blobs a descriptor is
cached: the store verified the file when it was opened, and every read first checks by fstat
that the file is unchanged, else it is opened and verified again. Nothing is served that was
not verified; content that is shorter or longer than the size in the referring node is corrupt,
too. A descriptor is closed with its last reference, so the cache may evict one while another
thread still reads from it.

Callers follow a reference here: a blob that is missing is `Corrupt`, not NotFound.
"""

from __future__ import annotations

import errno
import os
from io import BytesIO
from typing import BinaryIO

from casfs.backend.derived import sized_reader
from casfs.errors import Corrupt, CorruptBlob, NotFound
from casfs.fuse.views.directories import HashDirectory
from casfs.fuse.views.errors import Denied
from casfs.fuse.views.vnode import LONG_AGO, READ_FILE, Attr, Extent, File, Vnode
from casfs.lru_cache import LruCache
from casfs.store import Store

VERIFY_INLINE_BYTES = 1 << 20  # a longer blob is verified by the verify pool
READ_WHOLE_BYTES = 1 << 17  # a blob up to here that is read whole needs no descriptor
OPEN_BLOBS = 128


class BlobReader:
    """Thread-safe."""

    def __init__(self, store: Store) -> None:
        self.open_blobs = LruCache(OPEN_BLOBS)
        self.info = store.blobs.info
        self._store_open = store.blobs.open
        self._store_content = sized_reader(store.blobs)

    def ready(self, hash: str, total: int) -> bool:
        return total <= VERIFY_INLINE_BYTES or self.open_blobs.get(hash) is not None

    def prepare(self, hash: str) -> OpenBlob:
        """Opens and verifies a blob, so that `read` need not. Raises Corrupt, CorruptBlob."""
        try:
            with self._store_open(hash) as source:
                blob = OpenBlob(source)
        except NotFound as error:
            raise Corrupt(f"{hash} is referred to, but {error}") from None
        self.open_blobs.put(hash, blob, 1)
        return blob

    def read(self, hash: str, total: int, offset: int, count: int) -> bytes:
        """Returns `count` bytes at `offset` of a blob of `total` bytes. Raises CorruptBlob."""
        wanted = min(count, total - offset)
        if wanted <= 0:
            return b""
        if wanted == total <= READ_WHOLE_BYTES:
            try:
                data = self._store_content(hash, total)
            except NotFound as error:
                raise Corrupt(f"{hash} is referred to, but {error}") from None
        else:
            data = self._verified(hash, total).pread(wanted, offset)
        if len(data) != wanted:
            raise CorruptBlob(f"blob {hash}: {len(data)} bytes where {wanted} should be")
        return data

    def extent(self, hash: str, total: int, offset: int, count: int) -> Extent | None:
        blob = self._verified(hash, total)
        wanted = min(count, total - offset)
        return Extent(blob.fd, offset, wanted, blob) if blob.fd >= 0 < wanted else None

    def seek(self, hash: str, total: int, offset: int, whence: int) -> int:
        blob = self._verified(hash, total)
        if blob.fd < 0:
            return offset if whence == os.SEEK_DATA else total
        try:
            return os.lseek(blob.fd, offset, whence)
        except OSError as error:
            raise Denied(error.errno or errno.EIO) from None

    def _verified(self, hash: str, total: int) -> OpenBlob:
        """Returns the open blob, its content verified. Raises CorruptBlob."""
        blob: OpenBlob | None = self.open_blobs.get(hash)
        if blob is None or blob.changed():
            blob = self.prepare(hash)
        if blob.size != total:
            raise CorruptBlob(f"blob {hash}: {blob.size} bytes, its node says {total}")
        return blob


class OpenBlob:
    """A verified blob; its descriptor is open as long as this object is referenced. A blob
    without a file of its own is held in memory, with `fd` -1."""

    __slots__ = ("_data", "_times", "fd", "size")

    def __init__(self, source: BinaryIO) -> None:
        self.fd = -1
        self._data = b""
        self._times = (0, 0)
        if isinstance(source, BytesIO):
            self._data = source.getvalue()
            self.size = len(self._data)
        else:
            self.fd = os.dup(source.fileno())
            self.size = os.fstat(self.fd).st_size
            self._times = self._stat_times()

    def _stat_times(self) -> tuple[int, int]:
        stat = os.fstat(self.fd)
        return stat.st_mtime_ns, stat.st_ctime_ns

    def changed(self) -> bool:
        return self.fd >= 0 and self._stat_times() != self._times

    def pread(self, count: int, offset: int) -> bytes:
        if self.fd < 0:
            return self._data[offset : offset + count]
        return os.pread(self.fd, count, offset)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class BlobFile(File):
    """The size is the one that the referring node states; reading checks it."""

    __slots__ = ("_hash", "_mode", "_mtime_ns", "_reader", "_size")

    def __init__(
        self,
        key: bytes,
        reader: BlobReader,
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


def blobs(key: bytes, reader: BlobReader) -> HashDirectory:
    """Any blob of the store, by hash."""

    def find(key: bytes, hash: str) -> Vnode | None:
        info = reader.info([hash]).get(hash)
        return None if info is None else BlobFile(key, reader, hash, info.size)

    return HashDirectory(key, find)
