"""Writes an image, in one walk over the tree.

An inode is appended as soon as its directory is read. Unknown fields are filled in later: the
nid of a subdirectory when it is placed, inline contents when everything is placed (so they
can be fetched in batches), and block numbers at the end, when the length of what precedes is
known. All inodes with their inline data are in memory until then, data in blocks are not; a tree
may be of any depth.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import BinaryIO

from casfs.digest import Hasher
from casfs.errors import Corrupt, Invalid
from casfs.native.erofs import devices, dirents, layout, xattrs
from casfs.native.erofs.layout import AT_START, AT_SUPER, SLOT, START
from casfs.native.erofs.model import (
    BLOCK,
    MAX_SIZE,
    MAX_TARGET,
    Attr,
    Directory,
    File,
    Node,
    Symlink,
    Whiteout,
    Xattrs,
)

Fetch = Callable[[list[str]], Iterable[bytes]]
BY_NAME = itemgetter(0)
NOBODY = 0xFFFF_FFFF  # (uid_t) -1
TYPES = {
    File: layout.FILE,
    Symlink: layout.SYMLINK,
    Directory: layout.DIRECTORY,
    Whiteout: layout.DEVICE,
}


def write(
    out: BinaryIO,
    root: Directory,
    *,
    uuid: bytes = bytes(16),
    epoch: int = 0,
    shared: Iterable[tuple[bytes, bytes]] = (),
    fetch: Fetch | None = None,
    label: Callable[[], bytes] = bytes,
) -> None:
    """Write the image of a tree. Entries whose mtime is `epoch` take less space; so does an
    extended attribute in `shared` that several have. `fetch` returns the contents of keys, in
    their order; `label` the volume's name, when the tree was read. Raises Invalid for a tree that
    cannot be an image, Corrupt for a content of the wrong size."""
    image = _Image(epoch, shared)
    image.add(root)
    fetch = fetch or (lambda keys: ())
    image.fill(fetch)
    for part in image.finish(uuid, fetch, label()):
        out.write(part)


class _Image:
    def __init__(self, epoch: int, shared: Iterable[tuple[bytes, bytes]]) -> None:
        xattrs_offset = AT_SUPER + layout.SUPER.size
        self._xattrs = xattrs.Table(shared, xattrs_offset)
        self._meta = bytearray(xattrs_offset) + self._xattrs.data
        self._epoch = epoch
        self._inodes = 0
        self._chunked = False
        self._devices = devices.Table()
        self._short: dict[Attr, bool] = {}  # fits a compact inode
        self._directory_blocks = bytearray()
        self._directories: list[tuple[int, int]] = []  # (inode's offset, its first such block)
        self._files: list[tuple[int, int, bytes | str]] = []  # (inode's offset, size, content)
        self._later: list[tuple[int, int, str]] = []  # (offset, size, key) by an inode

    # -- the tree -----------------------------------------------------------------------

    def add(self, root: Directory) -> None:
        top = bytearray(layout.NID.size)
        stack: list[tuple[Directory, int, bytearray, int]] = [(root, 0, top, 0)]
        while stack:
            directory, parent, where, nid_offset = stack.pop()
            stack += self._directory(directory, parent, where=where, nid_offset=nid_offset)
        self._root = layout.NID.unpack(top)[0]
        if self._root > 0xFFFF:
            raise Invalid("there are too many shared extended attributes in front of the root")

    def _directory(
        self, directory: Directory, parent: int, where: bytearray, nid_offset: int
    ) -> list[tuple[Directory, int, bytearray, int]]:
        """Place a directory, its nid at `nid_offset` in `where`, and its leaves; returns its
        directories, the last one first."""
        entries: list[tuple[bytes, Node | None]] = [*directory.entries, (b".", None), (b"..", None)]
        entries.sort(key=BY_NAME)
        names = [name for name, _ in entries]
        dirents.check(names)
        below = [node for _, node in entries if type(node) is Directory]
        counts, size = dirents.split(names)
        inode_offset, tail_at = self._inode(
            stat.S_IFDIR,
            directory.attr,
            xattr_pairs=directory.xattrs,
            size=size,
            tail=size % BLOCK,
            nlink=2 + len(below),
        )
        nid = inode_offset // SLOT
        layout.NID.pack_into(where, nid_offset, nid)
        nids: list[int] = []
        types: list[int] = []
        for name, node in entries:
            if node is None:
                nids.append(nid if name == b"." else parent or nid)
                types.append(layout.DIRECTORY)
            else:
                nids.append(self._leaf(node))
                types.append(TYPES[type(node)])
        content, later = dirents.pack(names, nids, types=types, counts=counts)
        places = self._content(inode_offset, content, tail_at=tail_at, later=later)
        return [
            (node, nid, *location) for node, location in zip(below[::-1], places[::-1], strict=True)
        ]

    def _content(
        self, inode_offset: int, content: bytes, tail_at: int, later: list[int]
    ) -> list[tuple[bytearray, int]]:
        """Place a directory's content, in blocks and inline; returns the places of `later`."""
        blocks = self._directory_blocks
        base = len(blocks)
        whole = len(content) // BLOCK * BLOCK if tail_at else len(content)
        if whole:
            self._directories.append((inode_offset, base // BLOCK))
            blocks += content[:whole]
            blocks += bytes(-len(blocks) % BLOCK)
        if tail_at:
            self._meta[tail_at : tail_at + len(content) - whole] = content[whole:]
        return [
            (blocks, base + offset) if offset < whole else (self._meta, tail_at + offset - whole)
            for offset in later
        ]

    def _leaf(self, node: Node) -> int:
        """Place an entry that is not a directory; returns its nid."""
        if type(node) is File:
            attr, size, content, xattr_pairs = node
            if not 0 <= size <= MAX_SIZE:
                raise Invalid(f"a file of {size} bytes cannot be in an image")
            if isinstance(content, (bytes, str)):
                return self._with_data(
                    stat.S_IFREG, attr, xattr_pairs=xattr_pairs, size=size, content=content
                )
            self._chunked |= size > 0
            chunks = self._devices.map(content, size) if size else None
            return (
                self._inode(stat.S_IFREG, attr, xattr_pairs=xattr_pairs, size=size, chunks=chunks)[
                    0
                ]
                // SLOT
            )
        if type(node) is Symlink:
            target = node.target
            if not target or b"\0" in target or len(target) > MAX_TARGET:
                raise Invalid(f"{target[:20]!r} ({len(target)} bytes) cannot be a link's target")
            return self._with_data(
                stat.S_IFLNK, node.attr, xattr_pairs=node.xattrs, size=len(target), content=target
            )
        if type(node) is Whiteout:
            return self._inode(stat.S_IFCHR, node.attr, xattr_pairs=(), size=0)[0] // SLOT
        return dirents.PENDING_NID

    def _with_data(
        self, kind: int, attr: Attr, xattr_pairs: Xattrs, size: int, content: bytes | str
    ) -> int:
        """Place an inode with its data; returns its nid."""
        inode_offset, tail_at = self._inode(
            kind, attr, xattr_pairs=xattr_pairs, size=size, tail=size if size < BLOCK else 0
        )
        if isinstance(content, bytes):
            _check_size("a content", content, size)
        if size and not tail_at:
            self._files.append((inode_offset, size, content))
        elif isinstance(content, str):
            self._later.append((tail_at, size, content))
        elif size:
            self._meta[tail_at : tail_at + size] = content
        return inode_offset // SLOT

    # -- an inode -----------------------------------------------------------------------

    def _inode(
        self,
        kind: int,
        attr: Attr,
        xattr_pairs: Xattrs,
        size: int,
        tail: int = 0,
        nlink: int = 1,
        chunks: tuple[int, bytes] | None = None,
    ) -> tuple[int, int]:
        """Append an inode with room for `tail` bytes of data, if that fits into one block, or with
        its chunk format and map. Returns where it is and where that room is, 0 for none."""
        short = self._short.get(attr)
        if short is None:
            short = self._short[attr] = _check(attr, self._epoch)
        short = short and size <= 0xFFFF_FFFF and nlink <= 0xFFFF
        encoded = self._xattrs.encode(xattr_pairs) if xattr_pairs else b""
        head = (SLOT if short else 2 * SLOT) + len(encoded)
        meta = self._meta
        inode_offset = -(-len(meta) // SLOT) * SLOT
        format = layout.PLAIN
        start = 0
        after = b""
        if chunks is not None:
            format = layout.CHUNKS
            start = chunks[0]
            aligned = bytes(-head % layout.INDEX.size if start & layout.INDEXED else 0)
            after = aligned + chunks[1]
        elif tail and head + tail <= BLOCK:
            format = layout.INLINE
            if inode_offset % BLOCK + head + tail > BLOCK:
                inode_offset = -(-inode_offset // BLOCK) * BLOCK
            after = bytes(tail)
        self._inodes += 1
        fixed = layout.Inode(
            format=format,
            words=xattrs.words(encoded),
            mode=kind | attr.mode,
            nlink=nlink,
            size=size,
            start=start,
            number=self._inodes & 0xFFFF_FFFF,
            attr=attr,
        ).pack(short)
        meta += b"".join((bytes(inode_offset - len(meta)), fixed, encoded, after))
        return inode_offset, inode_offset + head if format == layout.INLINE else 0

    # -- filling in ----------------------------------------------------------------------

    def fill(self, fetch: Fetch) -> None:
        """Fill in the inline contents that are fetched."""
        keys = [key for _, _, key in self._later]
        for (offset, size, key), data in zip(self._later, fetch(keys), strict=True):
            _check_size(key, data, size)
            self._meta[offset : offset + size] = data

    def finish(self, uuid: bytes, fetch: Fetch, label: bytes) -> Iterator[bytes | bytearray]:
        """Yields the image, part by part. Contents in blocks are fetched lazily."""
        self._label = label
        meta = self._meta
        if not (self._directory_blocks or self._files):
            # fsck.erofs reads an xattr header behind every inode
            meta += bytes(layout.XATTRS.size)
        meta += bytes(-len(meta) % BLOCK)
        front = self._devices.blocks()
        area = len(front) // BLOCK
        first = area + len(meta) // BLOCK
        for inode_offset, index in self._directories:
            START.pack_into(meta, inode_offset + AT_START, first + index)
        first += len(self._directory_blocks) // BLOCK
        blocks = first + sum(-(-size // BLOCK) for _, size, _ in self._files)
        if blocks > layout.MAX_BLOCKS:
            raise Invalid(f"an image of {blocks} blocks of {BLOCK} bytes is too large")
        for inode_offset, size, _ in self._files:
            START.pack_into(meta, inode_offset + AT_START, first)
            first += -(-size // BLOCK)
        if front or label:  # inode numbers depend on what is in packs, and in remotes
            uuid = Hasher(uuid + front).update(meta).digest(length=16)
        self._write_superblock(front or meta, uuid, blocks=blocks, area=area)
        yield front + meta
        yield self._directory_blocks
        yield from self._data(fetch)

    def _write_superblock(self, first: bytearray, uuid: bytes, blocks: int, area: int) -> None:
        """The superblock has a checksum of the whole first block."""
        first[AT_SUPER : AT_SUPER + layout.SUPER.size] = layout.Superblock(
            root=self._root,
            inodes=self._inodes,
            epoch=self._epoch,
            blocks=blocks,
            uuid=uuid,
            chunked=self._chunked,
            area=area,
            devices=len(self._devices),
            label=self._label,
        ).pack()
        START.pack_into(first, AT_SUPER + START.size, layout.crc32c(first[AT_SUPER:BLOCK]))

    def _data(self, fetch: Fetch) -> Iterator[bytes]:
        coming = iter(fetch([key for _, _, key in self._files if isinstance(key, str)]))
        for _, size, content in self._files:
            if isinstance(content, str):
                data = next(coming)
                _check_size(content, data, size)
            else:
                data = content
            yield data
            yield bytes(-size % BLOCK)


def _check(attr: Attr, epoch: int) -> bool:
    """Returns whether a compact inode can hold the attributes. Raises Invalid."""
    mode, uid, gid, seconds, nanos = attr
    if mode & ~0o7777:
        raise Invalid(f"invalid permission bits {mode:o}")
    if not (0 <= uid < NOBODY and 0 <= gid < NOBODY):
        raise Invalid(f"invalid owner {uid}:{gid}")
    if not (-MAX_SIZE <= seconds <= MAX_SIZE and 0 <= nanos < 1_000_000_000):
        raise Invalid(f"invalid file time {seconds} s, {nanos} ns")
    return seconds == epoch and nanos == 0 and max(uid, gid) <= 0xFFFF


def _check_size(key: str, data: bytes, size: int) -> None:
    if len(data) != size:
        raise Corrupt(f"{key}: {len(data)} bytes long, not {size}")
