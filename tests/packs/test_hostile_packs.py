"""Packs whose index hashes to its name, but says what no writer of ours does."""

from __future__ import annotations

import pytest

from casfs.digest import hash_bytes
from casfs.errors import Corrupt, CorruptBlob
from casfs.packs.layout import (
    COUNTS,
    DICTIONARY,
    FRAME,
    HEADER,
    MAGIC,
    MAX_FRAME_BYTES,
    MEMBER,
    RAW,
    TRAILER,
    ZSTD,
)
from casfs.packs.reader import PackReader, read_index
from casfs.system import zstd

ABSENT = bytes(32)
COMPRESSED = zstd.Dictionary().compress(b"abc")


def forged(
    frames: list[tuple[bytes, int, int, int]],
    members: list[tuple[bytes, int, int, int]],
    dictionaries: tuple[int, ...] = (),
) -> PackReader:
    """`frames`: (stored, size, codec, dictionary); `members`: (hash, size, frame, offset)."""
    pack, table = HEADER, b""
    for stored, *rest in frames:
        table += FRAME.pack(len(pack), len(stored), *rest)
        pack += stored
    index = COUNTS.pack(0, len(dictionaries), len(frames), len(members))
    index += b"".join(map(DICTIONARY.pack, dictionaries)) + table
    index += b"".join(MEMBER.pack(*one, 0) for one in members)
    name = bytes.fromhex(hash_bytes(index))
    pack += index + TRAILER.pack(len(pack), len(index), name, MAGIC)

    def read_at(offset: int, size: int) -> bytes:
        return pack[offset : offset + size]

    return PackReader(read_index(read_at, len(pack)), read_at)


def test_a_dictionary_that_needs_itself() -> None:
    frames = [(b"x", 1, RAW, 0), (COMPRESSED, 3, ZSTD, 1)]
    pack = forged(frames, [(ABSENT, 4, 0, 0)], (0,))
    with pytest.raises(CorruptBlob, match="cannot be a dictionary"):
        pack.read(0)


def test_what_is_no_dictionary() -> None:
    data = b"\x37\xa4\x30\xec" + b"\xff" * 300  # zstd's magic number, then nonsense
    frames = [(data, len(data), RAW, 0), (COMPRESSED, 3, ZSTD, 1)]
    members = [(bytes.fromhex(hash_bytes(data)), len(data), 0, 0), (ABSENT, 3, 1, 0)]
    pack = forged(frames, members, (0,))
    assert pack.read(0) == data
    with pytest.raises(CorruptBlob, match="not a dictionary"):
        pack.read(1)


@pytest.mark.parametrize("codec", [RAW, ZSTD])
def test_frames_are_short_in_the_file_as_well(codec: int) -> None:
    size = MAX_FRAME_BYTES + 1
    pack = forged([(bytes(size), size if codec == RAW else 3, codec, 0)], [(ABSENT, 3, 0, 0)])
    with pytest.raises(Corrupt, match="frame 0 cannot be one"):
        pack.index.frame(0)
