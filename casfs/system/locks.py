"""Locks between processes that share a store: one holder of a name at a time.

    locks/<name>   held by flock(2); there only while somebody holds it or waits for it

The kernel lets go of a dead holder's lock, so nothing has to time out. A holder may leave
a note for that case; its successor finds it, since whoever ends well removes the file.
A store in memory belongs to one process, and has no locks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from casfs.errors import Failed

FOLDER = "locks"
NOTE = 4096  # bytes


class Lock:
    """A lock that is held. `left`: the note of a holder that died, or empty."""

    def __init__(self, fd: int = -1) -> None:
        self._fd = fd
        self.left = "" if fd < 0 else os.pread(fd, NOTE, 0).decode("utf-8", "replace")

    def note(self, text: str) -> None:
        """What a successor should know if this process dies."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode()[:NOTE], 0)


@contextmanager
def held(root: Path | None, name: str, waiting: Callable[[], None]) -> Iterator[Lock]:
    """Hold `name` in the store at `root`; `waiting` is called once if somebody else does.

    Raises Failed where the file cannot be made.
    """
    if root is None:
        yield Lock()
        return
    path = root / FOLDER / name
    try:
        fd = _acquire(path, waiting)
    except OSError as error:
        raise Failed(f"cannot lock {path}: {error.strerror}") from None
    try:
        yield Lock(fd)
    finally:
        with suppress(OSError):
            path.unlink()  # before it is let go: who waits for it sees that, and makes it again
        os.close(fd)


def _acquire(path: Path, waiting: Callable[[], None]) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    told = False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    waiting()
                    told = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
