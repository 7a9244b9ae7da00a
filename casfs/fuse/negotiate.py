"""INIT: what the kernel offers, what the transport needs of that, and what it wants besides.

needed     opening files and directories without asking us, and dropping what it kept of a
           live one when its mtime has moved: FUSE 7.29, Linux 5.1
wanted     reads of up to PAGES pages, attributes with every listing, links kept, requests
           sent again to a successor (Linux 6.9)
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import Failed
from . import wire

PAGES = 240  # of 4 KiB in one read; with its header it must fit into a pipe
MAX_WRITE = 4096  # nothing is ever written
BACKGROUND, CONGESTED = 64, 48  # requests that the kernel has on their way by itself
NEEDED = wire.NO_OPEN_SUPPORT | wire.NO_OPENDIR_SUPPORT | wire.AUTO_INVAL_DATA
WANTED = (
    NEEDED
    | wire.ASYNC_READ
    | wire.ASYNC_DIO
    | wire.DO_READDIRPLUS
    | wire.PARALLEL_DIROPS
    | wire.MAX_PAGES
    | wire.CACHE_SYMLINKS
    | wire.INIT_EXT
    | wire.HAS_RESEND
)


class Unsupported(Failed):
    """This kernel lacks what the transport needs."""


class Negotiated(NamedTuple):
    """What the kernel and we agreed on."""

    minor: int
    flags: int
    readahead: int

    @property
    def resends(self) -> bool:
        return bool(self.flags & wire.HAS_RESEND)


def negotiate(body: bytes | memoryview) -> tuple[bytes, Negotiated | None]:
    """The answer to INIT; None when the kernel has to ask again, in our major version.

    Raises Unsupported.
    """
    major, minor, readahead, flags = wire.init_in.unpack_from(body)
    if major > wire.KERNEL_VERSION:
        return wire.init_out.pack(wire.KERNEL_VERSION, wire.KERNEL_MINOR_VERSION, *[0] * 10), None
    if flags & wire.INIT_EXT and len(body) >= wire.init_in.size + wire.init_in_ext.size:
        (more,) = wire.init_in_ext.unpack_from(body, wire.init_in.size)
        flags |= more << 32
    if major < wire.KERNEL_VERSION or minor < wire.OLDEST_MINOR or NEEDED & ~flags:
        raise Unsupported(f"this kernel's FUSE {major}.{minor} is too old; use pyfuse3")
    agreed = Negotiated(minor, flags & WANTED, readahead)
    answer = wire.init_out.pack(
        wire.KERNEL_VERSION,
        wire.KERNEL_MINOR_VERSION,
        readahead,
        agreed.flags & 0xFFFFFFFF,
        BACKGROUND,
        CONGESTED,
        MAX_WRITE,
        1,  # nanoseconds
        PAGES,
        0,
        agreed.flags >> 32,
        0,
    )
    return answer, agreed
