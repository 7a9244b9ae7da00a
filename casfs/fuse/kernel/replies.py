"""Replies to the kernel, and what a successor needs to know of unanswered requests.

That is for kernels that do not resend requests when the worker that had read them dies (before
Linux 6.9): a successor answers those requests with EIO, so that no caller hangs. The serving loop
reads the header of a request into the inode table, so that no death comes between a read and its
record. Deferred requests are listed there, too, as far as there is room.
"""

from __future__ import annotations

import errno
import os
import threading

from casfs.fuse.inode_table import InodeTable
from casfs.fuse.kernel import protocol
from casfs.fuse.kernel.splice import Pipe
from casfs.fuse.views.vnode import Extent

IGNORED = (errno.ENOENT, errno.ENODEV)  # the caller was interrupted, or the mount has ended


class Replies:
    """`fd`: /dev/fuse. Thread-safe, except for `splice`."""

    def __init__(self, fd: int, table: InodeTable) -> None:
        self.lists_deferred = False
        self._fd = fd
        self._request_header = table.request_header
        self._deferred = table.deferred
        self._lock = threading.Lock()
        self._pipe = Pipe()

    def close(self) -> None:
        self._pipe.close()

    def reply(self, unique: int, body: bytes) -> None:
        header = protocol.out_header.pack(protocol.out_header.size + len(body), 0, unique)
        self._write([header, body])

    def error(self, unique: int, code: int) -> None:
        self._write([protocol.out_header.pack(protocol.out_header.size, -code, unique)])

    def notify(self, code: int, body: bytes) -> None:
        """Sends a notification. Raises OSError."""
        self._write([protocol.out_header.pack(protocol.out_header.size + len(body), code, 0), body])

    def splice(self, unique: int, extent: Extent) -> int | None:
        """Replies with pages of a file, in the serving loop only; returns the bytes sent, None
        if the system has no pipe for that. Raises OSError, Denied."""
        header = protocol.out_header.pack(protocol.out_header.size + extent.size, 0, unique)
        try:
            return extent.size if self._pipe.send(self._fd, header, extent) else None
        except OSError as error:
            if error.errno not in IGNORED:
                raise
            return 0

    def _write(self, parts: list[bytes]) -> None:
        try:
            os.writev(self._fd, parts)
        except OSError as error:
            if error.errno not in IGNORED:
                raise

    # -- unanswered requests ------------------------------------------------------------------

    def defer(self, unique: int) -> None:
        """A worker thread will answer the request, and then call `answered`. To be called before
        the serving loop reads the next one."""
        self._replace(0, unique)

    def answered(self, unique: int) -> None:
        self._replace(unique, 0)

    def _replace(self, old: int, new: int) -> None:
        if self.lists_deferred:
            with self._lock:
                index = next((n for n, listed in enumerate(self._deferred) if listed == old), None)
                if index is not None:
                    self._deferred[index] = new

    def fail_unanswered(self) -> None:
        """Answers the requests of a worker that died with EIO; the kernel ignores an answer to one
        that has its answer already."""
        last = protocol.in_header.unpack(self._request_header)[2]
        for unique in {last, *self._deferred} - {0}:
            self.error(unique, errno.EIO)
        self._request_header[:] = bytes(len(self._request_header))
        self._deferred[:] = memoryview(bytes(self._deferred.nbytes)).cast("Q")
