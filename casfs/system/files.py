"""Writing files: whole, durable, and with an error that names the path."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from casfs.errors import Failed
from casfs.system import interruption
from casfs.system.syscalls import call

SHARED_MEMORY = Path("/dev/shm")
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
COPY_MAX_BYTES = 64 << 20  # of one copy_file_range


# Classes, since a generator takes twice the calls, and a step or a checkpoint has many of these.
class os_errors:  # noqa: N801  # used like a function
    """Turns an OSError into Failed: `text`, which says what cannot be done, and the reason."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            hint = ""
            if error.errno == errno.EROFS:
                from casfs.system import sandbox

                hint = sandbox.hint()
            raise Failed(f"{self._text}: {error.strerror}{hint}") from error


class closing_fd:  # noqa: N801  # used like a function
    """Closes a descriptor at the end of the block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def is_writable(directory: Path) -> bool:
    """Returns whether files can be made in a directory; not on a read-only file system, as an
    agent's sandbox shows it."""
    return os.access(directory, os.W_OK)


def read_up_to(source: BinaryIO, count: int) -> bytes:
    """Returns `count` bytes, fewer at the end only: a raw stream may give less at a time."""
    data = source.read(count)
    while len(data) < count and (piece := source.read(count - len(data))):
        data += piece
    return data


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def replacing(path: Path, *, durable: bool = False, temp: Path | None = None) -> Iterator[BinaryIO]:
    """A new file that replaces `path`, whole, when the block ends; nothing when it fails.

    `durable`: synced before and after the rename. `temp`: its name until then. Raises OSError.
    """
    temp = temp or path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with temp.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temp.replace(path)
    except BaseException:
        with suppress(OSError):
            temp.unlink()
        raise
    if durable:
        fsync(path.parent)


def fsync(path: Path | str) -> None:
    """Makes a file or the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    with closing_fd(fd):
        os.fsync(fd)


def syncfs(path: Path) -> None:
    """Syncs the whole file system that holds `path`."""
    fd = os.open(path, os.O_RDONLY)
    with closing_fd(fd):
        call("syncfs", fd)


def data_extents(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of the parts of a file between two offsets that are not holes."""
    offset = start
    while offset < end:
        try:
            offset = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # a hole up to the end
        hole = min(os.lseek(fd, offset, os.SEEK_HOLE), end)
        if offset < hole:
            yield offset, hole
        offset = hole


def copy_extents(origin: int, fd: int, start: int, size: int) -> bool:
    """Copies `size` bytes from `start` in the kernel, holes kept. Returns False where the file
    has become shorter. Raises OSError."""
    os.ftruncate(fd, size)
    for offset, end in data_extents(origin, start, start + size):
        while offset < end:
            interruption.check()
            count = min(end - offset, COPY_MAX_BYTES)
            done = os.copy_file_range(origin, fd, count, offset, offset - start)
            if done == 0:
                return False
            offset += done
    return True


def file_fault(path: Path, mode: int, root: Path, *, is_folder: bool = False) -> str:
    """Returns what is wrong with the kind, mode or owner of a file below `root`; empty: nothing,
    also where the file was removed meanwhile."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return ""
    if not is_folder and not stat.S_ISREG(info.st_mode):
        return "not a regular file"
    if not is_folder and stat.S_IMODE(info.st_mode) != mode:
        return f"its mode is {stat.S_IMODE(info.st_mode):o}, must be {mode:o}"
    if info.st_uid not in (0, root.stat().st_uid):
        return f"it belongs to the user {info.st_uid}, who can change it"
    return ""
