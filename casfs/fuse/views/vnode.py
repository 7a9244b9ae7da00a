"""The vnode interface: a file, link or directory of the mount, independent of any FUSE library.

A vnode is made at each lookup, and rebuilt when it is needed later (`casfs.fuse.inodes`); it
holds what it needs to answer requests, not its content and not its children. Vnodes with one
`key` are the same file. A key is a hash of the path from the root (`child_key`), except for
files and links of trees (`casfs.fuse.views.trees`).

The mtime of a live vnode differs whenever its content does (`casfs.fuse.views.change_times`).

Four properties decide what the kernel may cache:

    Vnode.live             attributes or content can change
    Directory.fixed        names are never added or removed
    Directory.binds        the name → inode binding is immutable: the dentry may be cached
                           indefinitely
    Directory.invalidated  removed names are invalidated by notification
                           (`casfs.fuse.views.invalidation`)

A removed name may be served from the cache for a short time; new and changed names are seen at
once, since the cache never held them. An entry that cannot be read while its directory is
listed becomes a `BrokenFile` in the listing; the listing itself never fails.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from casfs.digest import Hasher
from casfs.trees.dated import DatedTree

FOREVER_S = 10**9  # a timeout of what the kernel may keep
MILLISECOND = 1_000_000  # nanoseconds
Y2000_NS = 946_684_800_000_000_000  # 2000-01-01 UTC in nanoseconds, of what has no time
KEY_BYTES = 16  # the first half gives an inode its number, the second tells equal ones apart
READ_FILE = stat.S_IFREG | 0o444
READ_DIRECTORY = stat.S_IFDIR | 0o555
LINK = stat.S_IFLNK | 0o777


class Attr(NamedTuple):
    """The stat attributes, without the inode number (the inode table's) and the owner (the
    mount's). A directory's link count is 1: its subdirectories are not counted, and a count below 2
    tells find(1) not to draw conclusions from it."""

    mode: int
    size: int
    mtime_ns: int
    nlink: int = 1


def make_key(data: bytes) -> bytes:
    """Returns the key for `data`, a hash of KEY_BYTES."""
    return Hasher(data).digest(length=KEY_BYTES)


def child_key(key: bytes, name: bytes) -> bytes:
    """Returns the key of the entry `name` in the directory with `key`."""
    # No separator is needed, as every key has the same length.
    return Hasher(key + name).digest(length=KEY_BYTES)


class Vnode:
    """`ino`: the inode number, set by `casfs.fuse.inodes`."""

    # One is made at each lookup, and thousands are kept (`casfs.fuse.inodes`).
    __slots__ = ("ino", "key")
    live = False

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.ino = 0

    def attr(self) -> Attr:
        raise NotImplementedError

    def refresh(self) -> None:
        """Updates the attributes of a live vnode."""

    @property
    def digest(self) -> str | None:
        """The hash of the blob or node that this vnode shows, if it is one."""
        return None


class Extent(NamedTuple):
    """`size` bytes at `offset` of `fd`, which stays open as long as `owner` lives."""

    fd: int
    offset: int
    size: int
    owner: object


class File(Vnode):
    """`append_only`: it is live and only grows, so a reader can continue at its offset."""

    __slots__ = ()
    append_only = False

    @property
    def ready(self) -> bool:
        """False if the first `read` would take long; then call `prepare`, in any thread."""
        return True

    def prepare(self) -> None:
        """Does the slow part of the first `read`."""

    def read(self, offset: int, size: int) -> bytes:
        raise NotImplementedError

    def extent(self, offset: int, size: int) -> Extent | None:
        """Returns the same bytes as part of an open file, None if they are in no file; to be
        called only when `ready`."""
        return None

    def seek(self, offset: int, whence: int, size: int) -> int:
        """Returns the offset of the next data (os.SEEK_DATA) or hole (os.SEEK_HOLE) from
        `offset` on, which is below the file's `size`. Raises Denied (ENXIO: no more data)."""
        return offset if whence == os.SEEK_DATA else size


class Link(Vnode):
    __slots__ = ("_mtime_ns", "target")

    def __init__(self, key: bytes, target: bytes, mtime_ns: int = Y2000_NS) -> None:
        super().__init__(key)
        self.target = target
        self._mtime_ns = mtime_ns

    def attr(self) -> Attr:
        return Attr(LINK, len(self.target), self._mtime_ns)


class PlainEntry(NamedTuple):
    """A name in a `fixed` directory with all that a listing says of it: most vnodes are made only
    when they are opened, by `directory.vnode_of`, from `source`."""

    name: bytes
    key: bytes
    attr: Attr
    directory: Directory
    source: Any


class ShownTree(NamedTuple):
    """A tree that is shown, and the key of its root directory."""

    key: bytes
    root: DatedTree


class Directory(Vnode):
    """`ready`: False if a new listing may take long to begin; then call `prepare` before it, in any
    thread, once the directory is opened. `tree`: what it is a directory of, if it is of a tree."""

    __slots__ = ()
    ready = True
    tree: ShownTree | None = None
    fixed = True
    invalidated = False
    _mtime_ns = Y2000_NS

    def binds(self, name: bytes) -> bool:
        """Returns whether a name leads to the same inode for ever. By name, since one directory may
        have both: a checkpoint's id is always the same checkpoint, `latest` is not."""
        return self.fixed

    def attr(self) -> Attr:
        return Attr(READ_DIRECTORY, 0, self._mtime_ns)

    def prepare(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Does the slow part of a new listing, as long as that is `wanted`."""

    def lookup(self, name: bytes) -> Vnode | None:
        """Returns None if there is no such name. Raises if the name exists but is broken."""
        raise NotImplementedError

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        """Yields all names, at every call in the same order."""
        raise NotImplementedError

    def entries_after(self, count: int) -> Iterable[tuple[bytes, Vnode]]:
        """The same without the first `count`."""
        return islice(self.entries(), count, None)

    def plain_entries_after(self, count: int) -> Iterable[PlainEntry] | None:
        """The same as values; None where this directory's entries need vnodes."""
        return None

    def vnode_of(self, entry: PlainEntry) -> Vnode:
        """Returns the vnode of an entry that `plain_entries_after` has yielded."""
        raise NotImplementedError
