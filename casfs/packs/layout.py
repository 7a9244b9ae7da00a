"""The structures of a pack, byte for byte (`docs/format.md`). All numbers are little endian.

    header     16 bytes
    frames     the bytes of the members: as they are, or a zstd frame each
    index      counts, types, dictionaries, frames, members
    trailer    56 bytes: where the index is, and its BLAKE3: the name of the pack

The index holds the hash of every member, so the name commits to the content, a reader with
the index can read by ranges, and holes punched into the frames leave the name as it is.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER = b"casfs pack 1\n\0\0\0"
MAGIC = b"casfspk1"  # the last bytes of a pack
TRAILER = struct.Struct("<QQ32s8s")  # offset and size of the index, its BLAKE3, MAGIC
COUNTS = struct.Struct("<IIII")  # types, dictionaries, frames, members
HASH_BYTES = 32
DICTIONARY = struct.Struct("<I")
FRAME = struct.Struct("<QIIHH")
MEMBER = struct.Struct("<32sQIII")
TARGET = struct.Struct("<II")  # what a reference stands for: a frame, and an offset in that
RAW = 0  # codecs of a frame
ZSTD = 1
REFERENCE = 2
ALIGNMENT = 4096  # of the frames of an aligned pack
FRAME_BYTES = 256 << 10  # of small members that share a frame, before compression
MAX_FRAME_BYTES = 1 << 20  # of any frame, before compression
BLOCK_BYTES = 64 << 10  # of what a reference stands for, or a multiple
MAX_INDEX_BYTES = 256 << 20
SALT_BYTES = 16  # of a random member, with which the name of a pack is used once
META = "schema"  # the type of the meta-schema node; 32 zero bytes in a pack


class Frame(NamedTuple):
    """`stored` bytes at `offset`, `size` decompressed; `dictionary`: 0, or 1 + its place. Of a
    reference: 0 for a frame of this pack, or 1 + the place of a pack's name among the types."""

    offset: int
    stored: int
    size: int
    codec: int
    dictionary: int


class FrameRef(NamedTuple):
    """The target of a reference: `size` bytes at `offset` of the decompressed content of frame
    `number`, which is not a reference itself. `pack`: its name; None: the pack being written."""

    pack: str | None
    number: int
    offset: int
    size: int


class Member(NamedTuple):
    """A blob of `size` bytes, which begins at `offset` of the decompressed `frame` and goes on
    through the frames behind it. `type`: as in BlobInfo."""

    hash: str
    size: int
    frame: int
    offset: int
    type: str | None
