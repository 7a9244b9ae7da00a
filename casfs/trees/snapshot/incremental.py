"""Snapshots of a directory whose changes are known: only what changed is looked at.

Listed are the directories that changed. Of those above them, which are only on the way, the stat
cache has the entries; of any other, not even opened, it has the node.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.derived import CACHE_TAG
from casfs.trees.snapshot.encoder import Encoded, ScannedDirectory, ScannedEntry
from casfs.trees.snapshot.file_stat import Stat
from casfs.trees.snapshot.report import SnapshotReport
from casfs.trees.snapshot.stat_cache import DIRECTORY, RACY, STAT, CachedDirectory
from casfs.trees.snapshot.walker import Snapshot, Subdirectories

UNSEEN = stat_cache.unpack_stat(DIRECTORY)  # of a directory that is not looked at


@dataclass(slots=True)
class Changes:
    """`names`: by directory, the entries that changed; `below`: directories of which everything is
    to be looked at, b"" for all."""

    names: defaultdict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    below: set[bytes] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.names or self.below)

    def paths(self) -> Iterator[bytes]:
        """Yields the entries that changed, without a slash before them."""
        for directory, names in self.names.items():
            for name in names:
                yield (directory + b"/" + name)[1:]


class IncrementalSnapshot(Snapshot):
    """Its stat cache is that of the last snapshot. `gone`: the directories that are not there any
    more."""

    _everything = False  # whether all below the present directory is looked at

    def take_changes(
        self,
        changes: Changes,
        known: SnapshotReport,
        listed: Callable[[bytes, int], None],
        linked: Callable[[bytes, os.stat_result], None],
        all_read: Callable[[], None],
    ) -> Encoded:
        """`known`: what former snapshots reported of directories as they are. `listed` is called
        with each directory before it is listed, so that later changes are noticed; `linked` with
        each file that has several names; `all_read` when all is read.
        Raises as `take`."""
        assert self._cache is not None
        self._known = known
        self._rows = self._cache.rows
        self._changes = changes
        self._listed = listed
        self._linked = linked
        self._notify_read = all_read
        self._way = {
            directory for path in (*changes.names, *changes.below) for directory in _upwards(path)
        }
        self.gone = set(changes.below)
        root = self.take()
        unseen = self._rows.keys() - self._cache.seen if self.gone else set()
        self.gone = {
            directory for directory in unseen if not self.gone.isdisjoint(_upwards(directory))
        }
        self._cache.seen |= self._rows.keys() - self.gone
        return root

    def _read_and_encode(self, reading: Iterator[None]) -> None:
        """Only reads: an agent waits until all is read, and no longer."""
        for _ in reading:
            pass

    def _all_is_read(self) -> None:
        self._notify_read()

    def _scan(self, fd: int, path: bytes, own: Stat | os.stat_result) -> ScannedDirectory | None:
        above = self._everything
        row = self._rows.get(path)
        self._everything = above or row is None or path in self._changes.below
        names = self._changes.names.get(path, set())
        before = set[bytes]()
        if row is not None and (names or not self._everything):
            stats = {name: stat for name, (stat, _) in row.entries().items()}
            before = {name for name, stat in stats.items() if stat == DIRECTORY}
            for name in names & stats.keys() - before:
                stats[name] = RACY  # read again whatever its stat is: mmap(2) may not change it
            own_stat = row.stats[len(stats) * STAT.size :]
            self._rows[path] = row._replace(stats=b"".join(stats.values()) + own_stat)
        scanned = super()._scan(fd, path, own)
        kept = scanned.entries.keys() if scanned is not None else set()
        self.gone |= {path + b"/" + name for name in before - kept}
        self._everything = above
        return scanned

    def _scan_listing(self, scanned: ScannedDirectory, fd: int) -> Subdirectories | None:
        row = scanned.cached
        is_on_the_way = not self._everything and scanned.path not in self._changes.names
        # What has the tag is reported by its own listing.
        is_tagged = self._known.derived.get(scanned.path[1:]) == CACHE_TAG.decode()
        if row is not None and is_on_the_way and not is_tagged:
            below = self._scan_from_row(scanned, row, fd)
            if below is not None:
                return below
        self._listed(scanned.path, fd)
        return super()._scan_listing(scanned, fd)

    def _scan_from_row(
        self, scanned: ScannedDirectory, row: CachedDirectory, fd: int
    ) -> Subdirectories | None:
        """As `_scan_unchanged`, for a directory that is only on the way to a change: its own
        entries are those of its row. None where the row does not suffice."""
        below: Subdirectories = []
        for index, name in enumerate(row.split_names()):
            packed = row.stats[index * STAT.size : (index + 1) * STAT.size]
            # Nothing is known of such an entry but its digest, and of a link not the target.
            if packed == RACY:
                return None
            path = scanned.path + b"/" + name
            try:
                if packed != DIRECTORY:
                    if stat.S_ISLNK(stat_cache.unpack_stat(packed).st_mode):
                        scanned.links[name] = os.readlink(name, dir_fd=fd)
                elif path in self._way or path not in self._rows:
                    below.append((name, os.stat(name, dir_fd=fd, follow_symlinks=False)))
                    self._report_as_before(path[1:])
                else:
                    below.append((name, UNSEEN))
            except OSError:  # it has vanished meanwhile: a listing says what there is
                return None
        scanned.unchanged = True
        return below

    def _report_as_before(self, path: bytes) -> None:
        """Reports of a directory what the listing of the one above it reported: whether what is in
        it may be local."""
        for kind in ("derived", "private"):
            reason = getattr(self._known, kind).get(path)
            if reason is not None:
                getattr(self._report, kind)[path] = reason

    def _scan_subdirectory(
        self, fd: int, path: bytes, name: bytes, seen: Stat | os.stat_result
    ) -> ScannedEntry | None:
        row = self._rows.get(path)
        if row is None or self._everything or path in self._way:
            return super()._scan_subdirectory(fd, path, name, seen)
        return ScannedEntry(seen, DIRECTORY, digest=row.digest, times=row.times_ref)

    def _count_odd(self, path: bytes, seen: os.stat_result) -> None:
        super()._count_odd(path, seen)
        if seen.st_nlink > 1 and stat.S_ISREG(seen.st_mode):
            self._linked(path, seen)


def _upwards(path: bytes) -> Iterator[bytes]:
    """Yields a directory and all above it."""
    while path:
        yield path
        path = path.rpartition(b"/")[0]
    yield b""
