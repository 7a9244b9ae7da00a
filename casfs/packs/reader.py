"""Reads packs: from a file, or by ranges from wherever a `read_at` takes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from casfs.digest import Hasher
from casfs.errors import Corrupt, CorruptBlob, Failed, NotFound
from casfs.packs.index import PackIndex, read_trailer
from casfs.packs.layout import MAX_FRAME_BYTES, RAW, REFERENCE, TARGET, TRAILER, Frame, FrameRef
from casfs.system.files import os_errors
from casfs.system.lru_cache import LruCache
from casfs.system.paths import FILE_FLAGS
from casfs.system.zstd import Dictionary

FRAME_CACHE_BYTES = 1 << 20  # of decompressed frames, each reader
ReadAt = Callable[[int, int], bytes]  # (offset, size) -> the bytes there; fewer at the end only


class PackReader:
    """Thread-safe. `fd`: the descriptor that `read_at` uses, closed with the last reference.
    `open_other`: returns the reader of another pack, by its name, to which a frame of this one
    refers; asked at each read."""

    def __init__(
        self,
        index: PackIndex,
        read_at: ReadAt,
        fd: int = -1,
        open_other: Callable[[str], PackReader] | None = None,
    ) -> None:
        self.index = index
        self._fd = fd
        self._read_at = read_at
        self._open_other = open_other
        self._frames = LruCache(FRAME_CACHE_BYTES)
        self._plain = Dictionary()
        self._dictionaries: dict[int, Dictionary] = {}

    def read(self, number: int) -> bytes:
        """Returns the verified bytes of a member. Raises CorruptBlob for those of a damaged frame,
        Corrupt where the index is damaged; what `read_at` raises is passed on."""
        member = self.index.member(number)
        pieces = list(self.pieces(number))
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) != member.size or Hasher(data).hexdigest() != member.hash:
            raise self._damaged(number, "its bytes do not hash to its name")
        return data

    def pieces(self, number: int) -> Iterator[bytes]:
        """Yields the bytes of a member, a frame at a time, not verified. Raises as `read`."""
        member = self.index.member(number)
        frame_number = member.frame
        offset = member.offset
        left = member.size
        while left:
            try:
                frame = self.index.frame(frame_number)
                count = min(left, frame.size - offset)
                if count <= 0:
                    raise Corrupt(f"frame {frame_number} ends before it")
                piece = self._part(frame_number, frame, offset=offset, count=count)
            except Corrupt as error:
                raise self._damaged(number, str(error)) from None
            yield piece
            frame_number = frame_number + 1
            offset = 0
            left = left - count

    def frame(self, number: int) -> bytes:
        """Returns the decompressed bytes of a frame, not verified. Raises Corrupt."""
        return self._whole(number, self.index.frame(number))

    def _part(self, number: int, frame: Frame, offset: int, count: int) -> bytes:
        if frame.codec == REFERENCE:
            reader, ref = self.resolved(number)
            target = reader.index.frame(ref.number)
            return reader._part(ref.number, target, offset=ref.offset + offset, count=count)
        if frame.codec == RAW:
            return self._stored(number, frame.offset + offset, count)
        data = self._whole(number, frame)
        return data if count == frame.size else data[offset : offset + count]

    def resolved(self, number: int) -> tuple[PackReader, FrameRef]:
        """Returns the target of a reference, with the reader of its pack; of any other frame the
        frame itself. Raises Corrupt."""
        frame = self.index.frame(number)
        if frame.codec != REFERENCE:
            return self, FrameRef(None, number, offset=0, size=frame.size)
        target_number, offset = TARGET.unpack(self._stored(number, frame.offset, TARGET.size))
        reader = self if frame.dictionary == 0 else self._other(frame.dictionary)
        target = reader.index.frame(target_number)
        if target.codec == REFERENCE or offset + frame.size > target.size:
            raise Corrupt(f"frame {number} refers to what is not there")
        return reader, FrameRef(reader.index.name, target_number, offset=offset, size=frame.size)

    def _other(self, ordinal: int) -> PackReader:
        name = self.index.referred(ordinal)
        if self._open_other is None:
            raise Corrupt(f"it refers to the pack {name}, which is not here")
        return self._open_other(name)

    def _whole(self, number: int, frame: Frame) -> bytes:
        if frame.codec == REFERENCE:
            return self._part(number, frame, offset=0, count=frame.size)
        if frame.codec == RAW:
            return self._stored(number, frame.offset, frame.stored)
        key = str(number)
        data: bytes | None = self._frames.get(key)
        if data is None:
            stored = self._stored(number, frame.offset, frame.stored)
            data = self._dictionary(frame.dictionary).decompress(stored, MAX_FRAME_BYTES)
            if len(data) != frame.size:
                raise Corrupt(f"frame {number} has {len(data)} bytes, not {frame.size}")
            self._frames.put(key, data, len(data))
        return data

    def _stored(self, number: int, offset: int, count: int) -> bytes:
        data = self._read_at(offset, count)
        if len(data) != count:
            raise Corrupt(f"frame {number} is cut")
        return data

    def _dictionary(self, ordinal: int) -> Dictionary:
        if ordinal == 0:
            return self._plain
        dictionary = self._dictionaries.get(ordinal)
        if dictionary is None:
            number = self.index.dictionary(ordinal)
            member = self.index.member(number)
            frame = self.index.frame(member.frame)
            if frame.dictionary or member.offset + member.size > frame.size:
                raise Corrupt(f"member {number} cannot be a dictionary")
            dictionary = self._dictionaries[ordinal] = Dictionary(self.read(number))
        return dictionary

    def _damaged(self, number: int, why: str) -> CorruptBlob:
        member = self.index.member(number)
        where = f"member {number} of pack {self.index.name}, frame {member.frame}"
        return CorruptBlob(f"blob {member.hash}: {where}: {why}")

    @contextmanager
    def moving(self, number: int) -> Iterator[None]:
        """The block stores a member elsewhere."""
        yield

    def forget(self) -> None:
        """Drops the cached frames, so that the next read sees what is stored now."""
        self._frames = LruCache(FRAME_CACHE_BYTES)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def open_pack(path: Path) -> PackReader:
    """Opens a pack on disk. Raises NotFound, Corrupt, Failed. Whether it has the name that its
    path says is for the caller to check."""
    try:
        fd = os.open(path, FILE_FLAGS)
    except FileNotFoundError:
        raise NotFound(f"no pack {path}") from None
    except OSError as error:
        raise Failed(f"cannot open {path}: {error.strerror}") from error

    def read_at(offset: int, size: int) -> bytes:
        with os_errors(f"cannot read {path}"):
            return os.pread(fd, size, offset)

    try:
        index = read_index(read_at, os.fstat(fd).st_size)
    except BaseException:
        os.close(fd)
        raise
    return PackReader(index, read_at, fd)


def read_index(read_at: ReadAt, total: int) -> PackIndex:
    """Returns the index of a pack of `total` bytes. Raises Corrupt, and what `read_at` raises."""
    tail = read_at(max(0, total - TRAILER.size), TRAILER.size)
    name, offset, size = read_trailer(tail, total)
    return PackIndex(name, read_at(offset, size), offset)


def verify(reader: PackReader) -> Iterator[tuple[int, str]]:
    """Reads every member, one at a time and in constant memory; yields the number of each damaged
    one, and what is wrong."""
    for number in range(reader.index.members):
        try:
            member = reader.index.member(number)
            hasher = Hasher()
            for piece in reader.pieces(number):
                hasher.update(piece)
            if hasher.hexdigest() != member.hash:
                yield number, f"frame {member.frame}: its bytes do not hash to its name"
        except Corrupt as error:
            yield number, str(error)
