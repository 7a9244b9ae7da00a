"""The private files of a directory as they lie there, whatever is recorded of it: also ignored
ones, what a link leads to, and those of a directory that is too large for a look."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from casfs.scanner.private_names import private_names
from casfs.system.files import closing_fd
from casfs.trees.snapshot.derived import MADE_FROM, VIRTUAL_ENVIRONMENTS

MAX_DEPTH = 4  # of directories; what is private stands near the top
MAX_ENTRIES = 20_000
RACY_NS = 20_000_000  # two ticks of a slow kernel's clock
NOT_SEARCHED = frozenset((b".git", *MADE_FROM, *VIRTUAL_ENVIRONMENTS))


class _Listing(NamedTuple):
    """A directory as it was listed: how many entries it has, the paths
    of private files and of directories."""

    entries: int
    private: list[bytes]
    below: list[bytes]


class PrivateFiles:
    """Those of a directory, each of up to `max_bytes`. What cannot be read is left out."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._top = os.fsencode(directory)
        self._max_bytes = max_bytes
        self._listings: dict[bytes, tuple[int, _Listing]] = {}  # with the mtime
        self._stamps: dict[bytes, tuple[int, ...]] = {}  # of the files that were read

    def changed(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields names and contents of those that are new or have changed since the last time. A
        directory is listed, and a file read, only where its stat is another one."""
        # What was changed just now may change again without another stat.
        racy_after = time.time_ns() - RACY_NS
        for listing in self._listings_of_all(racy_after):
            for path in listing.private:
                if (data := self._read_if_changed(path, racy_after)) is not None:
                    yield os.path.basename(path), data

    def _listings_of_all(self, racy_after: int) -> Iterator[_Listing]:
        """Yields those of the directory and of what is below it, within the limits."""
        left = MAX_ENTRIES
        level = [self._top]
        for _ in range(MAX_DEPTH):
            below: list[bytes] = []
            for folder in level:
                with suppress(OSError):
                    listing = self._listing(folder, racy_after)
                    left -= listing.entries
                    below += listing.below
                    yield listing
                if left < 0:
                    return
            level = below

    def _listing(self, folder: bytes, racy_after: int) -> _Listing:
        """Raises OSError."""
        modified = os.stat(folder).st_mtime_ns
        known = self._listings.get(folder)
        if known is not None and known[0] == modified:
            return known[1]
        with os.scandir(folder) as scanned:
            entries = {entry.name: entry for entry in scanned}
        private = [os.path.join(folder, name) for name in private_names(entries)]
        below = [
            entry.path
            for name, entry in entries.items()
            if name not in NOT_SEARCHED and entry.is_dir(follow_symlinks=False)
        ]
        listing = _Listing(len(entries), private, below)
        if modified < racy_after:
            self._listings[folder] = modified, listing
        return listing

    def _read_if_changed(self, path: bytes, racy_after: int) -> bytes | None:
        with suppress(OSError):
            status = os.stat(path)
            changed = status.st_mtime_ns, status.st_ctime_ns
            stamp = status.st_dev, status.st_ino, status.st_size, *changed
            if self._stamps.get(path) == stamp:
                return None
            data = _read(path, self._max_bytes)
            if max(changed) < racy_after:
                self._stamps[path] = stamp
            return data
        return None


def _read(path: bytes, max_bytes: int) -> bytes | None:
    try:
        # Not of a pipe or a device, whose reader may wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with closing_fd(fd):
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes:
            with suppress(OSError):
                return os.read(fd, max_bytes)
    return None
