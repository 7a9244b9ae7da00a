"""The errno for each of our errors: the one table, for every transport."""

from __future__ import annotations

import errno

from casfs import errors
from casfs.errors import CasfsError

ERRNO: dict[type[CasfsError], int] = {
    CasfsError: errno.EIO,
    errors.Failed: errno.EIO,
    errors.Corrupt: errno.EIO,
    errors.CorruptBlob: errno.EIO,
    errors.Purged: errno.EIO,
    errors.Unreachable: errno.EHOSTUNREACH,
    errors.NotFound: errno.ENOENT,
    errors.Refused: errno.EPERM,
    errors.Invalid: errno.EINVAL,
    errors.Conflict: errno.EIO,
    errors.AccessDenied: errno.EACCES,
    errors.Usage: errno.EINVAL,
    errors.NoDaemon: errno.EIO,
    errors.DaemonUnreachable: errno.EIO,
    errors.Suspended: errno.EIO,
}
LOGGED = frozenset({errno.EIO})  # not the caller's fault


class Denied(Exception):
    """The errno is the regular answer to the request, not a failure: it is not logged."""

    def __init__(self, code: int) -> None:
        super().__init__(errno.errorcode.get(code, str(code)))
        self.errno = code


def errno_of(error: Exception) -> int:
    """Returns the errno for `error`; EIO for an unexpected exception."""
    if isinstance(error, Denied):
        return error.errno
    return ERRNO.get(type(error), errno.EIO) if isinstance(error, CasfsError) else errno.EIO
