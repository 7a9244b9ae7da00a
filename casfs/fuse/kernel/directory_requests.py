"""READDIR and READDIRPLUS."""

from __future__ import annotations

from casfs.backend.lazy_packs import NotLocal
from casfs.fuse.inodes import ListedInodes
from casfs.fuse.kernel import protocol
from casfs.fuse.kernel.protocol import Request
from casfs.fuse.listing import DirectoryItem, Item, Listing, PlainItem
from casfs.fuse.session import Session
from casfs.fuse.views.vnode import FOREVER_S


def readdir(session: Session, request: Request) -> bytes:
    return _list(session, request, plus=False)


def readdirplus(session: Session, request: Request) -> bytes:
    return _list(session, request, plus=True)


def _list(session: Session, request: Request, *, plus: bool) -> bytes:
    """Returns as many names as fit, or are here; empty at the end of the directory. Raises NotLocal
    where the first is not."""
    _, offset, size, *_ = protocol.read_in.unpack_from(request.body)
    parts = []
    left = size
    pack = _pack_plus if plus else _pack
    listing = session.plain_listing(request.ino, offset)
    numbers = session.inodes.listed(request.ino)
    try:
        for item in listing:
            part = pack(session, listing, item, numbers)
            left -= len(part)
            if left < 0:
                if isinstance(item, PlainItem):
                    numbers.drop_last()
                listing.unread(item)
                break
            parts.append(part)
            if plus and isinstance(item, DirectoryItem):
                session.count_lookup(listing, item)
    except NotLocal:  # the next request begins a new listing there
        if not parts:
            raise
    else:
        if parts:
            session.save_cursor(listing)
    if plus:
        numbers.count()
    return b"".join(parts)


def _pack_plus(
    session: Session, listing: Listing[Item], item: Item, numbers: ListedInodes
) -> bytes:
    owner = session.uid, session.gid
    if isinstance(item, PlainItem):
        offset, plain = item
        ino = numbers.add(plain)
        forever = (ino, plain.attr, FOREVER_S, FOREVER_S)
        return protocol.pack_direntplus(ino, forever, offset=offset, name=plain.name, owner=owner)
    offset, name, vnode, counted = item
    entry = session.listing_entry(listing, item)
    nodeid = vnode.ino if counted else 0
    return protocol.pack_direntplus(nodeid, entry, offset=offset, name=name, owner=owner)


def _pack(session: Session, listing: Listing[Item], item: Item, numbers: ListedInodes) -> bytes:
    if isinstance(item, PlainItem):
        ino = numbers.add(item.entry)
        kind = item.entry.attr.mode >> 12 & 15
        return protocol.pack_dirent(ino, item.offset, kind=kind, name=item.entry.name)
    entry = session.listing_entry(listing, item)
    kind = entry.attr.mode >> 12 & 15
    return protocol.pack_dirent(item.vnode.ino, item.offset, kind=kind, name=item.name)


HANDLERS = {"readdir": readdir, "readdirplus": readdirplus}
