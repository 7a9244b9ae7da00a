"""Room for SQLite's WAL index, the file `store.db-shm` that its processes map.

A page of a mapped file that has no block and gets none, as the disk is full, is a SIGBUS, which
no handler survives. SQLite makes a block for each 4 KiB of the file before it maps them; where
blocks are smaller (mkfs.ext4 makes blocks of 1 KiB on a small disk) all of them have to be made.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MIN_FREE_BYTES = 128 << 10  # that SQLite's own files need
PAGE_BYTES = 4096  # for which SQLite makes one block
INDEX_BYTES = 128 << 10  # of a WAL of 64 MiB


def is_full(folder: Path) -> bool:
    """SQLite often reports `disk I/O error` where its own small files had no room."""
    try:
        file_system = os.statvfs(folder)
    except OSError:
        return False
    return file_system.f_bavail * file_system.f_frsize < MIN_FREE_BYTES


def has_small_blocks(folder: Path) -> bool:
    try:
        return os.statvfs(folder).f_frsize < PAGE_BYTES
    except OSError:
        return False


def allocate(database: Path) -> None:
    """Makes all blocks of the index that this process has open. Raises OSError.

    The caller has a connection, so SQLite's descriptor stays; another one of ours would, when it is
    closed, release SQLite's locks.
    """
    name = f"{database.resolve()}-shm"
    for entry in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it was the directory's
            if os.readlink(f"/proc/self/fd/{entry}") == name:
                os.posix_fallocate(int(entry), 0, INDEX_BYTES)
