"""Host directory → tree. Reads everything through directory descriptors, so neither a long
path nor a symlink that is swapped in underneath can lead it astray.

What a tree can hold is kept exactly: names and targets as bytes, the owner's x bit, empty
directories, and with `preserve` mtimes and permission bits. What it cannot hold (sockets,
fifos, devices) is left out with a warning, and so is a file that vanished while the
directory was read. A file that cannot be read fails the whole snapshot and is named: a
checkpoint is complete or it is not made.

Two passes: the first looks at every entry and hands what must be read to a few threads
(reading, hashing and writing release the interpreter), the second encodes directories from
the leaves up. With an index (`casfs.trees.index`) only what changed is read and encoded.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..batch import Batch
from ..digest import Digest
from ..errors import CasfsError, Failed, Invalid, NotFound, Refused
from ..nodes import directory
from ..nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from . import index
from .ignore import Ignore
from .index import Index, Row
from .intake import Read, Reader

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
X = stat.S_IXUSR
MAX_DEPTH = 256  # directories; each level holds a descriptor and two stack frames
READERS = 2
WAITING = 64  # portions of files that are read ahead; each holds a descriptor
PORTION = 64  # files a reader takes at once
Progress = Callable[[int], None]


@dataclass(slots=True)
class Report:
    """What a snapshot saw: `bytes` is the sum of the files' sizes, `read` how many it read."""

    files: int = 0
    bytes: int = 0
    entries: int = 0  # files, links and empty directories: what a diff would show
    read: int = 0
    read_bytes: int = 0
    warnings: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.entries += other.entries
        self.read += other.read
        self.read_bytes += other.read_bytes
        self.warnings += other.warnings


@dataclass(slots=True)
class Options:
    """`preserve`: "mtime", "mode"; `limit`: bytes of files above which it is refused."""

    preserve: Collection[str] = ()
    limit: int | None = None
    progress: Progress = lambda files: None


def build(
    batch: Batch,
    root: Path,
    ignore: Ignore,
    report: Report | None = None,
    *,
    options: Options | None = None,
    known: Index | None = None,
) -> Digest:
    """Store the tree under `root` and return its root directory node.

    Raises NotFound where there is no directory, Failed naming the file that could not be
    read, Refused where there is more than `options.limit`.
    """
    try:
        fd = os.open(root, DIR_FLAGS & ~os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"no directory {root}") from None
    except OSError as error:
        raise Failed(f"cannot read {root}: {error.strerror}") from None
    how = options or Options()
    seen = Report()
    with ThreadPoolExecutor(READERS, "casfs-read") as pool:
        try:
            again = os.dup(fd)
            root_node = _Snapshot(batch, root, ignore, seen, how, known, pool).take(fd)
        except _Stale:  # gc took what the index remembers: look at everything afresh
            assert known is not None
            known.rows.clear()
            seen = Report()
            root_node = _Snapshot(batch, root, ignore, seen, how, known, pool).take(os.dup(again))
        finally:
            os.close(again)
    if report is not None:
        report.add(seen)
    return root_node


class _Stale(Exception):
    """The index names something that is not in the store any more."""


@dataclass(slots=True)
class _Found:
    """An entry of a directory as it was seen: for a file its digest as soon as that is known,
    for a directory what is below it, for a link its target."""

    stat: os.stat_result
    fingerprint: bytes
    digest: Digest | None = None
    below: _Plan | None = None
    target: bytes = b""


@dataclass(slots=True)
class _Plan:
    """A directory between the two passes; `row` is what the index has of it."""

    path: bytes
    stat: os.stat_result
    row: Row | None
    found: dict[bytes, _Found]


