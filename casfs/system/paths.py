"""Paths as bytes: shown to a person, and opened component by component without following
symlinks (a name may be replaced by one at any time)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from casfs.errors import Failed, NotFound

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a fifo must not block


class OpenedDirectory(NamedTuple):
    """An open directory: `path` is where it lies now, for messages; `here` leads to it, in this
    process and its children, whatever is renamed or swapped."""

    fd: int

    @property
    def here(self) -> Path:
        return Path(f"/proc/{os.getpid()}/fd/{self.fd}")

    @property
    def path(self) -> Path:
        return Path(os.readlink(self.here))


def printable(path: bytes) -> str:
    """Returns the text of a path; bytes that are not UTF-8 as U+FFFD."""
    return path.decode("utf-8", "replace")


def open_top(path: Path, *, follow: bool = False) -> int:
    """Opens a directory by its path; `follow`: also through a symlink. Raises NotFound, Failed."""
    try:
        return os.open(path, DIR_FLAGS & ~os.O_NOFOLLOW if follow else DIR_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"no directory {path}") from None
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None


def open_directory(root: int, names: Iterable[bytes], *, make: bool = False) -> int:
    """Opens the directory that `names` lead to below the directory `root`, which stays open.

    `make`: creates the missing ones. Raises OSError (ELOOP or ENOTDIR at a symlink).
    """
    fd = os.dup(root)
    for name in names:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
            below = os.open(name, DIR_FLAGS, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd
