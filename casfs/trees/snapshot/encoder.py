"""Encodes scanned directories as `directory` and `times` nodes: the second pass of a snapshot.

The first pass (`casfs.trees.snapshot.walker`) fills a `ScannedDirectory` for each directory;
when all of its files have been read, `Encoder` makes its nodes, from the leaves up. A directory
that equals its row of the stat cache is not encoded again. So the time of the directory itself is
that of when something recorded was last added or removed: what is ignored may have changed it
since.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from casfs.digest import Digest, TreeDigest
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store.nodes.times import Times, TimesRef, newest_of
from casfs.store.write_batch import Batch
from casfs.trees import dated
from casfs.trees.dated import DatedTree
from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.file_stat import Stat
from casfs.trees.snapshot.properties import properties, unix_mode
from casfs.trees.snapshot.report import Hits, SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.stat_cache import (
    NO_TIMES,
    TIMES_BYTES,
    CachedDirectory,
    StatCache,
    pack_times,
)


@dataclass(slots=True)
class ScannedEntry:
    """`digest`: of a file or a directory, as soon as it is known; `times`: of a directory, as well;
    `target`: of a link; `hits`: secrets in a file."""

    stat: Stat | os.stat_result
    fingerprint: bytes
    digest: Digest | None = None
    times: TimesRef = stat_cache.UNKNOWN_TIMES
    target: bytes = b""
    hits: Hits = ()


@dataclass(slots=True)
class ScannedDirectory:
    """A directory between the two passes. `cached`: its row of the stat cache; `may_be_local`: it
    is in a directory that is derived, or private by a setting. `unchanged`: every
    entry has the stat that the row has, so `entries` holds only its subdirectories (which may
    have changed below), and `links` the targets of its links. `awaited`: how many answers and
    blobs of the reader pool are to come before it can be encoded."""

    path: bytes
    stat: Stat | os.stat_result
    cached: CachedDirectory | None
    entries: dict[bytes, ScannedEntry]
    may_be_local: bool = False
    unchanged: bool = False
    links: dict[bytes, bytes] = field(default_factory=dict)
    awaited: int = 0


class Encoded(NamedTuple):
    """The nodes of a directory; `is_cached`: they are those of the stat cache."""

    node: TreeDigest
    times: TimesRef
    is_cached: bool

    @property
    def dated(self) -> DatedTree:
        return DatedTree(self.node.hash, self.times.hash)


class Encoder:
    """`vanished` is called with the path of each file that could not be read any more."""

    def __init__(
        self,
        batch: Batch,
        report: SnapshotReport,
        options: SnapshotOptions,
        cache: StatCache | None,
        racy_after: int,
        vanished: Callable[[bytes], None],
    ) -> None:
        self._batch = batch
        self._report = report
        self._options = options
        self._cache = cache
        self._racy_after = racy_after
        self._vanished = vanished
        self._has_times = options.times and batch.has_times()

    def encode_entry(self, entry: ScannedEntry, scanned: ScannedDirectory) -> None:
        """Encodes the directory of an entry."""
        entry.digest, entry.times, _ = self.encode(scanned)

    def encode(self, scanned: ScannedDirectory) -> Encoded:
        """Makes the nodes of a directory; those of its subdirectories are made."""
        cached = scanned.cached
        if scanned.unchanged and cached is not None:
            if self._is_dated(cached) and self._has_same_subdirectories(scanned, cached):
                return Encoded(cached.digest, cached.times_ref, is_cached=True)
            self._fill_from_cache(scanned, cached)
        digests = self._digests(scanned)
        names = sorted(scanned.entries)
        directories = [name for name in names if stat.S_ISDIR(scanned.entries[name].stat.st_mode)]
        self._count_entries(scanned, len(names), len(directories))
        fingerprints = [scanned.entries[name].fingerprint for name in names]
        fingerprints += own_fingerprint(scanned.stat, self._options, self._racy_after)
        hits = {name: entry.hits for name, entry in scanned.entries.items() if entry.hits}
        below = [scanned.entries[name].times for name in directories]
        row = stat_cache.pack(names, fingerprints, digests=digests, hits=hits, below=below)
        if (
            cached is not None
            and cached.scanned == row.scanned
            and self._is_dated(cached)
            and stat_cache.RACY not in fingerprints
        ):
            return Encoded(cached.digest, cached.times_ref, is_cached=True)
        entries = [
            self._entry(name, scanned.entries[name], digest)
            for name, digest in zip(names, digests, strict=True)
        ]
        own = properties(scanned.stat, self._options.preserve)
        node = self._batch.put_directory(directory.encode(entries, own))
        times_ref = self._put_times(scanned, entries, directories)
        if self._cache is not None:
            self._cache.put(scanned.path, row.with_nodes(node, times_ref))
        return Encoded(node, times_ref, is_cached=False)

    def _is_dated(self, row: CachedDirectory) -> bool:
        """A row of a directory that was restored from a record without times has none."""
        return not self._has_times or not row.times.startswith(NO_TIMES)

    def _put_times(
        self, scanned: ScannedDirectory, entries: list[Entry], directories: list[bytes]
    ) -> TimesRef:
        if not self._has_times:
            return stat_cache.UNKNOWN_TIMES
        below = {name: scanned.entries[name].times for name in directories}
        modified = {
            name: entry.stat.st_mtime_ns
            for name, entry in scanned.entries.items()
            if name not in below
        }
        last = newest_of([*modified.values(), *[times_ref.newest for times_ref in below.values()]])
        hashes = {
            name: times_ref.hash for name, times_ref in below.items() if times_ref.hash is not None
        }
        return dated.put(
            self._batch,
            entries,
            Times(scanned.stat.st_mtime_ns, last, entries=modified, below=hashes),
        )

    def _has_same_subdirectories(self, scanned: ScannedDirectory, row: CachedDirectory) -> bool:
        """Compares the subdirectories of an unchanged directory with its row."""
        places = {name: index for index, name in enumerate(row.split_names())}
        same = len(scanned.entries) == row.stats.count(stat_cache.DIRECTORY)
        for name, entry in scanned.entries.items():
            if entry.digest != row.digest_at(places[name]):
                same = False
        if scanned.entries:
            below = [scanned.entries[name].times for name in sorted(scanned.entries)]
            same = same and row.times[TIMES_BYTES:] == pack_times(below)
        if same:
            self._count_entries(scanned, len(places), len(scanned.entries))
        return same

    def _count_entries(self, scanned: ScannedDirectory, names: int, subdirectories: int) -> None:
        """An empty directory counts as an entry, unless it is the root."""
        empty = not names and scanned.path != b""
        self._report.entries += 1 if empty else names - subdirectories

    def _fill_from_cache(self, scanned: ScannedDirectory, row: CachedDirectory) -> None:
        """Add the entries that the scan of an unchanged directory left out."""
        hits = row.split_hits()
        for name, (printed, digest) in row.entries().items():
            if printed != stat_cache.DIRECTORY:
                scanned.entries[name] = ScannedEntry(
                    stat_cache.unpack_stat(printed),
                    printed,
                    digest,
                    target=scanned.links.get(name, b""),
                    hits=hits.get(name, ()),
                )

    def _digests(self, scanned: ScannedDirectory) -> list[Digest]:
        """Returns the digests in order of name; drops the files that have vanished."""
        digests: list[Digest] = []
        for name in sorted(scanned.entries):
            entry = scanned.entries[name]
            is_link = stat.S_ISLNK(entry.stat.st_mode)
            digest = stat_cache.NO_BLOB if is_link else entry.digest
            if digest is None:
                assert not stat.S_ISDIR(entry.stat.st_mode)  # those in it are encoded before it
                self._report.files -= 1
                self._report.bytes -= scanned.entries.pop(name).stat.st_size
                self._vanished(scanned.path + b"/" + name)
            else:
                digests.append(digest)
        return digests

    def _entry(self, name: bytes, scanned: ScannedEntry, digest: Digest) -> Entry:
        if stat.S_ISDIR(scanned.stat.st_mode):
            return Subdirectory(name, cast(TreeDigest, digest))
        own = properties(scanned.stat, self._options.preserve)
        if stat.S_ISLNK(scanned.stat.st_mode):
            return Symlink(name, scanned.target, own)
        return File(
            name, digest, executable=bool(scanned.stat.st_mode & stat.S_IXUSR), properties=own
        )


def own_fingerprint(
    seen: Stat | os.stat_result, options: SnapshotOptions, racy_after: int
) -> list[bytes]:
    """Returns what a row has of the directory itself, behind its entries: nothing of an ordinary
    one."""
    if options.preserve:
        return [stat_cache.fingerprint(seen, racy_after)]
    mode = unix_mode(seen.st_mode, ())
    return [] if mode is None else [stat_cache.pack_mode(mode)]
