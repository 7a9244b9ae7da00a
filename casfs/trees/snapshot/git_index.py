"""Tells which files git tracks, from the index files of the repositories of a directory.

The index is read here, without git: git runs programs that a repository's configuration names, and
a workspace is written by agents. A directory without a readable index counts as one without git.

Format: Documentation/gitformat-index of git, versions 2 to 4. The extensions behind the entries are
not read, so of a split index only what is in its own file is known.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from casfs.system.paths import real_path

GIT = ".git"
HEADER = struct.Struct(">4sII")
SIGNATURE = b"DIRC"
STAT_AND_HASH_BYTES = 60  # of an entry, before its flags
FLAGS = struct.Struct(">H")
EXTENDED_FLAG = 0x4000  # two more bytes of flags follow
NAME_LENGTH = 0x0FFF
MAX_INDEX_BYTES = 512 << 20
MAX_POINTER_BYTES = 4096  # of a `.git` file


class TrackedFiles:
    """The files that git tracks in the directory `root`. `above`: a repository that `root` is a
    part of counts too."""

    def __init__(self, root: Path, *, above: bool) -> None:
        self._root = root
        self._above = above
        self._repositories: dict[bytes, frozenset[bytes] | None] = {}
        self._outer: tuple[bytes, frozenset[bytes]] | None = None
        self._outer_is_known = False

    def has(self, path: bytes) -> bool | None:
        """Returns whether git tracks the file at `path`; None where it is in no work tree."""
        parts = path.split(b"/")
        for length in range(len(parts) - 1, -1, -1):
            directory = b"/".join(parts[:length])
            names = self._names_in(directory)
            if names is not None:
                return path[len(directory) + 1 if directory else 0 :] in names
        outer = self._outer_repository()
        if outer is None:
            return None
        prefix, names = outer
        return prefix + path in names

    def _names_in(self, directory: bytes) -> frozenset[bytes] | None:
        if directory not in self._repositories:
            place = self._root / os.fsdecode(directory)
            self._repositories[directory] = _index_names(place)
        return self._repositories[directory]

    def _outer_repository(self) -> tuple[bytes, frozenset[bytes]] | None:
        """Returns the path of the root in the repository around it, with a slash behind it, and
        that repository's names."""
        if not self._above or self._outer_is_known:
            return self._outer
        self._outer_is_known = True
        real = real_path(self._root)
        for directory in real.parents:
            names = _index_names(directory)
            if names is not None:
                self._outer = os.fsencode(real.relative_to(directory)) + b"/", names
                break
        return self._outer


def _index_names(directory: Path) -> frozenset[bytes] | None:
    """Returns what is tracked in the work tree `directory`; None where it is the top of none, or
    its index cannot be read."""
    git = directory / GIT
    try:
        kind = os.lstat(git).st_mode
        if stat.S_ISREG(kind):
            git = pointed_to(git)
        elif not stat.S_ISDIR(kind):
            return None
        if not (git / "HEAD").exists():
            return None
        data = _read(git / "index", MAX_INDEX_BYTES)
    except FileNotFoundError:
        # A repository without an index tracks nothing yet.
        return frozenset() if (git / "HEAD").exists() else None
    except OSError:
        return None
    try:
        return frozenset(_entry_names(data))
    except (struct.error, ValueError, IndexError):
        return None


def pointed_to(file: Path) -> Path:
    """Returns the repository that the `.git` file of a linked work tree or submodule names. Raises
    OSError."""
    text = _read(file, MAX_POINTER_BYTES).strip()
    return file.parent / os.fsdecode(text.removeprefix(b"gitdir:").strip())


def _read(path: Path, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return file.read(limit)


def _entry_names(data: bytes) -> Iterator[bytes]:
    """Raises ValueError, IndexError or struct.error for anything but an index."""
    signature, version, count = HEADER.unpack_from(data)
    if signature != SIGNATURE or version not in (2, 3, 4):
        raise ValueError("not an index of git")
    start = HEADER.size
    name = b""
    for _ in range(count):
        position = start + STAT_AND_HASH_BYTES + FLAGS.size
        (flags,) = FLAGS.unpack_from(data, position - FLAGS.size)
        if flags & EXTENDED_FLAG:
            position += FLAGS.size
        if version == 4:
            # A name is what is left of the name before it, and the bytes up to a NUL.
            dropped, position = _variable_length(data, position)
            end = data.index(b"\0", position)
            name = name[: len(name) - dropped] + data[position:end]
            start = end + 1
        else:
            length = flags & NAME_LENGTH
            end = position + length if length < NAME_LENGTH else data.index(b"\0", position)
            name = data[position:end]
            # One to eight NULs fill an entry up to a multiple of eight bytes.
            start += (end - start) // 8 * 8 + 8
        yield name


def _variable_length(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number in git's offset encoding, and the position behind it."""
    byte = data[position]
    value = byte & 0x7F
    while byte & 0x80:
        position += 1
        byte = data[position]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, position + 1
