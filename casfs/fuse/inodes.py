"""Inode numbers, and the vnodes behind them.

A number is the first 60 bits of the vnode's key: the same after a remount, below 2^60
(a stacked file system may want the top bits), never 0 or 1 but for the root. Sixty bits
can collide, and somebody could make them collide; keys do not. So a vnode whose number
is taken by another key gets the next free number, and keeps it while it is held.

The kernel counts how often it was told of an inode and gives that count back when it
forgets it; the counts are in the table (`casfs.fuse.inode_table`), which knows by which name an
inode was found. A vnode is made again from that when it is wanted and not among the last
ones used. When its name has come to mean something else meanwhile, it is gone: ESTALE.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from casfs.fuse.inode_table import ROOT, Table
from casfs.fuse.views.vnode import Directory, Vnode

LIMIT = 1 << 60
FIRST = 2
RECENT = 1 << 14  # vnodes


def number(key: bytes) -> int:
    """The number that a key asks for."""
    return FIRST + int.from_bytes(key[:8], "big") % (LIMIT - FIRST)


def check(key: bytes) -> int:
    """The rest of a key, by which two of one number are told apart."""
    return int.from_bytes(key[8:16], "big")


class Inodes:
    """`forgotten` is told the number of each inode that the kernel knows no more."""

    def __init__(
        self,
        root: Vnode,
        table: Table | None = None,
        forgotten: Callable[[int], object] = lambda ino: None,
    ) -> None:
        root.ino = ROOT
        self.table = Table() if table is None else table
        self._root = root
        self._forgotten = forgotten
        self._recent: OrderedDict[int, Vnode] = OrderedDict()
        self._moved: dict[bytes, int] = {}  # keys that did not get the number they ask for

    def __len__(self) -> int:
        return len(self.table)

    def get(self, ino: int) -> Vnode | None:
        """None for what is not held, or is not there any more."""
        found = self._recent.get(ino)
        if found is None and ino != ROOT:
            found = self._made(ino)
            if found is not None:
                self._remember(found)
        return found if ino != ROOT else self._root

    def _made(self, ino: int) -> Vnode | None:
        record = self.table.get(ino)
        if record is None:
            return None
        parent = self.get(record.parent)
        if not isinstance(parent, Directory):
            return None
        vnode = parent.lookup(record.name)
        if vnode is None or check(vnode.key) != record.check:
            return None
        if ino != number(vnode.key) and self._moved.setdefault(vnode.key, ino) != ino:
            return None
        vnode.ino = ino
        return vnode

    def known(self, vnode: Vnode) -> Vnode:
        """The held vnode with this key, else `vnode` itself, with its number set.

        Of a live vnode the newer object takes the place of the held one.
        """
        wanted = check(vnode.key)
        ino = self._moved.get(vnode.key) or number(vnode.key)
        while True:
            held = self._recent.get(ino)
            if held is not None and held.key == vnode.key and not vnode.live:
                return held
            taken = self.table.check(ino)
            if taken is None or taken == wanted:
                break
            ino = ino + 1 if ino + 1 < LIMIT else FIRST
            self._moved[vnode.key] = ino
        vnode.ino = ino
        return vnode

    def hold(self, vnode: Vnode, parent: int, name: bytes) -> None:
        """The kernel is told of what `known` returned, once more. Raises OSError."""
        self.table.hold(vnode.ino, check(vnode.key), parent, name)
        self._remember(vnode)

    def forget(self, ino: int, lookups: int) -> None:
        """The kernel gives back `lookups` of its counts."""
        for gone in self.table.forget(ino, lookups):
            vnode = self._recent.pop(gone, None)
            if vnode is not None and self._moved:
                self._moved.pop(vnode.key, None)
            self._forgotten(gone)

    def _remember(self, vnode: Vnode) -> None:
        recent = self._recent
        recent[vnode.ino] = vnode
        if len(recent) > RECENT:
            recent.popitem(last=False)
