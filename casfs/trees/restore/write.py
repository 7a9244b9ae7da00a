"""Writes a tree with its times into an empty directory.

Files are written in the order of the tree while their contents are fetched from the store
in batches, so there is neither a look-up nor a path per file: everything is made relative to
directory descriptors that were opened here, and with O_EXCL, so nothing that is planted
meanwhile can lead a write out of the directory.

Modes are those of the tree, whatever the caller's umask is: 0644 and 0755, or the recorded mode.
Until it is complete, a file or directory is open to its owner alone. A file gets set-id bits
only where that is asked for: restored by root, a tree from elsewhere would bring privileges.
Owners are not part of a tree. Nothing is synced, as with `cp`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from casfs.backend.block_maps import MappedBlob
from casfs.backend.derived import open_stream
from casfs.digest import CHUNK
from casfs.errors import CorruptBlob
from casfs.store.nodes.directory import File, Properties, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.system.files import closing_fd, data_extents, write_all
from casfs.system.paths import DIR_FLAGS
from casfs.trees import dated, tree
from casfs.trees.dated import DatedTree

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
SET_ID = stat.S_ISUID | stat.S_ISGID
FICLONE = 0x40049409  # linux/fs.h: share the source's extents
CLONE_UNSUPPORTED = (
    errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.ETXTBSY,
)  # fmt: skip
FETCH_BATCH_ENTRIES = 500  # entries whose contents are fetched at once
FETCH_BATCH_BYTES = 16 << 20
PROGRESS_INTERVAL_FILES = 100  # between two calls of `progress`
OF_ONE_ENTRY = (  # errors; with any other (a full disk) what follows would fail as well
    errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EFBIG,
    errno.ETXTBSY, errno.EBUSY, errno.ELOOP, errno.EOPNOTSUPP, errno.EISDIR, errno.ENOTDIR,
    errno.EEXIST, errno.ENOTEMPTY, errno.EMLINK,
)  # fmt: skip
Path = bytes  # relative to the directory
Names = list[bytes]
Progress = Callable[[int, int], None]  # files and bytes so far


@dataclass(slots=True)
class WriteProgress:
    """Counts of written files and bytes; `path`: of the current entry, for error messages.
    `set_id`: whether files get the set-id bits of their preserved modes; `failed`: entries that
    could not be written, with the reason; None: the first one ends it."""

    files: int = 0
    bytes: int = 0
    progress: Progress | None = None
    set_id: bool = False
    path: Names = field(default_factory=list)
    failed: dict[Path, str] | None = None
    _deleted: int = 0

    def leaves_out(self, error: OSError) -> bool:
        """Notes the current entry, which could not be written, unless `error` ends everything."""
        if self.failed is None or error.errno not in OF_ONE_ENTRY:
            return False
        self.failed[b"/".join(self.path)] = error.strerror or repr(error)
        return True

    def wrote(self, size: int) -> None:
        self.files += 1
        self.bytes += size
        self._tell()

    def deleted(self) -> None:
        self._deleted += 1
        self._tell()

    def _tell(self) -> None:
        done = self.files + self._deleted
        if self.progress is not None and done % PROGRESS_INTERVAL_FILES == 0:
            self.progress(done, self.bytes)


@dataclass(frozen=True, slots=True)
class _DirectoryEnd:
    """Comes after the last entry of a directory."""

    own: Properties | None


_Step = File | Symlink | Subdirectory | _DirectoryEnd


def write_tree(store: Store, root: DatedTree, fd: int, progress: WriteProgress) -> None:
    """Write the tree `root` into the empty directory `fd`, which stays open. Raises OSError with
    `progress.path` at the entry that failed; NotFound, Corrupt."""
    writer = _Writer(store, fd, progress)
    try:
        for batch in _batches(store, root):
            for step, content in batch:
                writer.execute(step, content)
    finally:
        writer.close()


def _batches(store: Store, root: DatedTree) -> Iterator[list[tuple[_Step, bytes | None]]]:
    """Yields the steps with the contents of small files, in batches of bounded memory."""
    batch: list[_Step] = []
    size = 0
    for step in _steps(store, root):
        batch.append(step)
        if type(step) is File:
            size += min(step.digest.size_bytes, CHUNK)
        if len(batch) >= FETCH_BATCH_ENTRIES or size >= FETCH_BATCH_BYTES:
            yield _with_contents(store, batch)
            batch = []
            size = 0
    yield _with_contents(store, batch)


def _with_contents(store: Store, batch: list[_Step]) -> list[tuple[_Step, bytes | None]]:
    hashes = [step.digest.hash for step in batch if type(step) is File]
    contents = store.blobs.get_many(hashes)
    return [(step, next(contents) if type(step) is File else None) for step in batch]


class _Writer:
    """Executes steps; holds a descriptor for each directory on the current path."""

    def __init__(self, store: Store, fd: int, progress: WriteProgress) -> None:
        self._store = store
        self._stack = [fd]
        self._progress = progress
        self._missing = 0  # directories on the current path that could not be made

    def execute(self, step: _Step, content: bytes | None) -> None:
        if self._missing:
            if isinstance(step, Subdirectory):
                self._missing += 1
            elif isinstance(step, _DirectoryEnd):
                self._missing -= 1
            return
        depth = len(self._progress.path)
        try:
            self._make(step, content)
        except OSError as error:
            if isinstance(step, _DirectoryEnd) or not self._progress.leaves_out(error):
                raise
            del self._progress.path[depth:]
            if isinstance(step, Subdirectory):
                self._missing = 1
            with suppress(OSError):  # what was begun
                os.unlink(step.name, dir_fd=self._stack[-1])

    def _make(self, step: _Step, content: bytes | None) -> None:
        fd = self._stack[-1]
        if isinstance(step, _DirectoryEnd):
            set_directory_attributes(fd, step.own)
            if len(self._stack) > 1:
                os.close(self._stack.pop())
                self._progress.path.pop()
            return
        self._progress.path.append(step.name)
        if isinstance(step, File):
            mode = file_mode(step, self._progress.set_id)
            self._progress.wrote(
                write_file(self._store, fd, name=step.name, entry=step, content=content, mode=mode)
            )
        elif isinstance(step, Symlink):
            write_link(fd, step.name, step)
            self._progress.wrote(0)
        else:
            os.mkdir(step.name, 0o700, dir_fd=fd)
            self._stack.append(os.open(step.name, DIR_FLAGS, dir_fd=fd))
            return
        self._progress.path.pop()

    def close(self) -> None:
        for fd in self._stack[1:]:
            os.close(fd)


def _steps(store: Store, root: DatedTree) -> Iterator[_Step]:
    """Yields every entry of the tree in order, and the end of each directory."""
    top = dated.load(store, root)
    stack = [(top, iter(top.entries.values()))]
    while stack:
        directory, entries = stack[-1]
        for entry in entries:
            yield entry
            if isinstance(entry, Subdirectory):
                below = dated.load(store, directory.subtree(entry))
                stack.append((below, iter(below.entries.values())))
                break
        else:
            stack.pop()
            yield _DirectoryEnd(directory.own)


# -- one entry ----------------------------------------------------------------------------


def write_file(
    store: Store, fd: int, name: bytes, entry: File, content: bytes | None, mode: int
) -> int:
    """Create the file `name` in `fd`, which must not exist; returns its size. `content`: as
    `Blobs.get_many` returned it."""
    out = os.open(name, NEW_FILE, 0o600, dir_fd=fd)
    with closing_fd(out):
        if content is not None:
            write_all(out, content)
            size = len(content)
        else:
            with open_stream(store.blobs, entry.digest.hash) as source:
                size = _copy(source, out, entry.digest.hash)
        os.fchmod(out, mode)
        if entry.properties is not None and entry.properties.mtime is not None:
            os.utime(out, ns=utime_ns(entry.properties.mtime))
    return size


def write_link(fd: int, name: bytes, entry: Symlink) -> None:
    os.symlink(entry.target, name, dir_fd=fd)
    if entry.properties is not None and entry.properties.mtime is not None:
        times = utime_ns(entry.properties.mtime)
        os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)


def set_directory_attributes(fd: int, own: Properties | None, bits: int = 0o7777) -> None:
    """Set the mode, of which only `bits`, and the time of a directory, after its content was
    written."""
    mode = own.unix_mode if own is not None else None
    os.fchmod(fd, bits & (tree.DIRECTORY_MODE if mode is None else stat.S_IMODE(mode)))
    if own is not None and own.mtime is not None:
        os.utime(fd, ns=utime_ns(own.mtime))


def file_mode(entry: File, set_id: bool) -> int:
    return stat.S_IMODE(tree.file_mode(entry)) & (0o7777 if set_id else ~SET_ID)


def utime_ns(mtime: tuple[int, int]) -> tuple[int, int]:
    """Returns (atime, mtime) in ns for os.utime."""
    value = mtime[0] * 1_000_000_000 + mtime[1]
    return value, value


# -- large files --------------------------------------------------------------------------


def _copy(source: BinaryIO, out: int, hash: str) -> int:
    """Clones the extents where the file system can, else copies in the kernel, holes kept. Raises
    CorruptBlob where the file of the blob `hash` has become shorter."""
    if isinstance(source, MappedBlob):
        return _copy_mapped(source, out, hash)
    try:
        fd = source.fileno()
    except OSError:  # in memory, or in a pack
        return _copy_pieces(source, out)
    size = os.fstat(fd).st_size
    if _clone(fd, out):
        return size
    _copy_extents(fd, out, size, start=0, to=0)
    # Nothing is copied from behind the end, and what is missing there seems to be a hole.
    if os.fstat(fd).st_size < size:
        raise CorruptBlob(f"blob {hash}: its file is not {size} bytes long any more")
    os.ftruncate(out, size)
    return size


def _copy_mapped(source: MappedBlob, out: int, hash: str) -> int:
    """Copies the blocks of a mapped blob from the files that they are in."""
    offset = 0
    while offset < source.size:
        origin, start, count = source.extent(offset, source.size - offset)
        if origin.fd >= 0:
            _copy_extents(origin.fd, out, count, start=start, to=offset)
        else:
            os.lseek(out, offset, os.SEEK_SET)
            write_all(out, source.pread(count, offset))
        offset += count
    if source.is_cut():
        raise CorruptBlob(f"blob {hash}: a file that it has blocks of is shorter than it was")
    os.ftruncate(out, source.size)
    return source.size


def _copy_extents(source: int, out: int, size: int, *, start: int, to: int) -> None:
    """Copies `size` bytes from `start` on to `to`, without the holes among them."""
    for offset, end in data_extents(source, start, start + size):
        while offset < end and (
            copied := _copy_range(source, out, offset, to=offset - start + to, count=end - offset)
        ):
            offset += copied


def _copy_pieces(source: BinaryIO, out: int) -> int:
    size = 0
    while data := source.read(CHUNK):
        if data.count(0) == len(data):
            os.lseek(out, len(data), os.SEEK_CUR)
        else:
            write_all(out, data)
        size += len(data)
    os.ftruncate(out, size)
    return size


def _clone(source: int, out: int) -> bool:
    try:
        fcntl.ioctl(out, FICLONE, source)
    except OSError as error:
        if error.errno not in CLONE_UNSUPPORTED:
            raise
        return False
    return True


def _copy_range(source: int, out: int, offset: int, *, to: int, count: int) -> int:
    """Returns the bytes copied. sendfile crosses file systems that copy_file_range refuses to."""
    count = min(count, 1 << 30)
    try:
        return os.copy_file_range(source, out, count, offset, to)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP):
            raise
    os.lseek(out, to, os.SEEK_SET)
    return os.sendfile(out, source, offset, count)
