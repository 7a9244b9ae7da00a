"""A SQLite file in a directory that cannot be written, as in an agent's sandbox.

Readers of a WAL find their way by its index, `-shm`, in which they also lock what they read. While
a process has the file open for writing, that index is there, and SQLite takes it as it is. Else no
reader can make it: a connection then has an index in its own memory, and locks nothing. Who begins
to write meanwhile is not kept from it, so such a read ends with a look at the files.
"""

from __future__ import annotations

import os
from pathlib import Path

Stamp = list[tuple[int, int, int] | None]


def unlocked_options(path: Path) -> str:
    """Returns the parameters of a URI that opens the file without its index."""
    # `immutable` reads nothing of a WAL, and the other needs one.
    return "vfs=unix-none" if _beside(path, "-wal").exists() else "immutable=1"


def stamp(path: Path) -> Stamp:
    """Returns what changes whenever the file or its WAL is written or removed."""
    return [_stamp_of(path), *(_stamp_of(_beside(path, end)) for end in ("-wal", "-shm"))]


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
