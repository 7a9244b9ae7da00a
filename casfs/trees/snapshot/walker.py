"""Host directory → tree. Reads everything through directory descriptors, so neither a long
path nor a symlink that is swapped in underneath can lead it astray.

What a tree can hold is kept exactly: names and targets as bytes, the owner's x bit, empty
directories, and with `preserve` mtimes and permission bits. What it cannot hold (sockets,
fifos, devices) is left out with a warning, and so is a file that vanished while the
directory was read. A file that cannot be read fails the whole snapshot and is named: a
checkpoint is complete or it is not made.

Two passes: the first looks at every entry and has read what must be read, by a few processes
when it is much (`casfs.trees.snapshot.reader_pool`); the second (`casfs.trees.snapshot.encoder`)
encodes directories. With an index (`casfs.trees.snapshot.stat_cache`) only what changed is read
and encoded.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from casfs.backend.derived import staging_directory
from casfs.digest import Digest
from casfs.errors import Failed, Invalid, NotFound, Refused
from casfs.system.paths import DIR_FLAGS, printable
from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.encoder import Encoder, Found, Options, Plan, Report
from casfs.trees.snapshot.file_reader import Intake, Read, Stat, discard
from casfs.trees.snapshot.ignore import Ignore
from casfs.trees.snapshot.stat_cache import Index, Row
from casfs.write_batch import Batch

if TYPE_CHECKING:
    from casfs.trees.snapshot.reader_pool import Readers

__all__ = ["MAX_DEPTH", "Options", "Report", "build"]  # what `build` takes belongs to it

DIR = stat.S_IFDIR
Entries = list[os.DirEntry[str]]
Below = list[tuple[bytes, Stat | os.stat_result]]  # the directories in one
MAX_DEPTH = 256  # directories; each level holds a descriptor and two stack frames
FEW = 1000  # files, and bytes, up to which it is not worth starting processes
LITTLE = 32 << 20
PORTION = 64  # files that a process is given at once
WAITING = 256  # portions that have been asked for and not taken over


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
    try:
        root_node = _Snapshot(batch, root, ignore, seen, how, known, fd).take()
    except _Stale:  # gc took what the index remembers: look at everything afresh
        assert known is not None
        known.rows.clear()
        seen = Report()
        root_node = _Snapshot(batch, root, ignore, seen, how, known, fd).take()
    finally:
        os.close(fd)
    if report is not None:
        report.add(seen)
    return root_node


class _Stale(Exception):
    """The index names something that is not in the store any more."""


class _Snapshot:
    def __init__(
        self,
        batch: Batch,
        root: Path,
        ignore: Ignore,
        report: Report,
        options: Options,
        known: Index | None,
        root_fd: int,
    ) -> None:
        self._batch = batch
        self._root = os.fsencode(root)
        self._root_fd = root_fd
        self._ignore = ignore
        self._report = report
        self._options = options
        self._index = known
        self._intake = Intake(batch.blobs, batch.has_met)
        self._readers: Readers[Plan] | None = None
        self._racy_after = time.time_ns() - stat_cache.RACY
        self._encoder = Encoder(batch, report, options, known, self._racy_after, self._vanished)

    def take(self) -> Digest:
        """Raises _Stale and what `build` raises."""
        try:
            plan = self._look(os.dup(self._root_fd), b"", Stat.of(os.fstat(self._root_fd)))
            self._collect(0)
            node, kept = self._encoder.encode(plan)
        except Invalid as error:
            if self._index is not None and self._index.rows:
                raise _Stale from error
            raise
        finally:
            if self._readers is not None:
                self._readers.close(discard)
        if kept and not self._batch.keep(node.hash):
            raise _Stale
        return node

    # -- the first pass -------------------------------------------------------------------

    def _look(self, fd: int, path: bytes, own: Stat | os.stat_result) -> Plan:
        """Takes over `fd`. `path` is relative to the root, and empty for it."""
        row = None if self._index is None else self._index.get(path)
        plan = Plan(path, own, row, {})
        try:
            entries = self._listing(fd, path)
            below = None if row is None else self._same(plan, row, fd, entries)
            for name, seen in self._closely(plan, fd, entries) if below is None else below:
                at = path + b"/" + name
                inner = self._opened(fd, at, name)
                if inner >= 0:
                    plan.found[name] = Found(
                        seen, stat_cache.DIRECTORY, below=self._look(inner, at, seen)
                    )
        finally:
            os.close(fd)
        return plan

    def _same(self, plan: Plan, row: Row, fd: int, entries: Entries) -> Below | None:
        """The directories of one in which every entry looks as it did, as in most of most
        snapshots: nothing else need be remembered of it. None for any other."""
        if self._options.preserve:
            return None
        found: dict[bytes, bytes] = {}
        below: dict[bytes, Stat | os.stat_result] = {}
        links: dict[bytes, bytes] = {}
        size = 0
        for entry in entries:
            name = os.fsencode(entry.name)
            try:
                seen = entry.stat(follow_symlinks=False)
                kind = stat.S_IFMT(seen.st_mode)
                if self._ignore.skips((plan.path + b"/" + name)[1:], name, directory=kind == DIR):
                    continue
                if kind == stat.S_IFLNK:
                    links[name] = os.readlink(name, dir_fd=fd)
            except OSError:
                return None
            if kind == DIR:
                below[name] = seen
                found[name] = stat_cache.DIRECTORY
            else:
                found[name] = stat_cache.fingerprint(seen, self._racy_after)
                size += seen.st_size if kind == stat.S_IFREG else 0
        names = sorted(found)
        prints = [found[name] for name in names]
        if row.names != b"\0".join(names) or row.stats != b"".join(prints):
            return None
        if stat_cache.UNSURE in prints:
            return None
        plan.same, plan.links = True, links  # a row has no fifos and the like
        self._count(len(found) - len(below) - len(links), size)
        return list(below.items())

    def _closely(self, plan: Plan, fd: int, entries: Entries) -> Below:
        """Remember every entry, and have read what must be read; returns the directories."""
        known = {} if plan.row is None else plan.row.known()
        unknown, below = [], []
        for entry in entries:
            name = os.fsencode(entry.name)
            found = self._entry(fd, plan.path + b"/" + name, name, entry)
            if found is None:
                continue
            kind = stat.S_IFMT(found.stat.st_mode)
            if kind == DIR:
                below.append((name, found.stat))
                continue
            plan.found[name] = found
            if kind == stat.S_IFREG:
                self._count(1, found.stat.st_size)
                before = known.get(name)
                if before and before[0] == found.fingerprint != stat_cache.UNSURE:
                    found.digest = before[1]
                else:
                    unknown.append(name)
        self._have_read(plan, fd, unknown)
        return below

    def _entry(self, fd: int, path: bytes, name: bytes, entry: os.DirEntry[str]) -> Found | None:
        try:
            seen = entry.stat(follow_symlinks=False)
            kind = stat.S_IFMT(seen.st_mode)
            if self._ignore.skips(path[1:], name, directory=kind == DIR):
                return None
            found = Found(seen, stat_cache.fingerprint(seen, self._racy_after))
            if kind == stat.S_IFLNK:
                found.target = os.readlink(name, dir_fd=fd)
        except FileNotFoundError:
            self._vanished(path)
            return None
        except OSError as error:
            raise self._unread(path, error) from None
        if kind not in (stat.S_IFREG, stat.S_IFLNK, DIR):
            self._report.warnings.append(f"{self._show(path)}: left out, it is {_kind(kind)}")
            return None
        return found

    def _opened(self, fd: int, path: bytes, name: bytes) -> int:
        """The descriptor of a directory; -1 when it has vanished."""
        if path.count(b"/") > MAX_DEPTH:
            raise Failed(f"{self._show(path)}: more than {MAX_DEPTH} directories deep")
        try:
            return os.open(name, DIR_FLAGS, dir_fd=fd)
        except FileNotFoundError:
            self._vanished(path)
            return -1
        except OSError as error:
            raise self._unread(path, error) from None

    def _count(self, files: int, size: int) -> None:
        self._report.files += files
        self._report.bytes += size
        limit = self._options.limit
        if limit is not None and self._report.bytes > limit:
            raise Refused(
                f"{self._show(b'')} holds more than {limit} bytes; leave something out"
                " (.casfsignore), or raise the limit with --max-size"
            )
        self._options.progress(self._report.files)

    def _have_read(self, plan: Plan, fd: int, names: list[bytes]) -> None:
        """Read files of a directory, or have them read once there are many."""
        if self._readers is None and not self._many(plan, names):
            self._take_over(plan, self._intake.read(fd, names, self._show(plan.path)))
            return
        readers = self._readers
        assert readers is not None
        for start in range(0, len(names), PORTION):
            self._collect(WAITING)
            readers.submit(plan, plan.path, names[start : start + PORTION])

    def _many(self, plan: Plan, names: list[bytes]) -> bool:
        """Start the readers where it is worth it; True when they are there."""
        sizes = sum(plan.found[name].stat.st_size for name in names)
        files, size = self._report.read + len(names), self._report.read_bytes + sizes
        private = staging_directory(self._batch.blobs) if files > FEW or size > LITTLE else None
        if private is not None:
            from casfs.trees.snapshot.reader_pool import Readers

            self._readers = Readers(private, self._root_fd, self._show(b""))
        return private is not None

    def _collect(self, most: int) -> None:
        """Take over what was read, until at most so many portions are on their way."""
        if self._readers is not None:
            for plan, done in self._readers.results(most):
                self._take_over(plan, done)

    def _take_over(self, plan: Plan, done: list[Read]) -> None:
        for one in done:
            self._batch.adopt(one.digest, one.staged, one.info)
            self._settle(plan.found[one.name], one)

    def _settle(self, found: Found, one: Read) -> None:
        """What was read counts, not what was seen before: the file may have changed between."""
        self._report.read += 1
        self._report.read_bytes += one.digest.size_bytes
        self._report.bytes += one.digest.size_bytes - found.stat.st_size
        if found.fingerprint != stat_cache.fingerprint(one.stat, self._racy_after):
            found.fingerprint = stat_cache.UNSURE
        found.stat, found.digest = one.stat, one.digest

    def _vanished(self, path: bytes) -> None:
        self._report.warnings.append(f"{self._show(path)}: vanished while it was read")

    def _listing(self, fd: int, path: bytes) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(fd) as listing:
                return list(listing)
        except OSError as error:
            raise self._unread(path, error) from None

    def _unread(self, path: bytes, error: OSError) -> Failed:
        """What the kernel reports as one line that names the file."""
        return Failed(f"cannot read {self._show(path)}: {error.strerror}")

    def _show(self, path: bytes) -> str:
        return printable(self._root + path)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFSOCK: "a socket",
        stat.S_IFIFO: "a fifo",
        stat.S_IFBLK: "a block device",
        stat.S_IFCHR: "a character device",
    }
    return kinds.get(stat.S_IFMT(mode), "of an unknown kind")
