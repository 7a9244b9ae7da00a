"""READDIR and READDIRPLUS."""

from __future__ import annotations

from casfs.backend.lazy_packs import NotLocal
from casfs.fuse.kernel import protocol
from casfs.fuse.kernel.protocol import Request
from casfs.fuse.session import Session


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
    owner = session.uid, session.gid
    listing = session.listing(request.ino, offset)
    try:
        for item in listing:
            offset, name, vnode, counted = item
            entry = session.listing_entry(listing, item)
            if plus:
                nodeid = vnode.ino if counted else 0
                part = protocol.pack_direntplus(
                    nodeid, entry, offset=offset, name=name, owner=owner
                )
            else:
                part = protocol.pack_dirent(
                    vnode.ino, offset, kind=entry.attr.mode >> 12 & 15, name=name
                )
            left -= len(part)
            if left < 0:
                listing.unread(item)
                break
            parts.append(part)
            if plus:
                session.count_lookup(listing, item)
    except NotLocal:  # the next request begins a new listing there
        if not parts:
            raise
        return b"".join(parts)
    if parts:
        session.save_cursor(listing)
    return b"".join(parts)


HANDLERS = {"readdir": readdir, "readdirplus": readdirplus}
