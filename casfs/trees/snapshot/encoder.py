"""What a snapshot has seen of a directory, and how a node is made of it.

The first pass (`casfs.trees.snapshot`) fills a `Plan` for each directory; when all files have
been read, `Encoder` makes the nodes from the leaves up. One that the index has just so is not
encoded again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from casfs.digest import Digest
from casfs.nodes import directory
from casfs.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.file_reader import Stat
from casfs.trees.snapshot.stat_cache import Index, Row
from casfs.write_batch import Batch

X = stat.S_IXUSR
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


@dataclass(slots=True)
class Found:
    """An entry of a directory as it was seen: for a file its digest as soon as that is known,
    for a directory what is below it, for a link its target."""

    stat: Stat | os.stat_result
    fingerprint: bytes
    digest: Digest | None = None
    below: Plan | None = None
    target: bytes = b""


@dataclass(slots=True)
class Plan:
    """A directory between the two passes; `row` is what the index has of it. `same`: it
    holds what it did, but for what its directories hold; only these are in `found` then, and
    the targets of its links in `links`."""

    path: bytes
    stat: Stat | os.stat_result
    row: Row | None
    found: dict[bytes, Found]
    same: bool = False
    links: dict[bytes, bytes] = field(default_factory=dict)


class Encoder:
    """`vanished` is told the path of a file that could not be read any more."""

    def __init__(
        self,
        batch: Batch,
        report: Report,
        options: Options,
        known: Index | None,
        racy_after: int,
        vanished: Callable[[bytes], None],
    ) -> None:
        self._batch = batch
        self._report = report
        self._options = options
        self._index = known
        self._racy_after = racy_after
        self._vanished = vanished

    def encode(self, plan: Plan) -> tuple[Digest, bool]:
        """(the directory node, whether it is the one that the index has)"""
        for found in plan.found.values():
            if found.below is not None:
                found.digest = self.encode(found.below)[0]
        if plan.same and plan.row is not None:
            if self._holds_the_same(plan, plan.row):
                return plan.row.digest, True
            self._fill(plan, plan.row)
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
            prints.append(stat_cache.fingerprint(plan.stat, self._racy_after))
        seen = stat_cache.row(names, prints, digests)
        if plan.row is not None and plan.row[:3] == seen[:3] and stat_cache.UNSURE not in prints:
            return plan.row.digest, True
        entries = [
            self._make(name, plan.found[name], digest)
            for name, digest in zip(names, digests, strict=True)
        ]
        own = properties(plan.stat, self._options.preserve)
        node = self._batch.put_node("directory", directory.encode(entries, own))
        if self._index is not None:
            self._index.put(plan.path, seen.of(node))
        return node, False

    def _holds_the_same(self, plan: Plan, row: Row) -> bool:
        """Of one that looks the same: are its directories what they were?"""
        places = {name: place for place, name in enumerate(row.split())}
        same = len(plan.found) == row.stats.count(stat_cache.DIRECTORY)
        for name, found in plan.found.items():
            if found.digest != row.recorded_at(places[name]):
                same = False
        if same:
            empty = not places and plan.path != b""
            self._report.entries += 1 if empty else len(places) - len(plan.found)
        return same

    def _fill(self, plan: Plan, row: Row) -> None:
        """Remember after all what looks the same, as the row has it."""
        for name, (printed, digest) in row.known().items():
            if printed != stat_cache.DIRECTORY:
                target = plan.links.get(name, b"")
                plan.found[name] = Found(stat_cache.stat_of(printed), printed, digest, None, target)

    def _digest(self, found: Found) -> Digest | None:
        """None for a file that has vanished."""
        return stat_cache.NOTHING if stat.S_ISLNK(found.stat.st_mode) else found.digest

    def _make(self, name: bytes, found: Found, digest: Digest) -> Entry:
        if found.below is not None:
            return Subdirectory(name, digest)
        own = properties(found.stat, self._options.preserve)
        if stat.S_ISLNK(found.stat.st_mode):
            return Symlink(name, found.target, own)
        return File(name, digest, bool(found.stat.st_mode & X), own)


def properties(seen: Stat | os.stat_result, preserve: Collection[str]) -> Properties | None:
    """What is kept of an entry besides its content."""
    if not preserve:
        return None
    mtime = divmod(seen.st_mtime_ns, 1_000_000_000) if "mtime" in preserve else None
    mode = stat.S_IMODE(seen.st_mode) if "mode" in preserve else None
    return Properties(mtime, None if stat.S_ISLNK(seen.st_mode) else mode)


def preserving(own: Properties | None) -> list[str]:
    """What was preserved where a directory has this of its own."""
    kept = own or Properties()
    values = {"mtime": kept.mtime, "mode": kept.unix_mode}
    return [name for name, value in values.items() if value is not None]
