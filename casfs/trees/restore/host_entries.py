"""Entries of a host directory, as a restore meets them: read as a tree would have them, compared
with entries of trees, entered, removed. All by descriptor, never through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

from casfs.digest import hash_stream
from casfs.store.nodes.directory import Entry, File, Symlink
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS, FILE_FLAGS

ASIDE = b".casfs-aside"  # behind the name of what was moved out of the way
MAX_NAME_BYTES = 220  # of a name, so that more can stand behind it
OWNER_ACCESS = 0o700  # that an owner needs to work in a directory


@dataclass(frozen=True, slots=True)
class Other:
    """A socket, a fifo, a device, or a file that is unreadable or equals none in the trees."""


Actual = File | Symlink | Other | None


def lstat(fd: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def read_entry(
    fd: int, name: bytes, status: os.stat_result | None, wanted: list[Entry | None]
) -> Actual:
    """Returns the entry as a tree would have it. A file whose size is that of no wanted file is
    not read."""
    if status is None:
        return None
    if stat.S_ISLNK(status.st_mode):
        return Symlink(name, os.readlink(name, dir_fd=fd))
    if not stat.S_ISREG(status.st_mode):
        return Other()
    sizes = {entry.digest.size_bytes for entry in wanted if isinstance(entry, File)}
    if status.st_size not in sizes:
        return Other()
    try:
        file = os.open(name, FILE_FLAGS, dir_fd=fd)
    except PermissionError:
        return Other()
    with open(file, "rb", buffering=0) as source:
        digest = hash_stream(source)
    return File(name, digest, bool(status.st_mode & stat.S_IXUSR))


def is_same(actual: Actual, entry: Entry | None) -> bool:
    """Compares kind and content, but no modes beyond the x bit, and no times."""
    if isinstance(actual, File) and isinstance(entry, File):
        return is_same_content(actual, entry) and actual.executable == entry.executable
    if isinstance(actual, Symlink) and isinstance(entry, Symlink):
        return actual.target == entry.target
    return actual is None and entry is None


def is_same_content(actual: File, entry: File) -> bool:
    """Compares the hashes alone, not the sizes: a tree refers to content by hash."""
    same: bool = actual.digest.hash == entry.digest.hash
    return same


def remove(fd: int, name: bytes) -> int:
    """Remove an entry of `fd` recursively; returns the number of removed entries."""
    try:
        os.unlink(name, dir_fd=fd)
        return 1
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
    with entered(fd, name) as inner:
        below = sum(remove(inner, os.fsencode(inner_name)) for inner_name in os.listdir(inner))
    os.rmdir(name, dir_fd=fd)
    return below + 1


def move_aside(fd: int, name: bytes) -> bytes:
    """Gives an entry of `fd` another name, which nothing has, and returns that."""
    for number in count(1):
        aside = name[:MAX_NAME_BYTES] + ASIDE + (b"" if number == 1 else b"-%d" % number)
        if lstat(fd, aside) is None:
            os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
            return aside
    raise AssertionError


def discard(fd: int, temp: bytes) -> None:
    """Remove the temporary entry that a killed restore left."""
    with suppress(FileNotFoundError):
        remove(fd, temp)


@contextmanager
def entered(fd: int, name: bytes) -> Iterator[int]:
    """Opens a directory and gives its owner access where the mode forbids it."""
    try:
        inner = os.open(name, DIR_FLAGS, dir_fd=fd)
    except PermissionError:
        _open_to_owner(fd, name)
        inner = os.open(name, DIR_FLAGS, dir_fd=fd)
    with closing_fd(inner):
        grant_owner_access(inner)
        yield inner


def grant_owner_access(fd: int) -> None:
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & OWNER_ACCESS != OWNER_ACCESS:
        os.fchmod(fd, mode | OWNER_ACCESS)


def _open_to_owner(fd: int, name: bytes) -> None:
    """chmod of a directory that cannot be opened, without following a link."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    with closing_fd(handle):
        os.chmod(f"/proc/self/fd/{handle}", OWNER_ACCESS)
