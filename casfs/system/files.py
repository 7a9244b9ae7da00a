"""Files, as a store writes them: whole, durable, and an error that names the place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from casfs.errors import Failed
from casfs.system.syscalls import call

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
PORTION = 64 << 20  # bytes that the kernel copies at once


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}") from error


def read_up_to(source: BinaryIO, count: int) -> bytes:
    """`count` bytes, or what there is up to the end: a raw stream may give less at a time."""
    data = source.read(count)
    while len(data) < count and (more := source.read(count - len(data))):
        data += more
    return data


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def fsync(path: Path | str) -> None:
    """Make a file or the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def syncfs(path: Path) -> None:
    """One flush for the whole file system (Python has no os.syncfs)."""
    fd = os.open(path, os.O_RDONLY)
    try:
        call("syncfs", fd)
    finally:
        os.close(fd)


def copy_extents(origin: int, fd: int, start: int, size: int) -> bool:
    """Copy `size` bytes from `start`, holes kept; False where the file has become shorter."""
    os.ftruncate(fd, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(origin, start + at, os.SEEK_DATA) - start
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return True
            raise
        end = min(os.lseek(origin, start + at, os.SEEK_HOLE) - start, size)
        while at < end:
            done = os.copy_file_range(origin, fd, min(end - at, PORTION), start + at, at)
            if done == 0:
                return False
            at += done
    return True
