"""What a mount answers, whatever transport asks: the model's vnodes as the kernel sees them.

A transport decodes a request, calls one method here and encodes what it returns. Here
numbers become vnodes, and what may be cached becomes a timeout:

    entries    for ever where the directory is fixed, or the kernel is told when a name goes;
               a moment where a name may vanish otherwise; not at all where it may come to
               mean something else, or is broken
    nothing    a name that a fixed directory lacks is number 0, for ever; else ENOENT
    attributes for ever, but of live files not at all. Of live directories a moment where the
               transport is asked for every listing (`handles`); not at all where the kernel
               keeps listings and looks at the mtime to know whether they still hold

Without handles a file is read by offset alone, so a live file shows what it was when its
attributes were last asked for: the kernel asks before every read.

Everything runs in one thread, except `prepare`. Whatever a method raises, `failed` makes an
errno of it; `Denied` is what is nobody's fault.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from casfs.errors import CasfsError
from casfs.fuse.inode_table import ROOT, Table
from casfs.fuse.inodes import Inodes, number
from casfs.fuse.views.errors import OURS, Denied, errno_of
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.vnode import (
    LONG_AGO,
    READ_DIRECTORY,
    READ_FILE,
    Attr,
    Broken,
    Directory,
    File,
    Link,
    Live,
    Vnode,
    below,
)
from casfs.system.log import Log

FOREVER = 10.0**9  # seconds
MOMENT = 1.0  # seconds that a name which vanished may be stale
FS_BLOCK = 4096
MAX_NAME = 255
XATTR = b"user.blake3"
CURSORS = 256  # listings that somebody may go on with
SHOWN = 4096  # live files whose content is kept as it was told
DOTS = 2  # names that every listing begins with
OPEN = 1 << 62  # bytes; more than any live file has


class Entry(NamedTuple):
    """An inode as the kernel is told of it; timeouts in seconds. Number 0: there is nothing,
    and that may be kept."""

    ino: int
    attr: Attr
    attr_timeout: float
    entry_timeout: float


NOTHING = Entry(0, Attr(0, 0, 0), 0.0, FOREVER)


class Space(NamedTuple):
    """For statfs: what the store's disk holds is used, nothing is free; in FS_BLOCKs."""

    blocks: int
    files: int


class Item(NamedTuple):
    """A name in a listing, and the offset behind it; `.` and `..` are not to be held."""

    offset: int
    name: bytes
    vnode: Vnode
    held: bool


class Listing:
    """The rest of a directory from some offset on. Offset n is behind the n-th name."""

    def __init__(self, ino: int, directory: Directory, items: Iterator[Item], offset: int) -> None:
        self.ino = ino
        self.directory = directory
        self.offset = offset  # of the next item
        self._items = items

    def __iter__(self) -> Iterator[Item]:
        for item in self._items:
            self.offset = item.offset
            yield item

    def back(self, item: Item) -> None:
        """The last item was not used: it comes first when somebody goes on."""
        self._items = itertools.chain([item], self._items)
        self.offset = item.offset - 1


