"""EROFS images: a file system in one file, which the kernel mounts without any process of ours.

The input is a value: a tree of `Directory`, `File`, `Symlink` and `Whiteout`, whose entries
may be generators and whose contents may be fetched late.
`casfs.native.erofs.writer` turns it into bytes; equal trees give equal bytes. Nothing here knows of
a store.

    device table      whole blocks, only where a file lies in a device: the superblock, then 128
                      bytes for each device; the inode area begins behind it
    superblock        at 1024, 128 bytes; its checksum covers the rest of the first block
    shared xattrs     at 1152 of the inode area's first block; an id is an offset / 4
    inodes            in 32-byte slots, numbered by slot (the nid): each directory, then what is
                      in it but its subdirectories, then those, in name order: a listing with
                      attributes reads neighbours
    directory blocks  whole blocks of directories that are too long to be inline
    file blocks       data that are too long for that

An inode has the compact form of 32 bytes where the mtime is the image's, the owner fits in 16
bits and the size in 32; else the extended form of 64. Its xattrs follow, then inline data, if
all of it fits into one block, in which it lies. The data of a file are inline or in blocks,
never both; a directory has its last, partial block inline. A `File` with `content` None is a
chunk map without addresses, which reads as zeros. One with an `Extent` has its data in another
file (a device), from a block of it on: one index of 8 bytes, since its chunk is as large as it is.
One with `Chunks` has an index for each.

Only parts of the format are used that Linux 5.15 knows, or 5.16 with devices, which must be given
in the table's order when the image is mounted.
Input that the format or the kernel could not take raises Invalid while the image is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

BLOCK = 4096  # bytes; the kernel takes no block that is larger than its pages
MAX_NAME = 255  # bytes
MAX_TARGET = 4095  # bytes; a longer target no Linux file system gives back
MAX_SIZE = (1 << 63) - 1  # bytes of a file
Xattrs = tuple[tuple[bytes, bytes], ...]  # (name with its prefix, value)


class Attr(NamedTuple):
    """Permission bits, owner, mtime in seconds and nanoseconds since 1970 UTC."""

    mode: int
    uid: int
    gid: int
    seconds: int
    nanos: int = 0


class Device(NamedTuple):
    """A file that has contents of other files, each from a block on. `name`: ASCII."""

    name: str
    blocks: int


class Extent(NamedTuple):
    """A content in a device. The rest of its last block is zeros there."""

    device: Device
    block: int


class Chunks(NamedTuple):
    """A content in pieces of `blocks` blocks (a power of two), each in a device."""

    blocks: int
    extents: tuple[Extent, ...]


class File(NamedTuple):
    """`content`: the bytes, or the key by which the writer fetches them, or where it is; None for a
    file that reads as zeros."""

    attr: Attr
    size: int
    content: bytes | str | Extent | Chunks | None
    xattrs: Xattrs = ()


class Symlink(NamedTuple):
    attr: Attr
    target: bytes
    xattrs: Xattrs = ()


class Whiteout(NamedTuple):
    """A character device 0/0, which hides the name in the layers below."""

    attr: Attr


class Directory(NamedTuple):
    """`entries`, in any order, are read once, when the directory is placed."""

    attr: Attr
    entries: Iterable[tuple[bytes, Node]]
    xattrs: Xattrs = ()


Node = Directory | File | Symlink | Whiteout
