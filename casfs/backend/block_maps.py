"""Block maps: a large blob that was changed a little is blocks of other blobs.

Its row has a map in place of the bytes:

    MAGIC       16 bytes
    counts      of sources and of runs
    sources     32 bytes each: the hash of a blob
    runs        a source, its first block, and how many blocks follow there
    check       16 bytes: BLAKE3 of the blob's hash and of all that is before

Block n of a blob is its bytes from n * BLOCK_BYTES on. A *patch* is a blob of the blocks that no
source had, whole ones, the last filled up with zeros. Its trailer names the blob that it was made
for, so no file is equal to it by chance: it goes with its blob when that is purged.

A source is a file or a patch, never mapped itself, so a read looks at one map. Nothing refers to a
patch but maps. gc keeps sources as it keeps references, whatever else refers to them. Before a
source is purged or quarantined, the blobs that have blocks of it become files.
"""

from __future__ import annotations

import io
import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple, Self

from casfs.digest import Hasher
from casfs.errors import CorruptBlob
from casfs.packs.layout import BLOCK_BYTES, HASH_BYTES

MIN_BYTES = 8 << 20  # a smaller blob is kept whole
MAGIC = b"\0casfs blocks\0\xe1\x5b\x07"
COUNTS = struct.Struct("<II")
RUN = struct.Struct("<III")
CHECK_BYTES = 16
# Only large plain blobs: neither a node, whose row has its bytes, nor a mark of a purge.
IS_MAPPED = (
    f"(size >= {MIN_BYTES} AND type IS NULL AND data IS NOT NULL"
    f" AND substr(data, 1, {len(MAGIC)}) = x'{MAGIC.hex()}')"
)
STORED_BYTES = f"(CASE WHEN {IS_MAPPED} THEN length(data) ELSE size END)"


class Run(NamedTuple):
    """`blocks` of the source of that number, from its block `first` on."""

    source: int
    first: int
    blocks: int