class Session:
    def __init__(
        self,
        root: Directory,
        stats: Stats,
        log: Log,
        *,
        store: Path | None,
        xattr: bool,
        handles: bool,
        watched: bool = False,
        table: Table | None = None,
    ) -> None:
        """`handles`: the transport is asked to open files and directories; `watched`: it tells
        the kernel of names that have gone."""
        self.stats = stats
        self.uid, self.gid = os.getuid(), os.getgid()
        self.xattr = xattr
        self.inodes = Inodes(root, table, self._forgotten)
        self._log = log
        self._store = store
        self._handles = handles
        self._watched = watched
        self._root = root
        self._shown: OrderedDict[int, bytes] = OrderedDict()
        self._cursors: OrderedDict[tuple[int, int], Listing] = OrderedDict()
        counts = stats.cache
        stats.cache = lambda: {"inodes": len(self.inodes), **counts()}

    def failed(self, kind: str, error: Exception) -> int:
        """The errno for `error`; what is our fault is logged."""
        code = errno_of(error)
        if code in OURS and not isinstance(error, Denied):
            name = type(error).__name__
            self._log("request failed", request=kind, error=name, message=str(error))
        return code

    # -- names and attributes -----------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Entry:
        """Counts as one lookup unless the number is 0. Raises Denied (ENOENT: and that is not
        to be kept)."""
        directory = self.directory(parent)
        if len(name) > MAX_NAME:  # the kernel allows more
            raise Denied(errno.ENAMETOOLONG)
        if name in (b".", b".."):  # only whoever exports this file system asks
            return self._dot(parent, name)
        vnode = directory.lookup(name)
        if vnode is not None:
            vnode = self.inodes.known(vnode)
            entry = self.entry(directory, name, vnode)
            self.inodes.hold(vnode, parent, name)
            return entry
        if not directory.fixed:
            raise Denied(errno.ENOENT)
        return NOTHING

    def _dot(self, ino: int, name: bytes) -> Entry:
        vnode = self.directory(ino) if name == b"." else self._above(ino)
        record = self.inodes.table.get(vnode.ino)
        if record is not None:
            self.inodes.hold(vnode, record.parent, record.name)
        return Entry(vnode.ino, vnode.attr(), 0.0, 0.0)

    def _above(self, ino: int) -> Directory:
        record = self.inodes.table.get(ino)
        return self.directory(record.parent if record is not None and record.parent else ROOT)

    def forget(self, ino: int, lookups: int) -> None:
        self.inodes.forget(ino, lookups)

    def _forgotten(self, ino: int) -> None:
        self._shown.pop(ino, None)

    def getattr(self, ino: int) -> Entry:
        vnode = self.vnode(ino)
        if vnode.live:
            vnode.refresh()
        return Entry(ino, self._attr(vnode), self._attr_timeout(vnode), 0.0)

    def entry(self, directory: Directory, name: bytes, vnode: Vnode) -> Entry:
        """What a name in a directory is; `vnode` is one that `Inodes.known` returned."""
        if isinstance(vnode, Broken) or not directory.binds(name):
            timeout = 0.0
        else:
            kept = directory.fixed or (self._watched and directory.watched)
            timeout = FOREVER if kept else MOMENT
        return Entry(vnode.ino, self._attr(vnode), self._attr_timeout(vnode), timeout)

    def _attr(self, vnode: Vnode) -> Attr:
        if not isinstance(vnode, Live) or self._handles:
            return vnode.attr()
        data, mtime_ns = vnode.now()
        self._shown[vnode.ino] = data
        self._shown.move_to_end(vnode.ino)
        if len(self._shown) > SHOWN:  # a tree of threads was listed; each read asks again first
            self._shown.popitem(last=False)
        return vnode.attr()._replace(size=len(data), mtime_ns=mtime_ns)

    def _attr_timeout(self, vnode: Vnode) -> float:
        if not vnode.live:
            return FOREVER
        return MOMENT if self._handles and isinstance(vnode, Directory) else 0.0

    def readlink(self, ino: int) -> bytes:
        vnode = self.vnode(ino)
        if not isinstance(vnode, Link):
            raise Denied(errno.EINVAL)
        return vnode.target

    def access(self, ino: int, wanted: int, uid: int, gid: int) -> None:
        """Raises Denied unless somebody may do all of `wanted` (os.R_OK …)."""
        if wanted & os.W_OK:
            raise Denied(errno.EROFS)
        mode = self.vnode(ino).attr().mode
        if uid == 0:
            granted = os.R_OK | (os.X_OK if mode & 0o111 else 0)
        else:
            granted = mode >> (6 if uid == self.uid else 3 if gid == self.gid else 0)
        if wanted & ~granted & (os.R_OK | os.X_OK):
            raise Denied(errno.EACCES)

    def statfs(self) -> Space:
        if self._store is None:
            return Space(0, 0)
        disk = os.statvfs(self._store)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize // FS_BLOCK
        return Space(used, disk.f_files - disk.f_ffree)

    def getxattr(self, ino: int, name: bytes) -> bytes:
        if not self.xattr:
            raise Denied(errno.ENOSYS)  # the kernel will not ask again
        digest = self.vnode(ino).digest if name == XATTR else None
        if digest is None:
            raise Denied(errno.ENODATA)
        return digest.encode("ascii")

    # -- files --------------------------------------------------------------------------------

    def file(self, ino: int) -> File:
        vnode = self.vnode(ino)
        if not isinstance(vnode, File):
            raise Denied(errno.EISDIR if isinstance(vnode, Directory) else errno.EINVAL)
        return vnode

    def content(self, ino: int) -> bytes:
        """All of a live file as it is now, for a handle."""
        return self.file(ino).read(0, OPEN)

    def read(self, file: File, offset: int, size: int) -> bytes:
        """Quick when the file is `ready`; else call its `prepare` first, in any thread."""
        shown = self._shown.get(file.ino) if file.live else None
        data = file.read(offset, size) if shown is None else shown[offset : offset + size]
        self.stats.bytes_served += len(data)
        return data

    def place(self, path: Iterable[bytes]) -> int:
        """The number that the kernel knows a watched directory by."""
        key = self._root.key
        for name in path:
            key = below(key, name)
        return number(key)

    def seek(self, ino: int, offset: int, whence: int) -> int:
        """SEEK_DATA and SEEK_HOLE."""
        file = self.file(ino)
        size = self._attr(file).size
        if not 0 <= offset < size:
            raise Denied(errno.ENXIO)
        return file.seek(offset, whence, size)

    # -- directories --------------------------------------------------------------------------

    def listing(self, ino: int, offset: int) -> Listing:
        """The names of a directory from `offset` on; taken anew at 0."""
        directory = self.directory(ino)
        left = self._cursors.pop((ino, offset), None)
        if left is not None and offset:
            return left
        return Listing(ino, directory, self._items(ino, directory, offset), offset)

    def leave(self, listing: Listing) -> None:
        """Somebody may go on where this listing is now."""
        self._cursors[listing.ino, listing.offset] = listing
        if len(self._cursors) > CURSORS:
            self._cursors.popitem(last=False)

    def _items(self, ino: int, directory: Directory, offset: int) -> Iterator[Item]:
        if offset < 1:
            yield Item(1, b".", directory, False)
        if offset < DOTS:
            yield Item(DOTS, b"..", self._above(ino), False)
        passed = max(offset - DOTS, 0)
        entries = directory.behind(passed)
        for offset, (name, vnode) in enumerate(entries, start=DOTS + passed + 1):
            yield Item(offset, name, self.inodes.known(vnode), True)

    def listed(self, listing: Listing, item: Item) -> Entry:
        """As `entry`, but what cannot be told at the moment does not spoil the listing: it is
        there, and whoever looks at it gets the reason."""
        vnode = item.vnode
        try:
            return self.entry(listing.directory, item.name, vnode)
        except CasfsError as error:
            self.failed("listing", error)
            mode = READ_DIRECTORY if isinstance(vnode, Directory) else READ_FILE
            return Entry(vnode.ino, Attr(mode, 0, LONG_AGO), 0.0, 0.0)

    def hold(self, listing: Listing, item: Item) -> None:
        """The kernel was told of an item with its attributes: that counts as a lookup."""
        if item.held:
            self.inodes.hold(item.vnode, listing.ino, item.name)

    # -- numbers ------------------------------------------------------------------------------

    def vnode(self, ino: int) -> Vnode:
        vnode = self.inodes.get(ino)
        if vnode is None:
            raise Denied(errno.ESTALE)
        return vnode

    def directory(self, ino: int) -> Directory:
        vnode = self.vnode(ino)
        if not isinstance(vnode, Directory):
            raise Denied(errno.ENOTDIR)
        return vnode
