"""Replies to the kernel, and the list of unanswered requests for a successor.

The list is for kernels that do not resend requests when the worker that had read them dies
(before Linux 6.9): it stands in the inode table, and a successor answers those requests with
EIO, so that no caller hangs. Place 0 is for the request of the serving loop, the others
for deferred ones; what exceeds the places is not listed.
"""

from __future__ import annotations

import errno
import os
import threading

from casfs.fuse.kernel import protocol
from casfs.fuse.kernel.splice import Pipe
from casfs.fuse.views.vnode import Extent

IGNORED = (errno.ENOENT, errno.ENODEV)  # the caller was interrupted, or the mount has ended


class Replies:
    """`fd`: /dev/fuse; `unanswered`: the places. Thread-safe, except for `splice`."""

    def __init__(self, fd: int, unanswered: memoryview) -> None:
        self.lists_unanswered = False
        self._fd = fd
        self._unanswered = unanswered
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

    def set_current(self, unique: int) -> None:
        """The serving loop has read this request, and answered or deferred the one before."""
        if self.lists_unanswered:
            self._unanswered[0] = unique

    def defer(self, unique: int) -> None:
        """A worker thread will answer the request, and then call `answered`."""
        self._replace(0, unique)

    def answered(self, unique: int) -> None:
        self._replace(unique, 0)

    def _replace(self, old: int, new: int) -> None:
        if self.lists_unanswered:
            with self._lock:
                place = next((n for n, at in enumerate(self._unanswered) if n and at == old), None)
                if place is not None:
                    self._unanswered[place] = new

    def fail_unanswered(self) -> None:
        """Answers the requests of a worker that died with EIO."""
        for place, unique in enumerate(self._unanswered):
            if unique:
                self.error(unique, errno.EIO)
                self._unanswered[place] = 0
