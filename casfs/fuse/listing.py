"""Directory listings: the entries of a directory from an offset on, and where to resume them.

Offset n stands behind the n-th name; the first two names are `.` and `..`. The kernel reads a
listing in pieces: the iterator that a piece leaves is kept, so that the next one need not skip.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from casfs.fuse.inodes import Inodes
from casfs.fuse.views.vnode import Directory, PlainEntry, Vnode

MAX_CURSORS = 256  # listings that can be resumed
DOTS = 2  # `.` and `..`


class DirectoryItem(NamedTuple):
    """A name in a listing, and the offset behind it. `counted`: READDIRPLUS counts a lookup of
    it; not of `.` and `..`."""

    offset: int
    name: bytes
    vnode: Vnode
    counted: bool


class PlainItem(NamedTuple):
    """A name in a listing without a vnode, and the offset behind it."""

    offset: int
    entry: PlainEntry


Item: TypeAlias = DirectoryItem | PlainItem
AnyItem = TypeVar("AnyItem", bound=Item)


class Listing(Generic[AnyItem]):
    """The rest of a directory from some offset on."""

    def __init__(
        self, ino: int, directory: Directory, items: Iterator[AnyItem], offset: int
    ) -> None:
        self.ino = ino
        self.directory = directory
        self.offset = offset  # of the next item
        self._items = items

    def __iter__(self) -> Iterator[AnyItem]:
        for item in self._items:
            self.offset = item.offset
            yield item

    def unread(self, item: AnyItem) -> None:
        """Puts the last item back, to be the first when the listing is resumed."""
        self._items = chain([item], self._items)
        self.offset = item.offset - 1


class ListingCursors:
    """Starts listings, and resumes those that were saved at their offset."""

    def __init__(self, inodes: Inodes, parent: Callable[[int], Directory]) -> None:
        """`parent`: returns the directory above an inode number."""
        self._intern = inodes.intern
        self._parent = parent
        self._saved: OrderedDict[tuple[int, int], Listing[Any]] = OrderedDict()

    def open(self, ino: int, directory: Directory, offset: int) -> Listing[DirectoryItem]:
        """Returns the listing from `offset` on; a new one at 0."""
        saved = self._saved.pop((ino, offset), None)
        if saved is not None and offset:
            return saved
        return Listing(ino, directory, items=self._items(ino, directory, offset), offset=offset)

    def open_plain(self, ino: int, directory: Directory, offset: int) -> Listing[Item]:
        """As `open`, without vnodes where the directory does without them. A transport calls one
        of the two for all listings of a kind."""
        saved = self._saved.pop((ino, offset), None)
        if saved is not None and offset:
            return saved
        entries = directory.plain_entries_after(max(offset - DOTS, 0))
        if entries is None:
            items: Iterator[Item] = self._items(ino, directory, offset)
        else:
            plain_items = map(PlainItem, count(max(offset, DOTS) + 1), entries)
            items = chain(self._dots(ino, directory, offset), plain_items)
        return Listing(ino, directory, items=items, offset=offset)

    def save(self, listing: Listing[Any]) -> None:
        """Keeps a listing, to be resumed at its offset."""
        self._saved[listing.ino, listing.offset] = listing
        if len(self._saved) > MAX_CURSORS:
            self._saved.popitem(last=False)

    def _dots(self, ino: int, directory: Directory, offset: int) -> Iterator[DirectoryItem]:
        if offset < 1:
            yield DirectoryItem(1, b".", vnode=directory, counted=False)
        if offset < DOTS:
            yield DirectoryItem(DOTS, b"..", vnode=self._parent(ino), counted=False)

    def _items(self, ino: int, directory: Directory, offset: int) -> Iterator[DirectoryItem]:
        yield from self._dots(ino, directory, offset)
        skipped = max(offset - DOTS, 0)
        entries = directory.entries_after(skipped)
        for offset, (name, vnode) in enumerate(entries, start=DOTS + skipped + 1):
            yield DirectoryItem(offset, name, vnode=self._intern(vnode), counted=True)
