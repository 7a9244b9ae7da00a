"""INIT: what the kernel offers, what the transport needs of that, and what it wants besides.

needed     opening files and directories without asking us, and dropping what it kept of a
           live one when its mtime has moved: FUSE 7.29, Linux 5.1
wanted     reads of up to PAGES pages, attributes with every listing, links kept, requests
           sent again to a successor (Linux 6.9)
"""

from __future__ import annotations

from typing import NamedTuple

from casfs.errors import Failed
from casfs.fuse.kernel import protocol

PAGES = 240  # of 4 KiB in one read; with its header it must fit into a pipe
MAX_WRITE = 4096  # nothing is ever written
BACKGROUND, CONGESTED = 64, 48  # requests that the kernel has on their way by itself
NEEDED = protocol.NO_OPEN_SUPPORT | protocol.NO_OPENDIR_SUPPORT | protocol.AUTO_INVAL_DATA
WANTED = (
    NEEDED
    | protocol.ASYNC_READ
    | protocol.ASYNC_DIO
    | protocol.DO_READDIRPLUS
    | protocol.PARALLEL_DIROPS
    | protocol.MAX_PAGES
    | protocol.CACHE_SYMLINKS
    | protocol.INIT_EXT
    | protocol.HAS_RESEND
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
        return bool(self.flags & protocol.HAS_RESEND)


def negotiate(body: bytes | memoryview) -> tuple[bytes, Negotiated | None]:
    """The answer to INIT; None when the kernel has to ask again, in our major version.

    Raises Unsupported.
    """
    major, minor, readahead, flags = protocol.init_in.unpack_from(body)
    if major > protocol.KERNEL_VERSION:
        return protocol.init_out.pack(
            protocol.KERNEL_VERSION, protocol.KERNEL_MINOR_VERSION, *[0] * 10
        ), None
    if flags & protocol.INIT_EXT and len(body) >= protocol.init_in.size + protocol.init_in_ext.size:
        (more,) = protocol.init_in_ext.unpack_from(body, protocol.init_in.size)
        flags |= more << 32
    if major < protocol.KERNEL_VERSION or minor < protocol.OLDEST_MINOR or NEEDED & ~flags:
        raise Unsupported(f"this kernel's FUSE {major}.{minor} is too old; use pyfuse3")
    agreed = Negotiated(minor, flags & WANTED, readahead)
    answer = protocol.init_out.pack(
        protocol.KERNEL_VERSION,
        protocol.KERNEL_MINOR_VERSION,
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
