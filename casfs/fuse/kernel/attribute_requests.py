"""LOOKUP, FORGET, GETATTR and the other requests for names and attributes."""

from __future__ import annotations

import errno
from collections.abc import Callable

from casfs.fuse.kernel import protocol
from casfs.fuse.kernel.protocol import Request
from casfs.fuse.session import FS_BLOCK, MAX_NAME_BYTES, Session
from casfs.fuse.views.errors import Denied


def lookup(session: Session, request: Request) -> bytes:
    entry = session.lookup(request.ino, _name(request.body))
    attributes = protocol.pack_attr(entry.ino, entry.attr, uid=session.uid, gid=session.gid)
    return protocol.pack_entry(
        entry.ino, entry.entry_timeout, attr_timeout=entry.attr_timeout, attributes=attributes
    )


def forget(session: Session, request: Request) -> None:
    (lookups,) = protocol.forget_in.unpack_from(request.body)
    session.forget(request.ino, lookups)


def batch_forget(session: Session, request: Request) -> None:
    (count, _) = protocol.batch_forget_in.unpack_from(request.body)
    start = protocol.batch_forget_in.size
    pairs = request.body[start : start + count * protocol.forget_one.size]
    for ino, lookups in protocol.forget_one.iter_unpack(pairs):
        session.forget(ino, lookups)


def getattr(session: Session, request: Request) -> bytes:
    entry = session.getattr(request.ino)
    attributes = protocol.pack_attr(entry.ino, entry.attr, uid=session.uid, gid=session.gid)
    return protocol.attr_out.pack(*protocol.timeout(entry.attr_timeout), 0) + attributes


def statx(session: Session, request: Request) -> bytes:
    entry = session.getattr(request.ino)
    attributes = protocol.pack_statx(entry.ino, entry.attr, uid=session.uid, gid=session.gid)
    return protocol.statx_out.pack(*protocol.timeout(entry.attr_timeout), 0) + attributes


def readlink(session: Session, request: Request) -> bytes:
    return session.readlink(request.ino)


def access(session: Session, request: Request) -> bytes:
    mask, _ = protocol.access_in.unpack_from(request.body)
    session.access(request.ino, mask, request.uid, request.gid)
    return b""


def statfs(session: Session, request: Request) -> bytes:
    space = session.statfs()
    return protocol.statfs_out.pack(
        space.blocks, 0, 0, space.files, 0, FS_BLOCK, MAX_NAME_BYTES, FS_BLOCK, 0
    )


def getxattr(session: Session, request: Request) -> bytes:
    size, _ = protocol.getxattr_in.unpack_from(request.body)
    name = _name(request.body[protocol.getxattr_in.size :])
    return _value_or_size(session.getxattr(request.ino, name), size)


def listxattr(session: Session, request: Request) -> bytes:
    """Lists none: an overlay would copy the attribute up, where it becomes stale."""
    if not session.xattr:
        raise Denied(errno.ENOSYS)
    size, _ = protocol.getxattr_in.unpack_from(request.body)
    return _value_or_size(b"", size)


def _name(body: memoryview) -> bytes:
    """Returns a NUL-terminated name."""
    name, nul, _ = bytes(body).partition(b"\0")
    if not nul:
        raise Denied(errno.EINVAL)
    return name


def _value_or_size(value: bytes, size: int) -> bytes:
    """Returns an attribute's value, or its size if the caller asks for that with size 0."""
    if size == 0:
        return protocol.getxattr_out.pack(len(value), 0)
    if len(value) > size:
        raise Denied(errno.ERANGE)
    return value


_ALL = (lookup, forget, batch_forget, getattr, statx, readlink, access, statfs, getxattr, listxattr)
HANDLERS: dict[str, Callable[[Session, Request], bytes | None]] = {
    handler.__name__: handler for handler in _ALL
}
