"""Inode numbers, and which vnodes the kernel remembers.

A number is the first 60 bits of the vnode's key: the same after a remount, below 2^60
(a stacked file system may want the top bits), never 0 or 1 but for the root. Sixty bits
can collide, and somebody could make them collide; keys do not. So a vnode whose number
is taken by another key gets the next free number, and keeps it while it is held.

The kernel counts how often it was told of an inode and gives that count back when it
forgets it. At zero the vnode goes; the table holds nothing that the kernel does not.
"""

from __future__ import annotations

from .vnode import Vnode

ROOT = 1
LIMIT = 1 << 60
FIRST = 2


def number(key: bytes) -> int:
    """The number that a key asks for."""
    return FIRST + int.from_bytes(key[:8], "big") % (LIMIT - FIRST)


class Inodes:
    def __init__(self, root: Vnode) -> None:
        root.ino = ROOT
        root.lookups = 1  # the kernel never forgets it
        self._held: dict[int, Vnode] = {ROOT: root}
        self._moved: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, ino: int) -> Vnode | None:
        return self._held.get(ino)

    def known(self, vnode: Vnode) -> Vnode:
        """The held vnode with this key, else `vnode` itself, with its number set.

        Of a live vnode the newer object takes the place of the held one.
        """
        ino, held = self._find(vnode.key)
        if held is None:
            vnode.ino = ino
            return vnode
        if not vnode.live:
            return held
        vnode.ino, vnode.lookups = ino, held.lookups
        self._held[ino] = vnode
        return vnode

    def _find(self, key: bytes) -> tuple[int, Vnode | None]:
        ino = self._moved.get(key) or number(key)
        held = self._held.get(ino)
        while held is not None and held.key != key:
            ino = ino + 1 if ino + 1 < LIMIT else FIRST
            held = self._held.get(ino)
        return ino, held

    def hold(self, vnode: Vnode) -> None:
        """The kernel was told of what `known` returned, once more."""
        if vnode.lookups == 0:
            self._held[vnode.ino] = vnode
            if vnode.ino != number(vnode.key):
                self._moved[vnode.key] = vnode.ino
        vnode.lookups += 1

    def forget(self, ino: int, lookups: int) -> None:
        """The kernel gives back `lookups` of its counts."""
        vnode = self._held.get(ino)
        if vnode is None or ino == ROOT:
            return
        vnode.lookups -= lookups
        if vnode.lookups <= 0:
            del self._held[ino]
            self._moved.pop(vnode.key, None)
