"""Listings as they were told, of directories in which nothing can ever change.

A transport that is asked for every listing again and again encodes an item once, and keeps it
here: the beginning of a listing, as far as somebody has come. An item belongs here when its
name and its attributes stand for ever, and its number is the one that its key asks for. That
number may be another's once the kernel has forgotten it, so whoever tells it again compares
the check first. A listing goes when the kernel forgets the directory, or to make room.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

from casfs.fuse.inodes import check, number
from casfs.fuse.session import FOREVER, Entry, Item, Listing

Encoded = TypeVar("Encoded")


class Told(NamedTuple, Generic[Encoded]):
    """The n-th of a listing has the offset n. `check`: None for `.` and `..`, not to be held."""

    name: bytes
    entry: Encoded
    ino: int
    check: int | None


class Listings(Generic[Encoded]):
    def __init__(self, most: int) -> None:
        """`most`: items in all."""
        self._most = most
        self._count = 0
        self._begun: OrderedDict[int, list[Told[Encoded]]] = OrderedDict()
        self._complete: set[int] = set()

    def begun(self, ino: int) -> list[Told[Encoded]]:
        """What is kept of a directory, from its first name on."""
        return self._begun.get(ino, [])

    def complete(self, ino: int) -> bool:
        """Is that all there is?"""
        return ino in self._complete

    def add(self, listing: Listing, item: Item, entry: Entry, encoded: Encoded) -> None:
        """Keep the next item of a listing, if it is the next here as well."""
        known = self._begun.get(listing.ino)
        if item.offset != (1 if known is None else len(known) + 1) or not listing.directory.fixed:
            return
        key = item.vnode.key
        if item.held:
            stands = entry.attr_timeout == entry.entry_timeout == FOREVER
            if not stands or item.vnode.ino != number(key):
                return
        if known is None:
            known = self._begun[listing.ino] = []
        known.append(Told(item.name, encoded, item.vnode.ino, check(key) if item.held else None))
        self._count += 1
        while self._count > self._most:
            self.drop(next(iter(self._begun)))

    def end(self, listing: Listing) -> None:
        """All of a listing has been told."""
        if len(self.begun(listing.ino)) == listing.offset > 0:
            self._complete.add(listing.ino)

    def drop(self, ino: int) -> None:
        self._count -= len(self._begun.pop(ino, ()))
        self._complete.discard(ino)
