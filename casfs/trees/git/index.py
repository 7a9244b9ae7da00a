"""Tells which files git tracks, from the index files of the repositories of a directory.

The index is read here, without git: git runs programs that a repository's configuration names, and
a workspace is written by agents.

Format: Documentation/gitformat-index of git, versions 2 to 4, with hashes of SHA-1 or SHA-256, and
the extension of a split index, whose bitmaps are Documentation/technical/bitmap-format.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from casfs.errors import CasfsError, Invalid
from casfs.system.paths import printable, real_path

GIT = ".git"
HEADER = struct.Struct(">4sII")
SIGNATURE = b"DIRC"
STAT_BYTES = 40  # of an entry, before its object id and flags
ID_BYTES = (20, 32)  # SHA-1, SHA-256
FLAGS = struct.Struct(">H")
EXTENDED_FLAG = 0x4000  # two more bytes of flags follow
NAME_LENGTH = 0x0FFF
EXTENSION = struct.Struct(">4sI")
SPLIT = b"link"
BITMAP_HEADER = struct.Struct(">II")
WORD_BITS = 64
MAX_INDEX_BYTES = 512 << 20
MAX_POINTER_BYTES = 4096  # of a `.git` file

# Reads the file beside the index that has the shared entries. Raises OSError, CasfsError.
ReadShared = Callable[[str], bytes]
Stamp = tuple[int, ...] | None


class IndexEntry(NamedTuple):
    """`path` is empty where a split index gives a shared entry another object; `offset`: where it
    begins in its file."""

    path: bytes
    object_id: bytes
    offset: int


class TrackedFiles:
    """The files that git tracks in the directory `root`. `above`: a repository that `root` is a
    part of counts too. Raises Invalid for a damaged index."""

    def __init__(self, root: Path, *, above: bool) -> None:
        self._root = root
        self._above = above
        self._repositories: dict[bytes, frozenset[bytes] | None] = {}
        self._read_stats: dict[Path, Stamp] = {}  # of the index files that were read
        self._outer: tuple[bytes, frozenset[bytes]] | None = None
        self._outer_is_known = False

    def has_changed(self) -> bool:
        """Returns whether an index that was read is another one by now."""
        return any(_stamp(index) != stamp for index, stamp in self._read_stats.items())

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
            self._repositories[directory] = self._read_names(directory)
        return self._repositories[directory]

    def _read_names(self, directory: bytes) -> frozenset[bytes] | None:
        return _index_names(self._root / os.fsdecode(directory), self._read_stats)

    def _outer_repository(self) -> tuple[bytes, frozenset[bytes]] | None:
        """Returns the path of the root in the repository around it, with a slash behind it, and
        that repository's names."""
        if not self._above or self._outer_is_known:
            return self._outer
        self._outer_is_known = True
        real = real_path(self._root)
        for directory in real.parents:
            names = _index_names(directory, self._read_stats)
            if names is not None:
                self._outer = os.fsencode(real.relative_to(directory)) + b"/", names
                break
        return self._outer


def _stamp(index: Path) -> Stamp:
    """Returns what another index in its place has otherwise; None where there is none."""
    with suppress(OSError):
        status = index.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return None


def _index_names(directory: Path, stamps: dict[Path, Stamp]) -> frozenset[bytes] | None:
    """Returns what is tracked in the work tree `directory`; None where it is the top of none. Adds
    to `stamps` that of its index."""
    git = directory / GIT
    try:
        kind = os.lstat(git).st_mode
        if stat.S_ISREG(kind):
            git = pointed_to(git)
        elif not stat.S_ISDIR(kind):
            return None
        if not (git / "HEAD").exists():
            return None
        # Before it is read: a change of it meanwhile is seen later.
        stamps[git / "index"] = _stamp(git / "index")
        data = _read(git / "index", MAX_INDEX_BYTES)
    except FileNotFoundError:
        # A repository without an index tracks nothing yet.
        return frozenset() if (git / "HEAD").exists() else None
    except OSError:
        return None
    name = printable(os.fsencode(git / "index"))
    return frozenset(entries(data, name, lambda shared: _read(git / shared, MAX_INDEX_BYTES)))


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


