"""Snapshots a host directory as a tree.

Everything is read through directory descriptors, so neither a long path nor a symlink that is
swapped in underneath can redirect it.

All that a tree can hold is kept exactly: names and targets as bytes, empty directories, modes and
mtimes as `casfs.trees.snapshot.properties` has it. Owners, hard links and extended attributes are
counted in the report. Sockets, fifos and devices are
left out with a warning, and so is a file that vanished while the directory was read. What cannot
be read is left out and named where the options say so (a checkpoint); else it fails the snapshot
(what a restore is about to overwrite must be complete).

Two passes: the first stats every entry and has the new files read, by worker processes when
they are many (`casfs.trees.snapshot.read_queue`); the second (`casfs.trees.snapshot.encoder`)
encodes directories, where processes read while they do so. With a stat cache only what changed is
read and encoded.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from casfs.backend import block_maps
from casfs.errors import Failed, Invalid, Refused
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system import interruption
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS, open_top, printable, shown_path
from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.encoder import (
    Encoded,
    Encoder,
    ScannedDirectory,
    ScannedEntry,
    own_fingerprint,
)
from casfs.trees.snapshot.file_stat import Stat
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.listing import Listing, list_directory
from casfs.trees.snapshot.read_queue import ReadQueue
from casfs.trees.snapshot.report import KINDS, SPECIAL_BITS, SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.stat_cache import CachedDirectory, StatCache

AnyStat = Stat | os.stat_result
Subdirectories = list[tuple[bytes, AnyStat]]
GIT_NAME = b".git"
MAX_DEPTH = 200  # directories; each level holds a descriptor and four frames of Python's 1,000


def snapshot(
    batch: Batch,
    root: Path,
    rules: IgnoreRules,
    report: SnapshotReport | None = None,
    *,
    options: SnapshotOptions | None = None,
    cache: StatCache | None = None,
) -> Encoded:
    """Stores the tree under `root`, and its times; new blobs are marked as local until
    `Batch.settle` says what is work. Raises NotFound where there is no directory, Failed naming the
    file that could not be read, Refused where there is more than `options.limit`."""
    fd = open_top(root, follow=True)
    options = options or SnapshotOptions()
    new_snapshot = partial(Snapshot, batch, root, rules, options=options, cache=cache, root_fd=fd)
    # A report of its own: what was counted with a stale cache must not be counted again.
    seen = SnapshotReport()
    try:
        root_node = new_snapshot(report=seen).take()
    except StaleCache:  # gc deleted nodes of the cache: start without it
        assert cache is not None
        cache.rows.clear()
        seen = SnapshotReport()
        root_node = new_snapshot(report=seen).take()
    finally:
        os.close(fd)
    if report is not None:
        report.add(seen)
    return root_node


def survey(
    store: Store, root: Path, rules: IgnoreRules, report: SnapshotReport, options: SnapshotOptions
) -> None:
    """Reports what a snapshot would record; reads and stores no file. Raises as `snapshot`."""
    fd = open_top(root, follow=True)
    with closing_fd(fd):
        batch = store.batch()
        task = Snapshot(batch, root, rules, report, options=options, cache=None, root_fd=fd)
        task.survey()


class StaleCache(Exception):
    """The stat cache names something that is not in the store any more."""


class Snapshot:
    _reads = True
    _may_be_local = False  # whether the present directory is

    def __init__(
        self,
        batch: Batch,
        root: Path,
        rules: IgnoreRules,
        report: SnapshotReport,
        options: SnapshotOptions,
        cache: StatCache | None,
        root_fd: int,
    ) -> None:
        self._batch = batch
        self._root = os.fsencode(shown_path(root))  # for messages
        self._root_fd = root_fd
        self._rules = rules
        self._report = report
        self._options = options
        self._cache = cache
        self._user = os.geteuid()
        # Reckoned from the start: a file that changes while the directory is read is racy, too.
        racy_after = time.time_ns() - stat_cache.RACY_WINDOW_NS
        self._racy_after = racy_after
        # Directories below the root in the order in which they are encoded: each after those in it.
        self._unencoded: deque[tuple[ScannedEntry, ScannedDirectory]] = deque()
        self._queue = ReadQueue(
            batch, root_fd, self._root, report, racy_after=racy_after, options=options
        )
        self._encoder = Encoder(
            batch, report, options, cache, racy_after=racy_after, vanished=self._vanished
        )

    def take(self) -> Encoded:
        """Raises StaleCache and what `snapshot` raises."""
        # What is private is known when all is read: until then, or after a kill, nodes are hidden.
        self._batch.begin_local()
        try:
            top = self._scan_top()
            # A directory node has the digests of its files, so the last one must be known.
            self._read_and_encode(self._queue.collect(0))
            self._all_is_read()
            while self._unencoded:
                self._encoder.encode_entry(*self._unencoded.popleft())
            root = self._encoder.encode(top)
        except Invalid as error:
            # The batch refuses a node that refers to what is gone; only a cache can name such.
            if self._cache is not None and self._cache.rows:
                raise StaleCache from error
            raise
        finally:
            self._queue.close()
        # Where nothing changed no node was put that refers to these, so nothing else checks them.
        if root.is_cached:
            for hash in filter(None, root.dated):
                if not self._batch.require(hash):
                    raise StaleCache
        return root

    def _read_and_encode(self, reading: Iterator[None]) -> None:
        """Exhausts a generator of the queue. While the next files are read, it encodes directories,
        up to the first that waits for some: encoding is a third of the work of this process."""
        unencoded = self._unencoded
        for _ in reading:
            while unencoded and not unencoded[0][1].awaited:
                self._encoder.encode_entry(*unencoded.popleft())

    def _all_is_read(self) -> None:
        """Called when nothing of the directory is read any more."""

    def survey(self) -> None:
        self._reads = False
        self._scan_top()

    # -- the first pass -------------------------------------------------------------------

    def _scan_top(self) -> ScannedDirectory:
        # A second descriptor: `_scan` closes its own, and files are read below the root until last.
        fd = os.dup(self._root_fd)
        own = Stat.of(os.fstat(self._root_fd))
        top = self._scan(fd, b"", own)
        assert top is not None  # it was asked for
        return top

    def _scan(self, fd: int, path: bytes, own: AnyStat) -> ScannedDirectory | None:
        """Scans a directory and all below it; returns None for one that is left out. Takes over
        `fd`. `path`: below the root, with a leading slash; empty for the root."""
        row = None if self._cache is None else self._cache.get(path)
        above = self._may_be_local
        report = self._report
        own_path = path[1:]
        # The listing of the directory above has put it into these.
        # New files of such a directory keep the mark of local blobs until `Batch.settle` says what
        # is work; all others are work at once, unless the scanner finds something.
        self._may_be_local = above or own_path in report.derived or own_path in report.private
        scanned = ScannedDirectory(
            path, own, cached=row, entries={}, may_be_local=self._may_be_local
        )
        try:
            below = self._scan_listing(scanned, fd)
            if below is None:
                return None
            # Also of an unchanged directory: its stat says nothing of what is deeper.
            for name, seen in below:
                scanned_entry = self._scan_subdirectory(
                    fd, path + b"/" + name, name=name, seen=seen
                )
                if scanned_entry is not None:
                    scanned.entries[name] = scanned_entry
        finally:
            self._may_be_local = above
            os.close(fd)
        return scanned

    def _scan_listing(self, scanned: ScannedDirectory, fd: int) -> Subdirectories | None:
        """Lists a directory and looks at its entries; returns its subdirectories, None where it is
        left out."""
        try:
            entries = list_directory(
                fd, scanned.path, root=self._root_fd, rules=self._rules, report=self._report
            )
        except OSError as error:
            self._leave_out_unreadable(scanned.path, error)
            return None
        if entries is None:
            return None
        # A directory with a CACHEDIR.TAG says so itself.
        if scanned.path[1:] in self._report.derived:
            scanned.may_be_local = self._may_be_local = True
        row = scanned.cached
        if row is not None:
            below = self._scan_unchanged(scanned, row, fd=fd, entries=entries)
            if below is not None:
                return below
        return self._scan_entries(scanned, fd, entries)

    def _scan_unchanged(
        self, scanned: ScannedDirectory, row: CachedDirectory, fd: int, entries: Listing
    ) -> Subdirectories | None:
        """The fast path: returns the subdirectories of a directory whose every entry has the
        stat in `row`, without a `ScannedEntry` for each. None for any other directory."""
        # With `preserve` a row has the stat of the directory itself, too. A racy one is RACY there
        # and equals any other racy one, so that it proves nothing.
        if self._options.preserve:
            return None
        packed_stats: dict[bytes, bytes] = {}
        below: dict[bytes, AnyStat] = {}
        links: dict[bytes, bytes] = {}
        # Counted only at the end: of a directory that has changed `_scan_entries` counts them.
        odd: list[tuple[bytes, os.stat_result]] = []
        user = self._user
        size = 0
        for name, entry in entries.items():
            try:
                seen = entry.stat(follow_symlinks=False)
                kind = stat.S_IFMT(seen.st_mode)
                # A row has no targets, and the node is made anew where something below changed.
                if kind == stat.S_IFLNK:
                    links[name] = os.readlink(name, dir_fd=fd)
            # `_scan_entries` meets the same error, and reports it.
            except OSError:
                return None
            if seen.st_uid != user or seen.st_nlink > 1 or seen.st_mode & SPECIAL_BITS:
                odd.append((name, seen))
            if kind == stat.S_IFDIR:
                below[name] = seen
                # Its own row says whether it has changed; here only its name counts.
                packed_stats[name] = stat_cache.DIRECTORY
            else:
                # Not `fingerprint`: an old stat that is equal was not racy when it was remembered.
                packed_stats[name] = stat_cache.pack_stat(seen)
                size += seen.st_size if kind == stat.S_IFREG else 0
        names = sorted(packed_stats)
        stats = [packed_stats[name] for name in names]
        stats += own_fingerprint(scanned.stat, self._options, self._racy_after)
        if row.names != b"\0".join(names) or row.stats != b"".join(stats):
            return None
        # A row has no fifos and the like. So this directory, which has the same names, has none
        # either: nothing to warn of, and what is neither directory nor link is a file.
        scanned.unchanged = True
        scanned.links = links
        for name, hits in row.split_hits().items():
            path = scanned.path + b"/" + name
            self._report.findings[path[1:]] = hits
        # Of a linked work tree or a submodule.
        has_git_file = GIT_NAME in packed_stats and GIT_NAME not in below
        if has_git_file:
            self._report.git_files[(scanned.path + b"/" + GIT_NAME)[1:]] = None
        self._count(len(packed_stats) - len(below) - len(links), size)
        for name, seen in odd:
            self._count_odd(scanned.path + b"/" + name, seen)
        return list(below.items())

    def _scan_entries(self, scanned: ScannedDirectory, fd: int, entries: Listing) -> Subdirectories:
        """Adds every entry to `scanned` and has new files read; returns the subdirectories."""
        known = {} if scanned.cached is None else scanned.cached.entries()
        known_hits = {} if scanned.cached is None else scanned.cached.split_hits()
        unread: list[bytes] = []
        bases: dict[bytes, str] = {}
        below: Subdirectories = []
        for name, entry in entries.items():
            scanned_entry = self._scan_entry(fd, scanned.path + b"/" + name, name=name, entry=entry)
            if scanned_entry is None:
                continue
            kind = stat.S_IFMT(scanned_entry.stat.st_mode)
            if kind == stat.S_IFDIR:
                below.append((name, scanned_entry.stat))
                continue
            scanned.entries[name] = scanned_entry
            if kind == stat.S_IFREG:
                self._count(1, scanned_entry.stat.st_size)
                before = known.get(name)
                # A stat that was racy when the file was read equals none, so that is read again.
                if before and before[0] == stat_cache.pack_stat(scanned_entry.stat):
                    scanned_entry.fingerprint, scanned_entry.digest = before
                    scanned_entry.hits = known_hits.get(name, ())
                    if scanned_entry.hits:
                        path = scanned.path + b"/" + name
                        self._report.findings[path[1:]] = scanned_entry.hits
                else:
                    unread.append(name)
                    size = min(scanned_entry.stat.st_size, before[1].size_bytes if before else 0)
                    if before and size >= block_maps.MIN_BYTES:
                        bases[name] = before[1].hash
        if GIT_NAME in scanned.entries:
            self._report.git_files[(scanned.path + b"/" + GIT_NAME)[1:]] = None
        # All of a directory at once, while it is open: names need no path, and workers get batches.
        if self._reads:
            self._read_and_encode(self._queue.read(scanned, fd, unread, bases))
        return below

    def _scan_entry(
        self, fd: int, path: bytes, name: bytes, entry: os.DirEntry[str]
    ) -> ScannedEntry | None:
        """Returns None for an entry that has vanished, or has no place in a tree."""
        try:
            seen = entry.stat(follow_symlinks=False)
            kind = stat.S_IFMT(seen.st_mode)
            scanned_entry = ScannedEntry(seen, stat_cache.fingerprint(seen, self._racy_after))
            if kind == stat.S_IFLNK:
                scanned_entry.target = os.readlink(name, dir_fd=fd)
        except FileNotFoundError:
            self._vanished(path)
            return None
        except OSError as error:
            self._leave_out_unreadable(path, error)
            return None
        if kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
            what = KINDS.get(kind, "of an unknown kind")
            self._report.warnings.append(f"{self._show(path)}: left out, it is {what}")
            return None
        if seen.st_uid != self._user or seen.st_nlink > 1 or seen.st_mode & SPECIAL_BITS:
            self._count_odd(path, seen)
        return scanned_entry

    def _count_odd(self, path: bytes, seen: os.stat_result) -> None:
        self._report.count_not_kept(seen, self._user, self._options.preserve)

    def _scan_subdirectory(
        self, fd: int, path: bytes, name: bytes, seen: AnyStat
    ) -> ScannedEntry | None:
        """Returns None for one that has vanished, or is left out."""
        if path.count(b"/") > MAX_DEPTH:
            too_deep = OSError(errno.ENAMETOOLONG, f"more than {MAX_DEPTH} directories deep")
            self._leave_out_unreadable(path, too_deep)
            return None
        try:
            inner = os.open(name, DIR_FLAGS, dir_fd=fd)
        except FileNotFoundError:
            self._vanished(path)
            return None
        except OSError as error:
            self._leave_out_unreadable(path, error)
            return None
        scanned = self._scan(inner, path, seen)
        if scanned is None:
            return None
        scanned_entry = ScannedEntry(seen, stat_cache.DIRECTORY)
        self._unencoded.append((scanned_entry, scanned))
        return scanned_entry

    def _count(self, files: int, size: int) -> None:
        """Raises Refused where the sum of sizes exceeds the limit."""
        interruption.check()
        self._report.files += files
        self._report.bytes += size
        # By the sizes of the scan, so that what is too large is refused before all of it is read.
        limit = self._options.limit
        if limit is not None and self._report.bytes > limit:
            raise Refused(
                f"{self._show(b'')} holds more than {limit} bytes; leave something out"
                " (.casfsignore), or raise the limit with --max-size"
            )
        self._options.progress(self._report.files, self._report.read_bytes)

    # -- messages -------------------------------------------------------------------------

    def _vanished(self, path: bytes) -> None:
        self._report.warnings.append(f"{self._show(path)}: vanished while it was read")

    def _leave_out_unreadable(self, path: bytes, error: OSError) -> None:
        """Raises Failed where it must not be left out, as the recorded directory itself."""
        reason = error.strerror or repr(error)
        if not path:
            raise Failed(f"cannot read {self._show(path)}: {reason}")
        self._report.leave_out_unreadable(self._root, path[1:], reason, self._options)

    def _show(self, path: bytes) -> str:
        return printable(self._root + path)
