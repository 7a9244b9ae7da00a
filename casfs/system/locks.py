"""Locks between processes: flock(2) on a file.

The kernel releases the lock of a dead holder, so nothing has to time out, and a file whose
lock is free has no living owner. `held` locks by name, for processes that share a store:

    locks/<name>   exists only while a process holds it or waits for it

A holder may leave a note for its successor in case it dies; it removes the file when it ends
normally.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from casfs.system.files import os_errors

FOLDER = "locks"
NOTE_MAX_BYTES = 4096
LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Locks an open file until every copy of the descriptor is closed. Returns False where
    another process holds it. Raises OSError."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_file(path: Path, flags: int = LOCK_FILE, *, shared: bool = False) -> int | None:
    """Opens a file (by default, creates it) and locks it; returns the descriptor that holds the
    lock, None where another process holds it. Raises OSError."""
    fd = os.open(path, flags, 0o600)
    try:
        if try_lock(fd, shared=shared):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def is_at(fd: int, path: Path) -> bool:
    """Returns True when `path` is still the open file: it may have been removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


class Lock:
    """A lock that is held; without a descriptor, of nothing. `left`: the note of a holder that
    died, or empty."""

    def __init__(self, fd: int = -1) -> None:
        self._fd = fd
        self.left = "" if fd < 0 else os.pread(fd, NOTE_MAX_BYTES, 0).decode("utf-8", "replace")

    def note(self, text: str) -> None:
        """Leaves a note for the successor in case this process dies."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode()[:NOTE_MAX_BYTES], 0)


@contextmanager
def held(root: Path, name: str, waiting: Callable[[], None]) -> Iterator[Lock]:
    """Holds `name` in the store at `root`; `waiting` is called once if another process holds it.

    Raises Failed where the file cannot be made.
    """
    path = root / FOLDER / name
    with os_errors(f"cannot lock {path}"):
        fd = _acquire(path, waiting)
    try:
        yield Lock(fd)
    finally:
        with suppress(OSError):
            path.unlink()  # before the release: a waiting process sees that, and makes it again
        os.close(fd)


def _acquire(path: Path, waiting: Callable[[], None]) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    has_waited = False
    while True:
        fd = os.open(path, LOCK_FILE, 0o600)
        try:
            if not try_lock(fd):
                if not has_waited:
                    waiting()
                    has_waited = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            if is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
