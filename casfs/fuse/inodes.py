"""Inode numbers, and the vnodes behind them.

A number is the first 60 bits of the vnode's key: the same after a remount, below 2^60
(a stacked file system may use the top bits), never 0, and 1 only for the root. Sixty bits
can collide, also by intent; keys do not. So a vnode whose number is taken by another key
gets the next free number, and keeps it while it is in the inode table.

The kernel counts the lookups of an inode and returns that count when it forgets the inode; the
counts are in `casfs.fuse.inode_table`, with the parent and name of each inode. A vnode that is
not among the recently used ones is rebuilt from these. If its name resolves to another vnode by
then: ESTALE.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from casfs.fuse.inode_table import ROOT, InodeTable, ListedInode
from casfs.fuse.views.vnode import Directory, PlainEntry, Vnode

MAX_INODE = 1 << 60
MIN_INODE = 2
RECENT_VNODES = 1 << 14


def inode_number(key: bytes) -> int:
    """Returns the preferred number of a key."""
    return MIN_INODE + int.from_bytes(key[:8], "big") % (MAX_INODE - MIN_INODE)


def key_check(key: bytes) -> int:
    """Returns the second half of a key, which distinguishes two keys with one number."""
    return int.from_bytes(key[8:16], "big")


def _next_number(ino: int) -> int:
    return ino + 1 if ino + 1 < MAX_INODE else MIN_INODE


class ListedInodes:
    """The inodes of one reply to a listing, which are counted at once, when it is made."""

    def __init__(self, inodes: Inodes, parent: int) -> None:
        self._inodes = inodes
        self._table = inodes.table
        self._parent = parent
        self._checks: dict[int, int] = {}  # by number
        self._rows: list[ListedInode] = []
        self._entries: list[PlainEntry] = []

    def add(self, entry: PlainEntry) -> int:
        """Returns the number of an entry."""
        check = key_check(entry.key)
        displaced = self._inodes.displaced
        ino = displaced.get(entry.key) or inode_number(entry.key)
        while True:
            is_new = False
            taken = self._checks.get(ino)
            if taken is None:
                taken = self._table.check(ino)
                is_new = taken is None
            if taken is None or taken == check:
                break
            ino = displaced[entry.key] = _next_number(ino)
        self._checks[ino] = check
        self._rows.append(ListedInode(ino, check, entry.name, is_new))
        self._entries.append(entry)
        return ino

    def drop_last(self) -> None:
        """The last entry did not fit into the reply."""
        del self._checks[self._rows.pop().ino]
        self._entries.pop()

    def count(self) -> None:
        """Counts one lookup of each. Raises OSError."""
        self._table.add_lookups(self._parent, self._rows)
        for row, entry in zip(self._rows, self._entries, strict=True):
            self._inodes.remember(row.ino, entry)


class Inodes:
    """`on_removed` is called with the number of each inode that leaves the table."""

    def __init__(
        self,
        root: Vnode,
        table: InodeTable | None = None,
        on_removed: Callable[[int], object] = lambda ino: None,
    ) -> None:
        root.ino = ROOT
        self.table = InodeTable() if table is None else table
        self._root = root
        self._on_removed = on_removed
        self._recent: OrderedDict[int, Vnode | PlainEntry] = OrderedDict()
        self.displaced: dict[bytes, int] = {}  # keys that did not get their preferred number

    def __len__(self) -> int:
        return len(self.table)

    def get(self, ino: int) -> Vnode | None:
        """Returns None if the inode is not in the table, or its name resolves to another vnode."""
        vnode = self._recent.get(ino)
        if isinstance(vnode, PlainEntry):
            vnode = vnode.directory.vnode_of(vnode)
            vnode.ino = ino
            self._recent[ino] = vnode
        if vnode is None and ino != ROOT:
            vnode = self._rebuild_vnode(ino)
            if vnode is not None:
                self.remember(ino, vnode)
        return vnode if ino != ROOT else self._root

    def _rebuild_vnode(self, ino: int) -> Vnode | None:
        inode = self.table.get(ino)
        if inode is None:
            return None
        parent = self.get(inode.parent)
        if not isinstance(parent, Directory):
            return None
        vnode = parent.lookup(inode.name)
        if vnode is None or key_check(vnode.key) != inode.check:
            return None
        if ino != inode_number(vnode.key) and self.displaced.setdefault(vnode.key, ino) != ino:
            return None
        vnode.ino = ino
        return vnode

    def ancestor(self, ino: int, check: int) -> int | None:
        """Returns the number of the directory with this check at or above an inode."""
        inode = self.table.get(ino)
        while inode is not None and inode.check != check:
            inode = self.table.get(inode.parent)
        return None if inode is None else inode.ino

    def path(self, ino: int) -> bytes:
        """Returns the path of an inode from the mount's root, by the names of its last lookups."""
        names = []
        inode = self.table.get(ino)
        while inode is not None and inode.ino != ROOT:
            names.append(inode.name)
            inode = self.table.get(inode.parent)
        return b"/".join(reversed(names))

    def listed(self, parent: int) -> ListedInodes:
        """Returns what takes the entries of a reply to a listing of `parent`."""
        return ListedInodes(self, parent)

    def intern(self, vnode: Vnode) -> Vnode:
        """Returns the recent vnode with this key, else `vnode` itself with its number set. A live
        vnode is always the newer object."""
        wanted = key_check(vnode.key)
        ino = self.displaced.get(vnode.key) or inode_number(vnode.key)
        while True:
            recent = self._recent.get(ino)
            if isinstance(recent, Vnode) and recent.key == vnode.key and not vnode.live:
                return recent
            taken = self.table.check(ino)
            if taken is None or taken == wanted:
                break
            ino = self.displaced[vnode.key] = _next_number(ino)
        vnode.ino = ino
        return vnode

    def add_lookup(self, vnode: Vnode, parent: int, name: bytes) -> None:
        """Counts one lookup of a vnode that `intern` returned. Raises OSError."""
        self.table.add_lookup(vnode.ino, key_check(vnode.key), parent, name)
        self.remember(vnode.ino, vnode)

    def forget(self, ino: int, lookups: int) -> None:
        for removed in self.table.forget(ino, lookups):
            vnode = self._recent.pop(removed, None)
            if vnode is not None and self.displaced:
                self.displaced.pop(vnode.key, None)
            self._on_removed(removed)

    def remember(self, ino: int, vnode: Vnode | PlainEntry) -> None:
        """Keeps what an inode is, among the recent ones."""
        recent = self._recent
        recent[ino] = vnode
        if len(recent) > RECENT_VNODES:
            recent.popitem(last=False)
