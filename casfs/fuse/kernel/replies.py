"""Answers on their way to the kernel, and a note of the requests that have none yet.

The notes are for a kernel that sends no request again when who had taken it dies (before Linux
6.9): they stand in the table of inodes, and a successor answers what they name with EIO, for
nobody may wait for ever. One place is the serving loop's, the others are for requests that
wait elsewhere; of more than there are places for, the rest is not noted.
"""

from __future__ import annotations

import errno
import os
import threading

from casfs.fuse.kernel import protocol
from casfs.fuse.kernel.splice import Pipe
from casfs.fuse.views.vnode import Extent

GONE = (errno.ENOENT, errno.ENODEV)  # who asked was interrupted, or the mount is no more


class Answers:
    """`fd`: /dev/fuse; `taken`: the places. Any thread may answer."""

    def __init__(self, fd: int, taken: memoryview) -> None:
        self.noting = False
        self._fd = fd
        self._taken = taken
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
        """What nobody has asked for. Raises OSError."""
        self._write([protocol.out_header.pack(protocol.out_header.size + len(body), code, 0), body])

    def splice(self, unique: int, extent: Extent) -> int | None:
        """Answer with pages of a file, from the serving loop alone; the bytes that were sent.
        None where the system has no pipe for that. Raises OSError, Denied."""
        header = protocol.out_header.pack(protocol.out_header.size + extent.size, 0, unique)
        try:
            return extent.size if self._pipe.send(self._fd, header, extent) else None
        except OSError as error:
            if error.errno not in GONE:
                raise
            return 0

    def _write(self, parts: list[bytes]) -> None:
        try:
            os.writev(self._fd, parts)
        except OSError as error:
            if error.errno not in GONE:
                raise

    # -- what has no answer yet ---------------------------------------------------------------

    def take(self, unique: int) -> None:
        """The serving loop has this one now, and has answered the one before or delayed it."""
        if self.noting:
            self._taken[0] = unique

    def delay(self, unique: int) -> None:
        """Somebody else will answer it, and then call `done`."""
        self._change(0, unique)

    def done(self, unique: int) -> None:
        self._change(unique, 0)

    def _change(self, old: int, new: int) -> None:
        if self.noting:
            with self._lock:
                place = next((n for n, at in enumerate(self._taken) if n and at == old), None)
                if place is not None:
                    self._taken[place] = new

    def fail_taken(self) -> None:
        """Whoever had taken these is dead."""
        for place, unique in enumerate(self._taken):
            if unique:
                self.error(unique, errno.EIO)
                self._taken[place] = 0
