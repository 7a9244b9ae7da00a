"""A reserve of disk space in a store: what makes room (cancel, gc) may need some to begin with.

`reserve` in the store's directory is a file of allocated blocks. It is deleted before such work
and made again after it, as far as there is room.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FILE = "reserve"
RESERVE_BYTES = 4 << 20  # the database's log and index of one transaction


@contextmanager
def released(root: Path) -> Iterator[None]:
    """Frees the reserve of the store at `root` for the work inside."""
    with suppress(OSError):
        (root / FILE).unlink()
    try:
        yield
    finally:
        allocate(root)


def allocate(root: Path) -> None:
    """Makes the reserve where there is room for it."""
    path = root / FILE
    if path.exists():
        return
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError:
            path.unlink()
        finally:
            os.close(fd)
