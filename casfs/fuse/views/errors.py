"""Our errors as errno: the one table, for every transport."""

from __future__ import annotations

import errno

from casfs.errors import (
    CasfsError,
    Conflict,
    Corrupt,
    CorruptBlob,
    Failed,
    Invalid,
    NoDaemon,
    NotFound,
    Refused,
    Suspended,
    Usage,
)

ERRNO: dict[type[CasfsError], int] = {
    CasfsError: errno.EIO,
    Failed: errno.EIO,
    Corrupt: errno.EIO,
    CorruptBlob: errno.EIO,
    NotFound: errno.ENOENT,
    Refused: errno.EPERM,
    Invalid: errno.EINVAL,
    Conflict: errno.EIO,
    Usage: errno.EINVAL,
    NoDaemon: errno.EIO,
    Suspended: errno.EIO,
}
OURS = frozenset({errno.EIO})  # the caller did nothing wrong: worth a line in the log


class Denied(Exception):
    """What a caller of a system call did is not possible, and that is the answer."""

    def __init__(self, code: int) -> None:
        super().__init__(errno.errorcode.get(code, str(code)))
        self.errno = code


def errno_of(error: Exception) -> int:
    """What the caller of a system call gets for `error`; EIO for what nobody expected."""
    if isinstance(error, Denied):
        return error.errno
    return ERRNO.get(type(error), errno.EIO) if isinstance(error, CasfsError) else errno.EIO