class _Snapshot:
    def __init__(
        self,
        batch: Batch,
        root: Path,
        ignore: Ignore,
        report: Report,
        options: Options,
        known: Index | None,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._batch = batch
        self._root = os.fsencode(root)
        self._ignore = ignore
        self._report = report
        self._options = options
        self._index = known
        self._pool = pool
        self._reader = Reader(batch)
        self._racy_after = time.time_ns() - index.RACY
        self._reading: deque[tuple[_Plan, Future[list[Read]]]] = deque()

    def take(self, fd: int) -> Digest:
        """Takes over `fd`, the root. Raises _Stale and what `build` raises."""
        try:
            plan = self._look(fd, b"", os.fstat(fd))
            self._collect(0)
            node, kept = self._encode(plan)
        except Invalid as error:
            if self._index is not None and self._index.rows:
                raise _Stale from error
            raise
        finally:
            self._abandon()
        if kept and not self._batch.keep(node.hash):
            raise _Stale
        return node

    def _abandon(self) -> None:
        """Throw away what is still being read; nothing is when all went well."""
        self._reader.stopped.set()
        for _, future in self._reading:
            with suppress(CasfsError):
                self._reader.discard(future.result())

    # -- the first pass -------------------------------------------------------------------

    def _look(self, fd: int, path: bytes, own: os.stat_result) -> _Plan:
        """Takes over `fd`. `path` is relative to the root, and empty for it."""
        row = None if self._index is None else self._index.get(path)
        plan = _Plan(path, own, row, {})
        known = {} if row is None else row.known()
        unknown = []
        try:
            with self._naming(path), os.scandir(fd) as listing:
                entries = list(listing)
            for entry in entries:
                name = os.fsencode(entry.name)
                found = self._entry(fd, path + b"/" + name, name, entry)
                if found is None:
                    continue
                plan.found[name] = found
                if stat.S_ISREG(found.stat.st_mode):
                    self._count(found.stat)
                    before = known.get(name)
                    if before and before[0] == found.fingerprint != index.UNSURE:
                        found.digest = before[1]
                    else:
                        unknown.append(name)
            self._have_read(plan, fd, unknown)
        finally:
            os.close(fd)
        return plan

    def _entry(self, fd: int, path: bytes, name: bytes, entry: os.DirEntry[str]) -> _Found | None:
        below = -1
        try:
            with self._naming(path):
                seen = entry.stat(follow_symlinks=False)
                is_directory = stat.S_ISDIR(seen.st_mode)
                if self._ignore.skips(path[1:], name, directory=is_directory):
                    return None
                found = _Found(seen, index.fingerprint(seen, self._racy_after))
                if is_directory:
                    below = os.open(name, DIR_FLAGS, dir_fd=fd)
                elif stat.S_ISLNK(seen.st_mode):
                    found.target = os.readlink(name, dir_fd=fd)
        except FileNotFoundError:
            self._vanished(path)
            return None
        if below >= 0:
            if path.count(b"/") > MAX_DEPTH:
                os.close(below)
                raise Failed(f"{self._show(path)}: more than {MAX_DEPTH} directories deep")
            found.fingerprint = index.DIRECTORY  # what is in it has its own row
            found.below = self._look(below, path, seen)
        elif not stat.S_ISREG(seen.st_mode) and not stat.S_ISLNK(seen.st_mode):
            kind = _kind(seen.st_mode)
            self._report.warnings.append(f"{self._show(path)}: left out, it is {kind}")
            return None
        return found

    def _count(self, seen: os.stat_result) -> None:
        self._report.files += 1
        self._report.bytes += seen.st_size
        limit = self._options.limit
        if limit is not None and self._report.bytes > limit:
            raise Refused(
                f"{self._show(b'')} holds more than {limit} bytes; leave something out"
                " (.casfsignore), or raise the limit with --max-size"
            )
        self._options.progress(self._report.files)

    def _have_read(self, plan: _Plan, fd: int, names: list[bytes]) -> None:
        """Hand files of a directory to the readers, a portion at a time."""
        for start in range(0, len(names), PORTION):
            self._collect(WAITING)
            part = names[start : start + PORTION]
            where = self._show(plan.path)
            future = self._pool.submit(self._reader.read, os.dup(fd), part, where)
            self._reading.append((plan, future))

    def _collect(self, most: int) -> None:
        """Take over what was read, until at most so many portions are on their way."""
        while len(self._reading) > most:
            plan, future = self._reading.popleft()
            for one in future.result():
                self._batch.adopt(one.digest, one.staged, one.info)
                self._settle(plan.found[one.name], one)

    def _settle(self, found: _Found, one: Read) -> None:
        """What was read counts, not what was seen before: the file may have changed between."""
        self._report.read += 1
        self._report.read_bytes += one.digest.size_bytes
        self._report.bytes += one.digest.size_bytes - found.stat.st_size
        if found.fingerprint != index.fingerprint(one.stat, self._racy_after):
            found.fingerprint = index.UNSURE
        found.stat, found.digest = one.stat, one.digest

    # -- the second pass ------------------------------------------------------------------

    def _encode(self, plan: _Plan) -> tuple[Digest, bool]:
        """(the directory node, whether it is the one that the index has)"""
        digests: list[Digest] = []
        for name in sorted(plan.found):
            digest = self._digest(plan.found[name])
            if digest is None:
                self._report.files -= 1
                self._report.bytes -= plan.found.pop(name).stat.st_size
                self._vanished(plan.path + b"/" + name)
            else:
                digests.append(digest)
        names = sorted(plan.found)
        below = sum(one.below is not None for one in plan.found.values())
        empty = not names and plan.path != b""
        self._report.entries += 1 if empty else len(names) - below
        prints = [plan.found[name].fingerprint for name in names]
        if self._options.preserve:
            prints.append(index.fingerprint(plan.stat, self._racy_after))
        seen = index.row(names, prints, digests)
        if plan.row is not None and plan.row[:3] == seen[:3] and index.UNSURE not in prints:
            return plan.row.digest, True
        entries = [
            self._make(name, plan.found[name], digest)
            for name, digest in zip(names, digests, strict=True)
        ]
        own = self._properties(plan.stat)
        node = self._batch.put_node("directory", directory.encode(entries, own))
        if self._index is not None:
            self._index.put(plan.path, seen.of(node))
        return node, False

    def _digest(self, found: _Found) -> Digest | None:
        """None for a file that has vanished."""
        if found.below is not None:
            return self._encode(found.below)[0]
        return index.NOTHING if stat.S_ISLNK(found.stat.st_mode) else found.digest

    def _make(self, name: bytes, found: _Found, digest: Digest) -> Entry:
        if found.below is not None:
            return Subdirectory(name, digest)
        own = self._properties(found.stat)
        if stat.S_ISLNK(found.stat.st_mode):
            return Symlink(name, found.target, own)
        return File(name, digest, bool(found.stat.st_mode & X), own)

    def _properties(self, seen: os.stat_result) -> Properties | None:
        preserve = self._options.preserve
        if not preserve:
            return None
        mtime = divmod(seen.st_mtime_ns, 1_000_000_000) if "mtime" in preserve else None
        mode = stat.S_IMODE(seen.st_mode) if "mode" in preserve else None
        return Properties(mtime, None if stat.S_ISLNK(seen.st_mode) else mode)

    def _vanished(self, path: bytes) -> None:
        self._report.warnings.append(f"{self._show(path)}: vanished while it was read")

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
