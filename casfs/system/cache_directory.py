"""The user's directory for what can be made again: the tree of commands, compiled rules.

What is read from it is trusted as the program's own files are, so a directory that another user
could write into is not used.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from casfs.system.files import replacing

FOREIGN_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read(name: str) -> bytes | None:
    """Returns a file of the cache, None where there is none, or it cannot be trusted."""
    directory = _directory()
    try:
        status = directory.stat()
        if status.st_uid != os.geteuid() or status.st_mode & FOREIGN_WRITE:
            return None
        return (directory / name).read_bytes()
    except OSError:
        return None


def write(name: str, data: bytes) -> None:
    """Keeps a file, whole or not at all. An error is ignored: what needs it makes it again."""
    directory = _directory()
    with suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(directory / name) as file:
            file.write(data)


def _directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "casfs"
