"""The requests of a mount, independent of the transport: from inode numbers to vnodes, and from
their properties to cache timeouts.

A transport decodes a request, calls one method here and encodes the result. What the kernel may
cache, by the properties of `casfs.fuse.views.vnode`:

    dentries    indefinitely in a `fixed` directory, or if the kernel is notified of removed names
                (`invalidated`); for SHORT_S if the name can be removed otherwise; not at all if
                the directory does not bind the name to its inode (`binds`), or it is broken
    negative    a name missing from a `fixed` directory is a negative dentry with an infinite
                timeout; else ENOENT, which is not cached
    attributes  indefinitely, but of `live` files not at all. Of `live` directories for SHORT_S if
                the transport gets a request for every listing (`handles`); not at all if the
                kernel caches listings and checks by the mtime whether they are valid

Without handles a file is read by offset alone, so a live file shows its content at the last
GETATTR: the kernel sends one before every read.

One thread at a time calls a session; `prepare` of a file or directory runs in any. `errno_for` maps
any exception of a method to an errno; `Denied` is a regular answer.
"""

from __future__ import annotations

import errno
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from casfs.errors import CasfsError
from casfs.fuse.inode_table import ROOT, InodeTable
from casfs.fuse.inodes import Inodes, inode_number, key_check
from casfs.fuse.listing import DirectoryItem, Item, Listing, ListingCursors
from casfs.fuse.views.errors import LOGGED, Denied, errno_of
from casfs.fuse.views.files import BrokenFile, LiveFile
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.vnode import (
    FOREVER_S,
    READ_DIRECTORY,
    READ_FILE,
    Y2000_NS,
    Attr,
    Directory,
    File,
    Link,
    ShownTree,
    Vnode,
    child_key,
)
from casfs.system.log import Log
from casfs.trees.dated import DatedTree

SHORT_S = 1.0  # for which a removed name may be stale
FS_BLOCK = 4096
MAX_NAME_BYTES = 255
XATTR = b"user.blake3"
LOG_INTERVAL_S = 60.0  # between two lines about the same failure
MAX_LOGGED = 1024  # failures that are remembered for that
WALK_INTERVAL_S = 5.0  # between two reports that a tree is walked
MAX_WALKED = 1024  # trees that are remembered for that
LISTED_AT_ONCE = 1000  # names; a look at a directory lists so many at most
LIVE_CONTENTS = 4096  # live files whose content is kept as of their last GETATTR


class Entry(NamedTuple):
    """An inode's attributes and cache timeouts (s). Inode number 0: a negative dentry."""

    ino: int
    attr: Attr
    attr_timeout: float
    entry_timeout: float


NEGATIVE_ENTRY = Entry(0, Attr(0, 0, 0), attr_timeout=0.0, entry_timeout=FOREVER_S)


