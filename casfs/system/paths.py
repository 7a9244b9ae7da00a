"""Paths as bytes: shown to a person, and opened component by component without following
symlinks (a name may be replaced by one at any time)."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from casfs.errors import Failed, NotFound
from casfs.system.files import closing_fd
from casfs.system.syscalls import openat2_beneath

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_SMALL_BYTES = 4096
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a fifo must not block
MAX_OPEN_DIRECTORIES = 64
DESCRIPTOR_PATH = re.compile(r"/proc/[0-9]+/fd/[0-9]+")  # of `OpenedDirectory.here`


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


def shown_path(path: Path) -> Path:
    """Returns the path for a message: of `OpenedDirectory.here` where the directory lies now."""
    return Path(os.readlink(path)) if DESCRIPTOR_PATH.fullmatch(str(path)) else path


def real_path(path: Path) -> Path:
    """As os.path.realpath, but of `OpenedDirectory.here` as the kernel has it: resolved once more,
    it would be another directory where a link was swapped in meanwhile. Raises OSError."""
    shown = shown_path(path)
    return shown if shown is not path else Path(os.path.realpath(path))


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


def open_beneath(root: int, path: bytes, flags: int) -> int:
    """Opens a path below the open directory `root`, whatever links are swapped meanwhile. Links
    that stay below are followed, on a kernel without openat2 none is. Raises OSError: EXDEV where
    the path, or a link on it, leads out."""
    try:
        return openat2_beneath(root, path, flags)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # EPERM: of an older seccomp filter
            raise
    *above, name = path.split(b"/")
    if path.startswith(b"/") or b".." in (*above, name):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    parent = open_directory(root, above)
    with closing_fd(parent):
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


class OpenDirectories:
    """Opens directories below the directory `root`, as `open_directory`, and keeps the last ones
    open until the end of its block."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._fds: dict[bytes, int] = {}

    def open(self, path: bytes) -> int:
        if path not in self._fds:
            if len(self._fds) >= MAX_OPEN_DIRECTORIES:
                os.close(self._fds.pop(next(iter(self._fds))))
            self._fds[path] = open_directory(self._root, path.split(b"/") if path else ())
        return self._fds[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for fd in self._fds.values():
            os.close(fd)


def open_directory(root: int, names: Iterable[bytes], *, make: bool = False) -> int:
    """Opens the directory that `names` lead to below the directory `root`, which stays open.

    `make`: creates the missing ones. Raises OSError (ELOOP or ENOTDIR at a symlink).
    """
    fd = os.dup(root)
    for name in names:
        with closing_fd(fd):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
            below = os.open(name, DIR_FLAGS, dir_fd=fd)
        fd = below
    return fd


def small_text(file: Path) -> str:
    """Returns the first 4 KiB of a regular file, else an empty text: a program may have put a
    fifo, a device or a link there."""
    with suppress(OSError, ValueError):
        fd = os.open(file, FILE_FLAGS)
        with closing_fd(fd):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return os.fsdecode(os.read(fd, MAX_SMALL_BYTES))
    return ""
