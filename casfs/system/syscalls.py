"""System calls that the standard library lacks."""

from __future__ import annotations

import ctypes
import errno
import os

RENAME_EXCHANGE = 2  # linux/fs.h
KEEP_SIZE, PUNCH_HOLE = 1, 2  # linux/falloc.h


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Calls a function of libc that returns -1 where it sets errno. Raises OSError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    longs = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = function(*longs)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def exchange(source: int, target: int, name: bytes) -> bool:
    """Lets `name` in two open directories swap places, atomically. Returns False where the file
    system cannot. Raises OSError."""
    try:
        call("renameat2", source, name, target, name, RENAME_EXCHANGE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        return False
    return True


def punch_hole(fd: int, start: int, size: int) -> bool:
    """Frees a range of a file, which reads as zeros from then on. Returns False where the file
    system cannot. Raises OSError."""
    try:
        call("fallocate", fd, KEEP_SIZE | PUNCH_HOLE, start, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM):
            raise
        return False
    return True
