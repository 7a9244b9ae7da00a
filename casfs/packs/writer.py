"""Writes packs: the one writer for hot, cold and remote ones."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import BinaryIO

from casfs.digest import hash_bytes
from casfs.errors import Corrupt
from casfs.packs.layout import (
    ALIGNMENT,
    COUNTS,
    FRAME,
    FRAME_BYTES,
    HASH_BYTES,
    HEADER,
    MAGIC,
    MAX_FRAME_BYTES,
    MEMBER,
    META,
    RAW,
    REFERENCE,
    SALT_BYTES,
    TARGET,
    TRAILER,
    ZSTD,
    FrameRef,
)
from casfs.system.files import read_up_to
from casfs.system.zstd import LEVEL, Dictionary


class PackWriter:
    """Appends blobs to `out`, which is open for writing at its start. Small ones that are added
    one after the other share a frame, so neighbours compress together. `aligned`: nothing is
    compressed, and each member begins at a multiple of ALIGNMENT. The same blobs in the same order
    give the same pack (with one version of zstd). Not thread-safe."""

    def __init__(
        self,
        out: BinaryIO,
        *,
        aligned: bool = False,
        level: int = LEVEL,
        frame_bytes: int = FRAME_BYTES,
    ) -> None:
        self._out = out
        self._aligned = aligned
        self._frame_bytes = min(frame_bytes, MAX_FRAME_BYTES)
        self._plain = Dictionary(level=level)
        self._types: dict[str, int] = {}
        self._frames: list[bytes] = []
        self._members: list[bytes] = []
        self._pending: list[bytes] = []  # of the frame that is being filled
        self._pending_bytes = 0
        self._at = out.write(HEADER)

    @property
    def size(self) -> int:
        """Bytes written so far, and those that wait for their frame."""
        return self._at + self._pending_bytes

    @property
    def members(self) -> int:
        return len(self._members)

    def add(self, hash: str, data: bytes, type: str | None = None) -> int:
        """Appends a blob; returns its number. `type`: as in BlobInfo."""
        size = len(data)
        if self._aligned or self._pending_bytes + size > self._frame_bytes:
            self._flush()
        number = self._add_member(hash, size, type)
        for start in range(0, size, MAX_FRAME_BYTES):
            piece = data[start : start + MAX_FRAME_BYTES] if size > MAX_FRAME_BYTES else data
            self._pending.append(piece)
            self._pending_bytes += len(piece)
            if size > self._frame_bytes:  # frames of its own
                self._flush()
        return number

    def add_stream(self, hash: str, size: int, source: BinaryIO) -> int:
        """Appends a blob of `size` bytes in frames of its own, in constant memory. Raises Corrupt
        where `source` has another length."""
        self._flush()
        number = self._add_member(hash, size, type=None)
        left = size
        while piece := read_up_to(source, min(left, MAX_FRAME_BYTES)):
            self._pending.append(piece)
            self._pending_bytes = len(piece)
            left -= len(piece)
            self._flush()
        if left or source.read(1):
            raise Corrupt(f"blob {hash}: not {size} bytes long")
        return number

    def add_pieces(self, hash: str, size: int, pieces: Iterable[bytes | FrameRef]) -> list[int]:
        """Appends a blob of `size` bytes in a frame for each piece, which has at most
        MAX_FRAME_BYTES, or is a reference to some that are in a pack. Returns the numbers of the
        frames. Raises Corrupt where the pieces have another size."""
        self._flush()
        numbers = []
        self._add_member(hash, size, type=None)
        left = size
        for piece in pieces:
            numbers.append(len(self._frames))
            if isinstance(piece, FrameRef):
                self._add_reference(piece)
                left -= piece.size
                continue
            left -= len(piece)
            self._pending = [piece]
            self._pending_bytes = len(piece)
            self._flush()
        if left:
            raise Corrupt(f"blob {hash}: not {size} bytes long")
        return numbers

    def _add_reference(self, ref: FrameRef) -> None:
        ordinal = 0
        if ref.pack is not None:
            ordinal = self._types.setdefault(ref.pack, len(self._types) + 1)
        self._frames.append(FRAME.pack(self._at, TARGET.size, ref.size, REFERENCE, ordinal))
        self._at += self._out.write(TARGET.pack(ref.number, ref.offset))

    def add_salt(self) -> None:
        """Appends a random member, so that no other pack has the name of this one."""
        salt = os.urandom(SALT_BYTES)
        self.add(hash_bytes(salt), salt)

    def finish(self) -> str:
        """Writes the index and the trailer; returns the name of the pack. The caller syncs."""
        self._flush()
        self._align()  # who maps the last block of a member reads zeros behind it
        types = [
            bytes(HASH_BYTES) if type_hash == META else bytes.fromhex(type_hash)
            for type_hash in self._types
        ]
        counts = COUNTS.pack(len(types), 0, len(self._frames), len(self._members))
        index = b"".join((counts, *types, *self._frames, *self._members))
        name = hash_bytes(index)
        self._out.write(index)
        self._out.write(TRAILER.pack(self._at, len(index), bytes.fromhex(name), MAGIC))
        self._at += len(index) + TRAILER.size
        return name

    def _add_member(self, hash: str, size: int, type: str | None) -> int:
        type_number = 0 if type is None else self._types.setdefault(type, len(self._types) + 1)
        self._members.append(
            MEMBER.pack(
                bytes.fromhex(hash), size, len(self._frames), self._pending_bytes, type_number
            )
        )
        return len(self._members) - 1

    def _align(self) -> None:
        if self._aligned:
            self._at += self._out.write(bytes(-self._at % ALIGNMENT))

    def _flush(self) -> None:
        """Writes the pending members as a frame."""
        if not self._pending:
            return
        data = b"".join(self._pending) if len(self._pending) > 1 else self._pending[0]
        stored = data
        codec = RAW
        self._align()
        if not self._aligned:
            compressed = self._plain.compress(data)
            if len(compressed) < len(data):
                stored = compressed
                codec = ZSTD
        self._frames.append(FRAME.pack(self._at, len(stored), len(data), codec, 0))
        self._out.write(stored)
        self._at += len(stored)
        self._pending = []
        self._pending_bytes = 0
