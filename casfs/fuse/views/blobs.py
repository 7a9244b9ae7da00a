"""Files that are blobs: verified reads through open descriptors.

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

from casfs.backend.block_maps import MappedBlob
from casfs.backend.derived import sized_reader
from casfs.errors import Corrupt, CorruptBlob, NotFound
from casfs.fuse.views.errors import Denied
from casfs.fuse.views.read_ahead import FilesOfDirectory, ReadAhead
from casfs.fuse.views.vnode import Attr, Extent, File
from casfs.store.store import Store
from casfs.system.lru_cache import LruCache

VERIFY_INLINE_BYTES = 1 << 20  # a longer blob is verified by the verify pool
READ_WHOLE_BYTES = 1 << 17  # a blob up to here that is read whole needs no descriptor
OPEN_BYTES = 32 << 20  # of open blobs, as weighed here
DESCRIPTOR_BYTES = OPEN_BYTES // 128
MIN_WEIGHT = 4096


class BlobReader:
    """Reads blobs, and caches open ones. Thread-safe. Raises Corrupt, CorruptBlob."""

    def __init__(self, store: Store) -> None:
        self.open_blobs = LruCache(OPEN_BYTES)
        self._purged = store.purged
        self._purged.add_cache(self.open_blobs)
        self.info = store.blobs.info
        self._store_open = store.blobs.open
        self._store_content = sized_reader(store.blobs)
        self.ahead = ReadAhead(store.blobs.get_many)
        self._purged.add_cache(self.ahead.contents)

    def read_whole(self, hash: str, total: int, directory: FilesOfDirectory | None = None) -> bytes:
        """`directory`: in which the blob is a file; others of it may be read, too."""
        if directory is not None:
            self._purged.replaced()  # clears the cache, where something was purged
            content = self.ahead.read(hash, directory)
            if content is not None:
                return content
        try:
            return self._store_content(hash, total)
        except NotFound as error:
            raise Corrupt(f"{hash} is referred to, but {error}") from None

    def open(self, hash: str) -> OpenBlob:
        """Opens and verifies a blob."""
        generation = self.open_blobs.generation
        try:
            source = self._store_open(hash)
        except NotFound as error:
            raise Corrupt(f"{hash} is referred to, but {error}") from None
        if isinstance(source, MappedBlob):
            blob = OpenBlob(source)
        else:
            with source:
                blob = OpenBlob(source)
        self.open_blobs.put(hash, blob, blob.weight, generation)
        return blob

    def verified(self, hash: str, total: int) -> OpenBlob:
        """Returns an open blob of `total` bytes, unchanged since it was verified."""
        self._purged.replaced()  # clears the cache, where something was purged
        blob: OpenBlob | None = self.open_blobs.get(hash)
        if blob is None or blob.changed():
            blob = self.open(hash)
        if blob.size != total:
            raise CorruptBlob(f"blob {hash}: {blob.size} bytes, its node says {total}")
        return blob


class OpenBlob:
    """A verified blob; its descriptors are open as long as this object is referenced. One without a
    file of its own is held in memory, or mapped to blocks of others. `weight`: what it costs the
    cache."""

    __slots__ = ("_data", "_fd", "_mapped", "_times", "size", "weight")

    def __init__(self, source: BinaryIO) -> None:
        """Takes a mapped `source` over."""
        self._mapped: MappedBlob | None = None
        self._fd = -1
        self._data = b""
        self._times = (0, 0)
        if isinstance(source, BytesIO):
            self._data = source.getvalue()
            self.size = len(self._data)
            self.weight = max(self.size, MIN_WEIGHT)
        elif isinstance(source, MappedBlob):
            self._mapped = source
            self.size = source.size
            descriptors = DESCRIPTOR_BYTES * len(source.block_map.sources)
            self.weight = descriptors + source.held_bytes()
        else:
            self._fd = os.dup(source.fileno())
            self.size = os.fstat(self._fd).st_size
            self.weight = DESCRIPTOR_BYTES
            self._times = self._stat_times()

    def _stat_times(self) -> tuple[int, int]:
        stat = os.fstat(self._fd)
        return stat.st_mtime_ns, stat.st_ctime_ns

    def changed(self) -> bool:
        if self._mapped is not None:
            return self._mapped.changed()
        return self._fd >= 0 and self._stat_times() != self._times

    def pread(self, count: int, offset: int) -> bytes:
        if self._mapped is not None:
            return self._mapped.pread(count, offset)
        if self._fd < 0:
            return self._data[offset : offset + count]
        return os.pread(self._fd, count, offset)

    def extent(self, offset: int, count: int) -> Extent | None:
        """Returns where `count` bytes are contiguous in a file; None where they are not."""
        if self._fd >= 0:
            return Extent(self._fd, offset, size=count, owner=self)
        if self._mapped is not None:
            source, start, length = self._mapped.extent(offset, count)
            if length == count and source.fd >= 0:
                return Extent(source.fd, start, size=count, owner=self)
        return None

    def seek(self, offset: int, whence: int) -> int:
        """As lseek(2) with SEEK_DATA or SEEK_HOLE; what is in no file of its own has no holes."""
        if self._fd >= 0:
            return os.lseek(self._fd, offset, whence)
        return offset if whence == os.SEEK_DATA else self.size

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class BlobFile(File):
    """The size in `attr` is the one that the referring node states; reading checks it. `directory`:
    of the tree that it is a file of."""

    __slots__ = ("_attr", "_directory", "_hash", "_reader", "_size")

    def __init__(
        self,
        key: bytes,
        reader: BlobReader,
        hash: str,
        attr: Attr,
        directory: FilesOfDirectory | None = None,
    ) -> None:
        super().__init__(key)
        self._reader = reader
        self._hash = hash
        self._attr = attr
        self._size = attr.size
        self._directory = directory

    def attr(self) -> Attr:
        return self._attr

    @property
    def digest(self) -> str:
        return self._hash

    @property
    def ready(self) -> bool:
        if self._size <= VERIFY_INLINE_BYTES:
            return True
        return self._reader.open_blobs.get(self._hash) is not None

    def prepare(self) -> None:
        self._reader.open(self._hash)

    def read(self, offset: int, size: int) -> bytes:
        wanted = min(size, self._size - offset)
        if wanted <= 0:
            return b""
        if wanted == self._size <= READ_WHOLE_BYTES:
            data = self._reader.read_whole(self._hash, wanted, self._directory)
        else:
            data = self._reader.verified(self._hash, self._size).pread(wanted, offset)
        if len(data) != wanted:
            raise CorruptBlob(f"blob {self._hash}: {len(data)} bytes where {wanted} should be")
        return data

    def extent(self, offset: int, size: int) -> Extent | None:
        blob = self._reader.verified(self._hash, self._size)
        wanted = min(size, self._size - offset)
        return blob.extent(offset, wanted) if wanted > 0 else None

    def seek(self, offset: int, whence: int, size: int) -> int:
        blob = self._reader.verified(self._hash, size)
        try:
            return blob.seek(offset, whence)
        except OSError as error:
            raise Denied(error.errno or errno.EIO) from None