def entries(data: bytes, name: str, read_shared: ReadShared) -> Mapping[bytes, bytes]:
    """Returns the object id of each path in an index. `name`: of its file, for the message. Raises
    Invalid for anything but an index."""
    for id_bytes in ID_BYTES:  # what it is, only the repository's configuration says
        try:
            merged = _merged(data, id_bytes, read_shared)
            return {entry.path: entry.object_id for entry in merged}
        except (struct.error, ValueError, IndexError, OSError, CasfsError):
            continue
    raise Invalid(
        f"{name} is damaged: the files that git tracks are unknown; delete it, run `git reset`"
        " there, and try again"
    )


def _merged(data: bytes, id_bytes: int, read_shared: ReadShared) -> Iterator[IndexEntry]:
    """Yields the entries of an index and of the shared one that it may build on."""
    own, end = own_entries(data, id_bytes)
    split = extension(data, end, len(data) - id_bytes)
    if split is None or not any(split[:id_bytes]):
        yield from own
        return
    shared_name = f"sharedindex.{split[:id_bytes].hex()}"
    shared, _ = own_entries(read_shared(shared_name), id_bytes)
    deleted, offset = _bitmap(split, id_bytes, len(shared))
    replaced, _ = _bitmap(split, offset, len(shared))
    nameless = iter([entry for entry in own if not entry.path])
    for position, entry in enumerate(shared):
        if position in replaced:
            entry = entry._replace(object_id=next(nameless, entry).object_id)
        if position not in deleted:
            yield entry
    yield from (entry for entry in own if entry.path)


def own_entries(data: bytes, id_bytes: int) -> tuple[list[IndexEntry], int]:
    """Returns the entries of one index file, and the position behind them. Raises ValueError,
    IndexError or struct.error for anything but an index."""
    signature, version, count = HEADER.unpack_from(data)
    if signature != SIGNATURE or version not in (2, 3, 4):
        raise ValueError("not an index of git")
    start = HEADER.size
    path = b""
    own: list[IndexEntry] = []
    for _ in range(count):
        offset = start
        position = start + STAT_BYTES + id_bytes + FLAGS.size
        object_id = data[start + STAT_BYTES : start + STAT_BYTES + id_bytes]
        (flags,) = FLAGS.unpack_from(data, position - FLAGS.size)
        if flags & EXTENDED_FLAG:
            position += FLAGS.size
        if version == 4:
            # A path is what is left of the path before it, and the bytes up to a NUL.
            dropped, position = _variable_length(data, position)
            end = data.index(b"\0", position)
            path = path[: len(path) - dropped] + data[position:end]
            start = end + 1
        else:
            length = flags & NAME_LENGTH
            end = position + length if length < NAME_LENGTH else data.index(b"\0", position)
            path = data[position:end]
            # One to eight NULs fill an entry up to a multiple of eight bytes.
            start += (end - start) // 8 * 8 + 8
        own.append(IndexEntry(path, object_id, offset))
    return own, start


def extension(data: bytes, offset: int, end: int) -> bytes | None:
    """Returns the extension of a split index, None where there is none. Raises ValueError where
    what is from `offset` to `end` is not extensions: the ids are of another length then."""
    split = None
    while offset < end:
        signature, size = EXTENSION.unpack_from(data, offset)
        offset += EXTENSION.size
        if signature == SPLIT:
            split = data[offset : offset + size]
        offset += size
    if offset != end:
        raise ValueError("not an index of git")
    return split


def _bitmap(data: bytes, offset: int, count: int) -> tuple[set[int], int]:
    """Returns the positions in a bitmap of `count` bits, and where in `data` it ends."""
    bits, words = BITMAP_HEADER.unpack_from(data, offset)
    if bits > count:
        raise ValueError("a bitmap of other entries")
    offset += BITMAP_HEADER.size
    buffer = struct.unpack_from(f">{words}Q", data, offset)
    offset += words * 8 + 4  # and the position of its last marker
    positions: set[int] = set()
    base = 0
    index = 0
    while index < words:
        # A marker: a bit, how many words consist of it, and how many words follow as they are.
        marker = buffer[index]
        index = index + 1
        run_end = base + (marker >> 1 & 0xFFFFFFFF) * WORD_BITS
        if marker & 1:
            positions.update(range(base, min(run_end, bits)))
        base = run_end
        for word in buffer[index : index + (marker >> 33)]:
            positions.update(base + bit for bit in range(WORD_BITS) if word >> bit & 1)
            base += WORD_BITS
        index += marker >> 33
    return positions, offset


def _variable_length(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number in git's offset encoding, and the position behind it."""
    byte = data[position]
    value = byte & 0x7F
    while byte & 0x80:
        position += 1
        byte = data[position]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, position + 1
