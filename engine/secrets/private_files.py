"""The private files of a directory as they lie there, whatever is recorded of it: also ignored
ones, what a link leads to, and those of a directory that is too large for a look."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from casfs.scanner.private_names import private_names
from casfs.system.files import closing_fd
from casfs.trees.snapshot.derived import MADE_FROM, VIRTUAL_ENVIRONMENTS

MAX_DEPTH = 4  # of directories; what is private stands near the top
MAX_ENTRIES = 20_000
NOT_SEARCHED = frozenset((b".git", *MADE_FROM, *VIRTUAL_ENVIRONMENTS))


def contents(directory: Path, max_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields names and contents of private files, each of up to `max_bytes`. What cannot be read is
    left out."""
    left = MAX_ENTRIES
    level = [os.fsencode(directory)]
    for _ in range(MAX_DEPTH):
        below: list[bytes] = []
        for folder in level:
            with suppress(OSError), os.scandir(folder) as entries:
                names = {entry.name: entry for entry in entries}
                left -= len(names)
                for name in private_names(names):
                    if (data := _read(os.path.join(folder, name), max_bytes)) is not None:
                        yield name, data
                below += [
                    entry.path
                    for name, entry in names.items()
                    if name not in NOT_SEARCHED and entry.is_dir(follow_symlinks=False)
                ]
            if left < 0:
                return
        level = below


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