class BlockMap(NamedTuple):
    """`sources`: hashes."""

    sources: list[str]
    runs: list[Run]

    def encode(self, hash: str) -> bytes:
        """`hash`: of the blob."""
        counts = COUNTS.pack(len(self.sources), len(self.runs))
        sources = [bytes.fromhex(source) for source in self.sources]
        runs = [RUN.pack(*run) for run in self.runs]
        body = b"".join((MAGIC, counts, *sources, *runs))
        return body + _check(hash, body)

    @classmethod
    def decode(cls, hash: str, size: int, data: bytes) -> Self:
        """Raises CorruptBlob where it is damaged, or is of another blob."""
        body = data[:-CHECK_BYTES]
        is_cut = len(data) < len(MAGIC) + COUNTS.size + CHECK_BYTES
        if is_cut or not is_map(data) or data[-CHECK_BYTES:] != _check(hash, body):
            raise CorruptBlob(f"blob {hash}: its block map is damaged")
        source_count, run_count = COUNTS.unpack_from(body, len(MAGIC))
        start = len(MAGIC) + COUNTS.size
        end = start + HASH_BYTES * source_count
        sources = [
            body[offset : offset + HASH_BYTES].hex() for offset in range(start, end, HASH_BYTES)
        ]
        runs = [Run(*run) for run in RUN.iter_unpack(body[end:])]
        blocks = sum(run.blocks for run in runs)
        is_whole = len(runs) == run_count and blocks == -(-size // BLOCK_BYTES)
        if not is_whole or any(run.source >= source_count for run in runs):
            raise CorruptBlob(f"blob {hash}: its block map is of another size")
        return cls(sources, runs)

    def cut(self, starts: list[int], first: int, count: int) -> Iterator[tuple[str, int, int]]:
        """Yields (source, its first block, blocks) of `count` blocks from the block `first` on.
        `starts`: as `self.starts` returns them."""
        number = bisect_right(starts, first) - 1
        end = first + count
        while first < end:
            run = self.runs[number]
            inside = first - starts[number]
            blocks = min(run.blocks - inside, end - first)
            yield self.sources[run.source], run.first + inside, blocks
            first += blocks
            number += 1

    def starts(self) -> list[int]:
        """Returns the first block of each run."""
        blocks = accumulate((run.blocks for run in self.runs), initial=0)
        return list(blocks)[:-1]


def is_map(data: bytes) -> bool:
    """Whether what is in the row of a large plain blob is a map."""
    return data.startswith(MAGIC)


def source_keys(data: bytes) -> set[bytes]:
    """Returns the keys of the sources of an encoded map, which is not decoded for that; none where
    it is cut."""
    start = len(MAGIC) + COUNTS.size
    if len(data) < start:
        return set()
    count, _ = COUNTS.unpack_from(data, len(MAGIC))
    end = min(start + count * HASH_BYTES, len(data) - HASH_BYTES)
    return {data[offset : offset + HASH_BYTES] for offset in range(start, end, HASH_BYTES)}


def _check(hash: str, body: bytes) -> bytes:
    return Hasher(bytes.fromhex(hash) + body).digest(length=CHECK_BYTES)


class MappedBlob(io.RawIOBase):
    """A blob as a stream that can be sought in. Its sources are open, and verified, so what is read
    of them is right as long as they have not `changed`. `pread` may be called from any thread."""

    def __init__(
        self, hash: str, size: int, block_map: BlockMap, open_source: Callable[[str], BinaryIO]
    ) -> None:
        """Raises what `open_source` raises."""
        self.size = size
        self.block_map = block_map
        self._hash = hash
        self._position = 0
        self._starts = block_map.starts()
        self._sources: list[Source] = []
        try:
            for source_hash in block_map.sources:
                with open_source(source_hash) as source:
                    self._sources.append(Source.of(source))
        except BaseException:
            self.close()
            raise

    def extent(self, offset: int, size: int) -> tuple[Source, int, int]:
        """Returns the source of the bytes from `offset` on, their offset in it, and how many of
        `size` are contiguous there."""
        number = bisect_right(self._starts, offset // BLOCK_BYTES) - 1
        run = self.block_map.runs[number]
        inside = offset - self._starts[number] * BLOCK_BYTES
        count = min(size, run.blocks * BLOCK_BYTES - inside, self.size - offset)
        return self._sources[run.source], run.first * BLOCK_BYTES + inside, count

    def pread(self, count: int, offset: int) -> bytes:
        """Returns the bytes there, fewer at the end only. Raises CorruptBlob."""
        pieces = []
        end = min(offset + count, self.size)
        while offset < end:
            source, inside, length = self.extent(offset, end - offset)
            piece = source.pread(length, inside)
            if len(piece) != length:
                raise CorruptBlob(f"blob {self._hash}: a source of its blocks is cut")
            pieces.append(piece)
            offset += length
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def changed(self) -> bool:
        """Whether a source was written to, or moved, since it was verified."""
        return any(source.stamp != _stamp(source.fd) for source in self._sources)

    def is_cut(self) -> bool:
        """Whether a source has become shorter."""
        return any(source.stamp[:1] > _stamp(source.fd)[:1] for source in self._sources)

    def held_bytes(self) -> int:
        """Returns how many bytes of sources are in memory."""
        return sum(len(source.data) for source in self._sources)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self._position)
        data = self.pread(left if size is None or size < 0 else size, self._position)
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.pread(len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        for source in self._sources:
            if source.fd >= 0:
                os.close(source.fd)
        self._sources = []
        super().close()


class Source(NamedTuple):
    """An open source: a descriptor, or the content in memory with `fd` -1. Not a stream: one that
    is collected together with its owner warns that it was not closed."""

    fd: int
    data: bytes
    stamp: tuple[int, ...]  # of its file when it was opened: size, mtime, ctime

    @classmethod
    def of(cls, source: BinaryIO) -> Self:
        if isinstance(source, io.BytesIO):
            return cls(-1, source.getvalue(), stamp=())
        fd = os.dup(source.fileno())
        return cls(fd, b"", stamp=_stamp(fd))

    def pread(self, count: int, offset: int) -> bytes:
        if self.fd < 0:
            return self.data[offset : offset + count]
        return os.pread(self.fd, count, offset)


def _stamp(fd: int) -> tuple[int, ...]:
    if fd < 0:
        return ()
    seen = os.fstat(fd)
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
