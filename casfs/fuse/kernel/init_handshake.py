"""FUSE_INIT: negotiation of the protocol version and flags.

NEEDED    opening files and directories without a request, and invalidating the cached pages of
          a live file when its mtime changes: FUSE 7.29, Linux 5.1
WANTED    reads of up to MAX_PAGES, attributes with every listing, cached link targets, resending
          requests to a successor (Linux 6.9)
"""

from __future__ import annotations

from typing import NamedTuple

from casfs.errors import Failed
from casfs.fuse.kernel import protocol

MAX_PAGES = 240  # of 4 KiB in one read; with the header it must fit into a pipe
MAX_WRITE_BYTES = 4096  # writes are refused
MAX_BACKGROUND = 64  # of the kernel's own requests in flight
CONGESTION_THRESHOLD = 48
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
    minor: int
    flags: int
    readahead: int

    @property
    def resends(self) -> bool:
        return bool(self.flags & protocol.HAS_RESEND)


def negotiate(body: bytes | memoryview) -> tuple[bytes, Negotiated | None]:
    """Returns the reply to INIT, and the result; None if the kernel has to repeat INIT in our major
    version. Raises Unsupported."""
    major, minor, readahead, flags = protocol.init_in.unpack_from(body)
    if major > protocol.KERNEL_VERSION:
        return protocol.init_out.pack(
            protocol.KERNEL_VERSION, protocol.KERNEL_MINOR_VERSION, *[0] * 10
        ), None
    if flags & protocol.INIT_EXT and len(body) >= protocol.init_in.size + protocol.init_in_ext.size:
        (high_flags,) = protocol.init_in_ext.unpack_from(body, protocol.init_in.size)
        flags |= high_flags << 32
    if major < protocol.KERNEL_VERSION or minor < protocol.OLDEST_MINOR or NEEDED & ~flags:
        raise Unsupported(f"this kernel's FUSE {major}.{minor} is too old; use --transport libfuse")
    agreed = Negotiated(minor, flags & WANTED, readahead)
    reply = protocol.init_out.pack(
        protocol.KERNEL_VERSION, protocol.KERNEL_MINOR_VERSION, readahead,
        agreed.flags & 0xFFFFFFFF, MAX_BACKGROUND, CONGESTION_THRESHOLD, MAX_WRITE_BYTES,
        1,  # time granularity in nanoseconds
        MAX_PAGES, 0, agreed.flags >> 32, 0,
    )  # fmt: skip
    return reply, agreed
