"""Private files of a writing process, in `tmp/<writer>/` until they are renamed into place.

The directory holds a locked file for as long as the process lives; processes that help it write
there too. Whatever has no living owner is swept at the next start.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

from casfs.system.files import writing

CLAIMING = 60.0  # seconds that a writer may take between making and locking its directory


class Private:
    def __init__(self, root: Path, lent: Path | None = None) -> None:
        """`root`: `tmp/`; `lent`: the directory of another process, that this one works for."""
        self._root = root
        self._own = lent
        self._name = "" if lent is None else f"{os.getpid()}."
        self._lock_fd = -1
        self._claiming = threading.Lock()
        self._names = itertools.count()

    def new_name(self) -> str:
        return f"{self.directory()}/{self._name}{next(self._names)}"

    def directory(self) -> Path:
        """Raises Failed."""
        with self._claiming:
            if self._own is None:
                self._own, self._lock_fd = self._claim()
        return self._own

    def _claim(self) -> tuple[Path, int]:
        """A directory of our own. Locked before it gets the name that the sweep looks at."""
        hidden = self._root / f".{secrets.token_hex(16)}"
        own = hidden.with_name(hidden.name[1:])
        with writing(self._root):
            self._root.mkdir(exist_ok=True)
            hidden.mkdir(mode=0o700)
            fd = os.open(hidden / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            hidden.rename(own)
        return own, fd

    def sweep(self) -> int:
        """Remove the private files of dead writers; returns how many directories went."""
        swept = 0
        for directory in self._root.glob("*/"):
            if directory != self._own and _is_orphan(directory):
                shutil.rmtree(directory, ignore_errors=True)
                swept += 1
        return swept

    def close(self) -> None:
        if self._own is not None and self._lock_fd >= 0:
            shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._lock_fd)
            self._own, self._lock_fd = None, -1


def _is_orphan(directory: Path) -> bool:
    """True when no living process holds the directory's lock."""
    with suppress(FileNotFoundError):
        if directory.name.startswith(".") and time.time() - directory.stat().st_mtime < CLAIMING:
            return False
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
    return True
