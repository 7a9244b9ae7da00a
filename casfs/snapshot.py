"""Host directory → tree. Reads everything through directory descriptors, so neither a long
path nor a symlink that is swapped in underneath can lead it astray.

What a tree can hold is kept exactly: names and targets as bytes, the owner's x bit, empty
directories. What it cannot hold (sockets, fifos, devices) is left out with a warning, and
so is a file that vanished while the directory was read. A file that cannot be read fails
the whole snapshot and is named: a checkpoint is complete or it is not made.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import directory
from .batch import Batch
from .digest import Digest
from .directory import Entry, File, Subdirectory, Symlink
from .errors import CasfsError, Failed, NotFound
from .ignore import Ignore

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
X = stat.S_IXUSR
MAX_DEPTH = 256  # directories; each level holds a descriptor and two stack frames


@dataclass(slots=True)
class Report:
    """What a snapshot saw: `bytes` is the sum of the files' sizes."""

    files: int = 0
    bytes: int = 0
    warnings: list[str] = field(default_factory=list)


def build(batch: Batch, root: Path, ignore: Ignore, report: Report | None = None) -> Digest:
    """Store the tree under `root` and return its root directory node.

    Raises NotFound where there is no directory, Failed naming the file that could not be
    read.
    """
    try:
        fd = os.open(root, DIR_FLAGS & ~os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"no directory {root}") from None
    except OSError as error:
        raise Failed(f"cannot read {root}: {error.strerror}") from None
    return _Snapshot(batch, root, ignore, report or Report()).directory(fd, b"")


class _Snapshot:
    def __init__(self, batch: Batch, root: Path, ignore: Ignore, report: Report) -> None:
        self._batch = batch
        self._root = os.fsencode(root)
        self._ignore = ignore
        self._report = report

    def directory(self, fd: int, path: bytes) -> Digest:
        """Takes over `fd`. `path` is relative to the root; empty for the root."""
        try:
            with self._naming(path), os.scandir(fd) as listing:
                names = [os.fsencode(entry.name) for entry in listing]
            entries = []
            for name in names:
                entry = self._entry(fd, path + b"/" + name, name)
                if entry is not None:
                    entries.append(entry)
        finally:
            os.close(fd)
        return self._batch.put_node("directory", directory.encode(entries))

    def _entry(self, fd: int, path: bytes, name: bytes) -> Entry | None:
        try:
            with self._naming(path):
                mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                if self._ignore.skips(path[1:], name, directory=stat.S_ISDIR(mode)):
                    return None
                if stat.S_ISREG(mode):
                    return self._file(fd, name)
                if stat.S_ISLNK(mode):
                    return Symlink(name, os.readlink(name, dir_fd=fd))
                below = os.open(name, DIR_FLAGS, dir_fd=fd) if stat.S_ISDIR(mode) else -1
        except FileNotFoundError:
            self._report.warnings.append(f"{self._show(path)}: vanished while it was read")
            return None
        if below >= 0 and path.count(b"/") > MAX_DEPTH:
            os.close(below)
            raise Failed(f"{self._show(path)}: more than {MAX_DEPTH} directories deep")
        if below < 0:
            self._report.warnings.append(f"{self._show(path)}: left out, it is {_kind(mode)}")
            return None
        return Subdirectory(name, self.directory(below, path))

    def _file(self, fd: int, name: bytes) -> File:
        with open(os.open(name, FILE_FLAGS, dir_fd=fd), "rb", buffering=0) as source:
            digest = self._batch.put_stream(source)
            mode = os.fstat(source.fileno()).st_mode
        self._report.files += 1
        self._report.bytes += digest.size_bytes
        return File(name, digest, bool(mode & X))

    @contextmanager
    def _naming(self, path: bytes) -> Iterator[None]:
        """Turn what the kernel reports into one line that names the file."""
        try:
            yield
        except (FileNotFoundError, CasfsError):
            raise
        except OSError as error:
            raise Failed(f"cannot read {self._show(path)}: {error.strerror}") from None

    def _show(self, path: bytes) -> str:
        return (self._root + path).decode("utf-8", "replace")


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFSOCK: "a socket",
        stat.S_IFIFO: "a fifo",
        stat.S_IFBLK: "a block device",
        stat.S_IFCHR: "a character device",
    }
    return kinds.get(stat.S_IFMT(mode), "of an unknown kind")
