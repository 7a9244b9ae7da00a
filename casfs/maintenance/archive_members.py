"""Reads the members of an archive: a tar of plain files with short names and nothing else.

An archive that casfs wrote has no header that extends another (long names, pax, sparse files), so
none is accepted: what follows from one has no bound in memory or in depth.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from casfs.errors import Corrupt, Invalid

BLOCK = tarfile.BLOCKSIZE
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


class Member(io.RawIOBase):
    """The content of one file, read once and in order."""

    def __init__(self, stream: BinaryIO, name: str, size: int) -> None:
        self._stream = stream
        self._rest = size
        self.name = name
        self.size = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # a buffer
        data = self._stream.read(min(len(buffer), self._rest))
        if not data and self._rest and len(buffer):
            raise Corrupt("incomplete archive: unexpected end of data")
        buffer[: len(data)] = data
        self._rest -= len(data)
        return len(data)

    def skip(self) -> None:
        """Skips what was not read, and the padding."""
        while self.read(1 << 16):
            pass
        _read(self._stream, -self.size % BLOCK)


def members(stream: BinaryIO) -> Iterator[Member]:
    """Yields the files of a tar; each ends where the next begins. Raises Corrupt, Invalid."""
    while any(header := _read(stream, BLOCK)):
        try:
            tar_info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise Corrupt(f"incomplete archive: {error}") from None
        if header[156:157] not in PLAIN or tar_info.type not in PLAIN or tar_info.size < 0:
            raise Invalid(f"the member {tar_info.name!r} is not a regular file")
        member = Member(stream, tar_info.name, tar_info.size)
        yield member
        member.skip()


def _read(stream: BinaryIO, size: int) -> bytes:
    """Returns exactly `size` bytes: a stream may give fewer at once. Raises Corrupt."""
    data = b""
    while len(data) < size:
        chunk = stream.read(size - len(data))
        if not chunk:
            raise Corrupt("incomplete archive: unexpected end of data")
        data += chunk
    return data