class DiskSpace(NamedTuple):
    """For statfs: the used FS_BLOCKs and inodes of the store's disk; none are free."""

    blocks: int
    files: int


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
        invalidates: bool = False,
        table: InodeTable | None = None,
        on_walk: Callable[[str, int, DatedTree], object] | None = None,
    ) -> None:
        """`handles`: the transport gets OPEN and OPENDIR requests; `invalidates`: it notifies
        the kernel of removed names; `on_walk`: called where a directory below the root of a tree is
        listed, or a large root, with the path and the inode number of the root, and the tree."""
        self.stats = stats
        self.uid = os.getuid()
        self.gid = os.getgid()
        self.xattr = xattr
        # No read of an inode comes once the kernel has forgotten it, so its content can go.
        self.inodes = Inodes(root, table, self._drop_live_content)
        self._log = log
        self._logged: dict[tuple[str, str], float] = {}  # when each failure was logged last
        self._store = store
        self._handles = handles
        self._invalidates = invalidates
        self._root = root
        self._live_contents: OrderedDict[int, bytes] = OrderedDict()
        self._cursors = ListingCursors(self.inodes, self._parent)
        self._on_walk = on_walk
        self._walked_at: dict[bytes, float] = {}  # by the key of the tree's root directory
        # The sizes of the views' caches are known already; those of the inodes only here.
        counts = stats.cache
        stats.cache = lambda: {"inodes": len(self.inodes), **counts()}

    def errno_for(self, kind: str, error: Exception) -> int:
        """Returns the errno for `error`; logs it unless it is the caller's fault, the same
        failure at most once in LOG_INTERVAL_S."""
        code = errno_of(error)
        if code in LOGGED and not isinstance(error, Denied):
            name = type(error).__name__
            now_s = time.monotonic()
            key = (kind, str(error))
            if now_s - self._logged.get(key, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
                # Messages name paths, so there may be any number; at worst some are logged again.
                if len(self._logged) >= MAX_LOGGED:
                    self._logged.clear()
                self._logged[key] = now_s
                self._log("request failed", request=kind, error=name, message=str(error))
        return code

    def _drop_live_content(self, ino: int) -> None:
        self._live_contents.pop(ino, None)

    # -- names and attributes -----------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Entry:
        """Counts one lookup unless the entry is negative. Raises Denied (ENOENT: not to be
        cached)."""
        directory = self.directory(parent)
        if len(name) > MAX_NAME_BYTES:  # the kernel allows more
            raise Denied(errno.ENAMETOOLONG)
        if name in (b".", b".."):  # sent only where the mount is exported, by NFS
            return self._lookup_dot(parent, name)
        vnode = directory.lookup(name)
        if vnode is not None:
            vnode = self.inodes.intern(vnode)
            entry = self.entry(directory, name, vnode)
            # Counted last: where the entry raises, the kernel gets no inode to forget.
            self.inodes.add_lookup(vnode, parent, name)
            return entry
        # ENOENT is cached nowhere, so a name that is added later is seen at once.
        if not directory.fixed:
            raise Denied(errno.ENOENT)
        return NEGATIVE_ENTRY

    def _lookup_dot(self, ino: int, name: bytes) -> Entry:
        vnode = self.directory(ino) if name == b"." else self._parent(ino)
        inode = self.inodes.table.get(vnode.ino)
        # Under its own name: the table rebuilds a vnode by the name of its last lookup.
        if inode is not None:
            self.inodes.add_lookup(vnode, inode.parent, inode.name)
        return Entry(vnode.ino, vnode.attr(), attr_timeout=0.0, entry_timeout=0.0)

    def _parent(self, ino: int) -> Directory:
        inode = self.inodes.table.get(ino)
        # The root, whose parent is 0, is its own here: the kernel knows what is above a mount.
        if inode is None or not inode.parent:
            return self.directory(ROOT)
        return self.directory(inode.parent)

    def forget(self, ino: int, lookups: int) -> None:
        self.inodes.forget(ino, lookups)

    def getattr(self, ino: int) -> Entry:
        vnode = self.vnode(ino)
        # A lookup has just made its vnode; this one may be as old as the mount.
        if vnode.live:
            vnode.refresh()
        return Entry(
            ino, self._attr(vnode), attr_timeout=self._attr_timeout(vnode), entry_timeout=0.0
        )

    def entry(self, directory: Directory, name: bytes, vnode: Vnode) -> Entry:
        """Returns the entry of a name; `vnode` is from `Inodes.intern`."""
        # What is broken may be mended, by a repair or a pull; then the name is another vnode.
        if isinstance(vnode, BrokenFile) or not directory.binds(name):
            timeout = 0.0
        else:
            cached = directory.fixed or (self._invalidates and directory.invalidated)
            timeout = FOREVER_S if cached else SHORT_S
        return Entry(
            vnode.ino,
            self._attr(vnode),
            attr_timeout=self._attr_timeout(vnode),
            entry_timeout=timeout,
        )

    def _attr(self, vnode: Vnode) -> Attr:
        if not isinstance(vnode, LiveFile) or self._handles:
            return vnode.attr()
        # Without handles a read has no open file to keep a version for: these bytes, whose size the
        # kernel is told, are those that the next reads get.
        data, mtime_ns = vnode.snapshot()
        self._live_contents[vnode.ino] = data
        self._live_contents.move_to_end(vnode.ino)
        if len(self._live_contents) > LIVE_CONTENTS:  # the next read sends GETATTR first
            self._live_contents.popitem(last=False)
        return vnode.attr()._replace(size=len(data), mtime_ns=mtime_ns)

    def _attr_timeout(self, vnode: Vnode) -> float:
        if not vnode.live:
            return FOREVER_S
        if self._handles and isinstance(vnode, Directory):
            return SHORT_S
        return 0.0

    def readlink(self, ino: int) -> bytes:
        vnode = self.vnode(ino)
        if not isinstance(vnode, Link):
            raise Denied(errno.EINVAL)
        return vnode.target

    def access(self, ino: int, wanted: int, uid: int, gid: int) -> None:
        """Raises Denied unless the user has all of `wanted` (os.R_OK …)."""
        # Without `default_permissions`, which cost a request per path walk, the kernel asks here
        # (decision 039).
        if wanted & os.W_OK:
            raise Denied(errno.EROFS)
        mode = self.vnode(ino).attr().mode
        if uid == 0:  # root bypasses read permission, but needs an execute bit
            granted = os.R_OK | (os.X_OK if mode & 0o111 else 0)
        elif uid == self.uid:
            granted = mode >> 6
        elif gid == self.gid:
            granted = mode >> 3
        else:
            granted = mode
        if wanted & ~granted & (os.R_OK | os.X_OK):
            raise Denied(errno.EACCES)

    def statfs(self) -> DiskSpace:
        if self._store is None:
            return DiskSpace(0, 0)
        disk = os.statvfs(self._store)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize // FS_BLOCK
        return DiskSpace(used, disk.f_files - disk.f_ffree)

    def getxattr(self, ino: int, name: bytes) -> bytes:
        if not self.xattr:
            raise Denied(errno.ENOSYS)  # the kernel sends no more of these
        digest = self.vnode(ino).digest if name == XATTR else None
        if digest is None:
            raise Denied(errno.ENODATA)
        return digest.encode("ascii")

    # -- files --------------------------------------------------------------------------------

    def file(self, ino: int) -> File:
        vnode = self.vnode(ino)
        if isinstance(vnode, File):
            return vnode
        raise Denied(errno.EISDIR if isinstance(vnode, Directory) else errno.EINVAL)

    def read(self, file: File, offset: int, size: int) -> bytes:
        """Fast if the file is `ready`; else call its `prepare` first, in any thread."""
        content = self._live_contents.get(file.ino) if file.live else None
        data = file.read(offset, size) if content is None else content[offset : offset + size]
        self.stats.bytes_served += len(data)
        return data

    def directory_number(self, path: Iterable[bytes]) -> int:
        """Returns the inode number of a directory with `invalidated`, by its path."""
        # By the keys, without a lookup: of most removed names the kernel has no dentry anyway.
        key = self._root.key
        for name in path:
            key = child_key(key, name)
        return inode_number(key)

    def seek(self, ino: int, offset: int, whence: int) -> int:
        """SEEK_DATA and SEEK_HOLE."""
        file = self.file(ino)
        size = self._attr(file).size
        if not 0 <= offset < size:
            raise Denied(errno.ENXIO)
        return file.seek(offset, whence, size)

    # -- directories --------------------------------------------------------------------------

    def listing(self, ino: int, offset: int) -> Listing[DirectoryItem]:
        """Returns the listing of a directory from `offset` on."""
        return self._cursors.open(ino, self.directory(ino), offset)

    def plain_listing(self, ino: int, offset: int) -> Listing[Item]:
        """The same, without vnodes where the directory does without them."""
        directory = self.directory(ino)
        tree = directory.tree
        if tree is not None and self._on_walk is not None:
            is_walk = offset == 0 if tree.key != directory.key else offset > LISTED_AT_ONCE
            if is_walk:
                self._note_walk(ino, tree)
        return self._cursors.open_plain(ino, directory, offset)

    def _note_walk(self, ino: int, tree: ShownTree) -> None:
        now_s = time.monotonic()
        if now_s - self._walked_at.get(tree.key, -WALK_INTERVAL_S) < WALK_INTERVAL_S:
            return
        if len(self._walked_at) >= MAX_WALKED:
            self._walked_at.clear()
        self._walked_at[tree.key] = now_s
        top = self.inodes.ancestor(ino, key_check(tree.key))
        if top is not None and self._on_walk is not None:
            self._on_walk(os.fsdecode(self.inodes.path(top)), top, tree.root)

    def save_cursor(self, listing: Listing[Any]) -> None:
        self._cursors.save(listing)

    def listing_entry(self, listing: Listing[Any], item: DirectoryItem) -> Entry:
        """As `entry`, but an error does not fail the listing: the name is listed, and a lookup
        of it raises the error."""
        vnode = item.vnode
        try:
            return self.entry(listing.directory, item.name, vnode)
        except CasfsError as error:
            self.errno_for("listing", error)  # for the log
            mode = READ_DIRECTORY if isinstance(vnode, Directory) else READ_FILE
            return Entry(vnode.ino, Attr(mode, 0, Y2000_NS), attr_timeout=0.0, entry_timeout=0.0)

    def count_lookup(self, listing: Listing[Any], item: DirectoryItem) -> None:
        """Counts one lookup of an item that was sent with its attributes."""
        if item.counted:
            self.inodes.add_lookup(item.vnode, listing.ino, item.name)

    # -- inode numbers ------------------------------------------------------------------------

    def vnode(self, ino: int) -> Vnode:
        """Raises Denied (ESTALE)."""
        vnode = self.inodes.get(ino)
        if vnode is None:
            raise Denied(errno.ESTALE)
        return vnode

    def directory(self, ino: int) -> Directory:
        """Raises Denied (ESTALE, ENOTDIR)."""
        vnode = self.vnode(ino)
        if not isinstance(vnode, Directory):
            raise Denied(errno.ENOTDIR)
        return vnode
