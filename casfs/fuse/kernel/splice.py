"""Zero-copy replies: the kernel moves pages of the store's file.

    file → pipe → /dev/fuse

The pipe must hold the whole reply with its header: the second splice(2) must be one message.
"""

from __future__ import annotations

import errno
import fcntl
import os

from casfs.fuse.views.errors import Denied
from casfs.fuse.views.vnode import Extent

PIPE_BYTES = 1 << 20  # the default limit for an unprivileged user


class Pipe:
    def __init__(self) -> None:
        self._ends = _open_pipe()

    def send(self, fd: int, header: bytes, extent: Extent) -> bool:
        """Writes `header` and the extent to `fd` as one message; False if the system allows no
        pipe of that size. Raises OSError, Denied (the file has become shorter)."""
        if self._ends is None:
            return False
        read_end, write_end = self._ends
        try:
            os.write(write_end, header)
            moved = 0
            while moved < extent.size:
                left = extent.size - moved
                offset = extent.offset + moved
                count = os.splice(extent.fd, write_end, left, offset_src=offset)
                if count == 0:
                    raise Denied(errno.EIO)
                moved += count
            os.splice(read_end, fd, len(header) + extent.size)
        except BaseException:  # discards what is left in the pipe
            self.close()
            self._ends = _open_pipe()
            raise
        return True

    def close(self) -> None:
        for end in self._ends or ():
            os.close(end)
        self._ends = None


def _open_pipe() -> tuple[int, int] | None:
    ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        for end in ends:
            os.close(end)
        return None
    return ends
