"""Copies an index of git for another work tree that holds the same files, with the stats that these
have there: else the first `git status` would read every file again.

An entry gets the new stat only where nothing can have changed: the file in the old work tree has
the stat of its entry still, and the one in the new work tree its size and time. Every other entry
is made one of which git compares the content, as are those whose time is not before that of the
index (racy, in git's words).
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from casfs.errors import CasfsError
from casfs.system.files import closing_fd
from casfs.trees.git.index import EXTENSION, ID_BYTES, STAT_BYTES, own_entries

STAT = struct.Struct(">10I")
WORD = 0xFFFFFFFF
NS = 1_000_000_000
# Those that say nothing of the work tree itself: the cache of trees, of resolved conflicts, and
# that some directories are one entry. The others may be left out by what git says of capitals.
KEPT = (b"TREE", b"REUC", b"sdir")


class UnsupportedIndex(CasfsError):
    """An index that is not understood, as a split one: git itself must refresh it."""


def moved(data: bytes, written_s: int, old: Path, new: Path) -> bytes:
    """Returns an index of the work tree `old` for `new`; `written_s`: when it was written. Raises
    UnsupportedIndex."""
    for id_bytes in ID_BYTES:
        try:
            entries, end = own_entries(data, id_bytes)
            extensions = _kept_extensions(data, end, len(data) - id_bytes)
        except (struct.error, ValueError, IndexError, UnsupportedIndex):
            continue
        result = bytearray(data[:end])
        with _opened(old) as old_fd, _opened(new) as new_fd:
            for entry in entries:
                recorded = data[entry.offset : entry.offset + STAT_BYTES]
                packed = _moved_stat(recorded, written_s, old=old_fd, new=new_fd, path=entry.path)
                result[entry.offset : entry.offset + STAT_BYTES] = packed
        result += extensions
        # A setting of git writes zeros in place of the checksum.
        if not any(data[-id_bytes:]):
            return bytes(result) + bytes(id_bytes)
        hasher = hashlib.sha1 if id_bytes == ID_BYTES[0] else hashlib.sha256
        return bytes(result) + hasher(result).digest()
    raise UnsupportedIndex("not an index that is understood")


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with closing_fd(fd):
        yield fd


def _moved_stat(recorded: bytes, written_s: int, *, old: int, new: int, path: bytes) -> bytes:
    """Returns the stat of an entry in the new work tree. Where the file may be another it has no
    size, as git itself writes it: the new index is younger than the file, so that the time alone
    would prove it clean."""
    fields = STAT.unpack(recorded)
    modified_s, mode = fields[2], fields[6]
    if stat.S_IFMT(mode) not in (stat.S_IFREG, stat.S_IFLNK):
        return recorded
    if modified_s < written_s:
        # From the directories: a whole path takes the kernel twice as long.
        with suppress(OSError):
            before = os.stat(path, dir_fd=old, follow_symlinks=False)
            if _packed(before, mode) == recorded:
                after = os.stat(path, dir_fd=new, follow_symlinks=False)
                if before.st_size == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
                    return _packed(after, mode)
    return STAT.pack(*fields[:-1], 0)


def _packed(status: os.stat_result, mode: int) -> bytes:
    """Returns a stat as an entry has it, with the mode that git has recorded."""
    created_s, created_ns = divmod(status.st_ctime_ns, NS)
    modified_s, modified_ns = divmod(status.st_mtime_ns, NS)
    return STAT.pack(
        created_s & WORD,
        created_ns,
        modified_s & WORD,
        modified_ns,
        status.st_dev & WORD,
        status.st_ino & WORD,
        mode,
        status.st_uid,
        status.st_gid,
        status.st_size & WORD,
    )


def _kept_extensions(data: bytes, offset: int, end: int) -> bytes:
    """Returns the extensions that hold for another work tree. Raises UnsupportedIndex for one
    without which the index cannot be read, ValueError for anything but extensions."""
    kept = b""
    while offset < end:
        signature, size = EXTENSION.unpack_from(data, offset)
        whole = data[offset : offset + EXTENSION.size + size]
        if signature in KEPT:
            kept += whole
        elif not signature[:1].isupper():
            raise UnsupportedIndex(f"an index with the extension {signature!r}")
        offset += EXTENSION.size + size
    if offset != end:
        raise ValueError("not an index of git")
    return kept
