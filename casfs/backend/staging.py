"""Private files of a writing process, in `tmp/<writer>/` until they are renamed into place.

The directory holds a locked file for as long as the process lives; its worker processes write
there too. A directory without a living owner is swept at the next start.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from casfs.system.files import is_writable, os_errors
from casfs.system.locks import lock_file

CLAIM_GRACE_S = 60.0  # that a writer may take between making and locking its directory


class StagingDirectory:
    def __init__(self, root: Path, shared: Path | None = None) -> None:
        """`root`: `tmp/`; `shared`: the parent's directory, where this is a worker process."""
        self._root = root
        self._own = shared
        self._name = "" if shared is None else f"{os.getpid()}."
        self._lock_fd = -1
        self._claiming = threading.Lock()
        self._names = itertools.count()

    def new_name(self) -> str:
        return f"{self.directory()}/{self._name}{next(self._names)}"

    def directory(self) -> Path:
        """Returns this process's directory, created and locked at the first call, and created again
        if it was removed. Raises Failed."""
        with self._claiming:
            if self._own is None or (self._lock_fd >= 0 and not (self._own / "lock").exists()):
                if self._lock_fd >= 0:
                    os.close(self._lock_fd)
                self._own, self._lock_fd = self._claim()
        return self._own

    def _claim(self) -> tuple[Path, int]:
        """Makes a directory of our own, locked before it gets a name that the sweep looks at."""
        hidden = self._root / f".{os.urandom(16).hex()}"
        own = hidden.with_name(hidden.name[1:])
        with os_errors(f"cannot write {self._root}"):
            self._root.mkdir(exist_ok=True)
            hidden.mkdir(mode=0o700)
            fd = lock_file(hidden / "lock")
            assert fd is not None  # no other process knows the name
            hidden.rename(own)
        return own, fd

    def sweep(self) -> int:
        """Removes the directories of dead writers; returns their number."""
        swept = 0
        if not is_writable(self._root):
            return swept
        for directory in self._root.glob("*/"):
            if directory != self._own and _is_orphan(directory):
                _remove(directory)
                swept += 1
        return swept

    def close(self) -> None:
        if self._own is not None and self._lock_fd >= 0:
            _remove(self._own)
            os.close(self._lock_fd)
            self._own = None
            self._lock_fd = -1


def _is_orphan(directory: Path) -> bool:
    """Returns True when no living process holds the directory's lock."""
    with suppress(FileNotFoundError):
        age_s = time.time() - directory.stat().st_mtime
        if directory.name.startswith(".") and age_s < CLAIM_GRACE_S:
            return False
        fd = lock_file(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        if fd is None:
            return False
        os.close(fd)
    return True


def _remove(directory: Path) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
