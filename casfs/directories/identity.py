"""Which directory it is, wherever it was moved to: device, inode and birth time.

Inode numbers are used again as soon as a directory is deleted, so the number alone would take a new
directory for an old one; the birth time tells them apart where the file system has it. A device
may get another number with each boot, so it counts only where there is no birth time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from casfs.digest import hash_bytes
from casfs.system import syscalls
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS

KEY_CHARS = 16


class Identity(NamedTuple):
    """`born_ns`: since 1970 UTC, 0 where the file system does not say."""

    device: int
    inode: int
    born_ns: int

    @classmethod
    def of(cls, fd: int) -> Self:
        """Returns that of an open directory. Raises OSError."""
        status = os.fstat(fd)
        return cls(status.st_dev, status.st_ino, syscalls.birth_time_ns(fd))

    @classmethod
    def at(cls, path: Path) -> Self:
        """Returns that of the directory at a path, which may be a link to it. Raises OSError."""
        fd = os.open(path, DIR_FLAGS & ~os.O_NOFOLLOW)
        with closing_fd(fd):
            return cls.of(fd)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`. Raises ValueError."""
        device, inode, born_ns = map(int, text.split(":"))
        return cls(device, inode, born_ns)

    @classmethod
    def above(cls, path: Path) -> Iterator[tuple[Path, Self]]:
        """Yields a directory and those above it, each with its own, the innermost first."""
        for directory in (path, *path.parents):
            with suppress(OSError):
                yield directory, cls.at(directory)

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @property
    def key(self) -> str:
        """Equal for what `is_same`."""
        device = 0 if self.born_ns else self.device
        return hash_bytes(f"{device}:{self.inode}:{self.born_ns}".encode())[:KEY_CHARS]

    def is_same(self, other: Identity) -> bool:
        return self.key == other.key
