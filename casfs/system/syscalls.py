"""System calls that the standard library lacks.

ctypes is imported by the call: a command that only reads makes none.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

RENAME_EXCHANGE = 2  # linux/fs.h
KEEP_SIZE = 1  # linux/falloc.h
PUNCH_HOLE = 2
OPENAT2 = 437  # the same number on every architecture
BENEATH = 0x08 | 0x02  # linux/openat2.h: RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS
AT_EMPTY_PATH = 0x1000  # linux/fcntl.h
STATX_BTIME = 0x800  # linux/stat.h
STATX_SIZE = 256  # of struct statx; its mask is first, the birth time at STATX_BTIME_AT
STATX_BTIME_AT = 80
MAX_OPEN_TRIES = 100  # while others rename what is on the path


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Calls a function of libc that returns -1 where it sets errno. Raises OSError."""
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    longs = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
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


def openat2_beneath(root: int, path: bytes, flags: int) -> int:
    """The system call for `casfs.system.paths.open_beneath`. Raises OSError; ENOSYS before Linux
    5.6."""
    import ctypes

    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, BENEATH)
    buffer = ctypes.create_string_buffer(how, len(how))
    for _ in range(MAX_OPEN_TRIES):
        try:
            return call("syscall", OPENAT2, root, path, buffer, len(how))
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            fault = error
    raise fault


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


def birth_time_ns(fd: int) -> int:
    """Returns when an open file was made, in ns since 1970 UTC; 0 where the kernel or the file
    system does not say."""
    import ctypes

    buffer = ctypes.create_string_buffer(STATX_SIZE)
    try:
        call("statx", fd, b"", AT_EMPTY_PATH, STATX_BTIME, buffer)
    except (OSError, AttributeError):  # AttributeError: a libc without it
        return 0
    (mask,) = struct.unpack_from("I", buffer)
    seconds, ns = struct.unpack_from("qI", buffer, STATX_BTIME_AT)
    return seconds * 1_000_000_000 + ns if mask & STATX_BTIME else 0
