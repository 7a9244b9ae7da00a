"""The structures of an image, byte for byte (Linux: fs/erofs/erofs_fs.h), but not their places.
All numbers are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from casfs.native.erofs.model import BLOCK, Attr

MAGIC = 0xE0F5E1E2
AT_SUPER = 1024  # offset of the superblock
SLOT = 32  # bytes; inodes are counted in slots
BLOCK_BITS = BLOCK.bit_length() - 1
MAX_BLOCKS = 0xFFFF_FFFE  # 0xFFFF_FFFF is the address of a hole

CHECKSUM = 1  # compatible features
MTIME = 2
CHUNKED = 4  # the incompatible features that are used
DEVICES = 8

EXTENDED = 1  # bit 0 of an inode's format; the bits above are the place of its data
PLAIN = 0 << 1
INLINE = 2 << 1
CHUNKS = 4 << 1
MAX_CHUNK_BITS = 31  # a chunk is of BLOCK << this at most
HOLE = b"\xff\xff\xff\xff"
INDEXED = 32  # bit of a chunk format: an INDEX for each chunk, not an address

FILE = 1  # types in a directory entry
DIRECTORY = 2
DEVICE = 3
SYMLINK = 7

SUPER = struct.Struct("<IIIBBHQqIIII16s16sIHHHBBIQ24x")
INODE = struct.Struct("<HHHHIIIIHHI")
INODE_EXTENDED = struct.Struct("<HHHHQIIIIqII16x")
AT_START = 16  # offset in an inode of where its blocks start
START = struct.Struct("<I")
INDEX = struct.Struct("<HHI")
DEVICE_SLOT = struct.Struct("<64sI60x")
AT_TABLE = AT_SUPER + SUPER.size  # of the devices; a multiple of DEVICE_SLOT.size
DIRENT = struct.Struct("<QHBx")
NID = struct.Struct("<Q")
XATTRS = struct.Struct("<IB7x")
XATTR = struct.Struct("<BBH")


class Superblock(NamedTuple):
    """Inodes and shared xattrs are counted from block `area`."""

    root: int
    inodes: int
    epoch: int
    blocks: int
    uuid: bytes
    chunked: bool
    area: int
    devices: int
    label: bytes

    def pack(self) -> bytes:
        """Returns it with a checksum of 0."""
        features = (CHUNKED if self.chunked else 0) | (DEVICES if self.devices else 0)
        table = AT_TABLE // DEVICE_SLOT.size if self.devices else 0
        return SUPER.pack(
            *(MAGIC, 0, CHECKSUM | MTIME, BLOCK_BITS, 0),
            *(self.root, self.inodes, self.epoch, 0, self.blocks, self.area, self.area),
            *(self.uuid, self.label, features, 0, self.devices, table, 0, 0, 0, 0),
        )


class Inode(NamedTuple):
    """`mode`: with the kind; `words`: of extended attributes; `start`: the first block, or the
    chunk format."""

    format: int
    words: int
    mode: int
    nlink: int
    size: int
    start: int
    number: int
    attr: Attr

    def pack(self, short: bool) -> bytes:
        format, words, mode, nlink, size, start, number, attr = self
        _, uid, gid, seconds, nanos = attr
        if short:
            return INODE.pack(format, words, mode, nlink, size, 0, start, number, uid, gid, 0)
        format |= EXTENDED
        return INODE_EXTENDED.pack(
            format, words, mode, 0, size, start, number, uid, gid, seconds, nanos, nlink
        )


def chunk_map(size: int, device: int = 0, block: int = 0) -> tuple[int, bytes]:
    """Returns the chunk format of a file and its map: without data, or in that device from `block`
    on."""
    bits = min(max((size - 1).bit_length() - BLOCK_BITS, 0), MAX_CHUNK_BITS)
    count = -(-size >> (bits + BLOCK_BITS))
    if not device:
        return bits, HOLE * count
    chunks = (INDEX.pack(0, device, block + (number << bits)) for number in range(count))
    return bits | INDEXED, b"".join(chunks)


def chunk_index(blocks: int, places: Iterable[tuple[int, int]]) -> tuple[int, bytes]:
    """Returns the chunk format and map of a file in chunks of `blocks`, each at (device, block)."""
    index = b"".join(INDEX.pack(0, device, block) for device, block in places)
    return (blocks.bit_length() - 1) | INDEXED, index


def crc32c(data: bytes | bytearray, crc: int = 0xFFFF_FFFF) -> int:
    """Castagnoli's polynomial, without the usual inversion at the end."""
    table = _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


@cache
def _table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F6_3B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
