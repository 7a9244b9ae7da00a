"""Options and report of one snapshot."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from casfs.digest import Digest
from casfs.trees.snapshot import stat_cache

RelativePath = bytes
KnownFiles = dict[bytes, Digest]
Progress = Callable[[int, int], None]  # files seen and bytes read so far
SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
KINDS = {  # of what has no place in a tree
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a fifo",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}

HARD_LINKS, OWNERS, MODES, XATTRS = NOT_KEPT = (
    "hardLinks", "foreignOwners", "specialModes", "extendedAttributes",
)  # fmt: skip


class Excluded(NamedTuple):
    """An entry that was left out, with all below it; `path` is relative to the directory."""

    path: RelativePath
    reason: str


@dataclass(slots=True)
class SnapshotReport:
    """`bytes`: the sum of the file sizes; `read`: the number of files that were read; `secrets`:
    paths of files that look like secrets; `not_kept`: counts by kind; `known`: what `read_once`
    found, by stat."""

    files: int = 0
    bytes: int = 0
    entries: int = 0  # files, links and empty directories: the lines of a diff
    read: int = 0
    read_bytes: int = 0
    warnings: list[str] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    secrets: list[RelativePath] = field(default_factory=list)
    not_kept: Counter[str] = field(default_factory=Counter)
    known: KnownFiles | None = None

    def read_once(self, seen: os.stat_result, read: Callable[[], Digest]) -> Digest:
        """Reads a file, unless one with this stat is `known`."""
        stamp = stat_cache.fingerprint(seen, time.time_ns() - stat_cache.RACY_WINDOW_NS)
        if self.known is not None and stamp in self.known:
            return self.known[stamp]
        digest = read()
        self.read += 1
        self.read_bytes += digest.size_bytes
        if self.known is not None and stamp != stat_cache.RACY:
            self.known[stamp] = digest
        return digest

    def add(self, other: SnapshotReport) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.entries += other.entries
        self.read += other.read
        self.read_bytes += other.read_bytes
        self.warnings += other.warnings
        self.excluded += other.excluded
        self.secrets += other.secrets
        self.not_kept.update(other.not_kept)

    def exclude(self, path: RelativePath, reason: str) -> bool:
        """Notes that an entry was left out; returns True."""
        self.excluded.append(Excluded(path, reason))
        return True

    def count_not_kept(self, seen: os.stat_result, user: int, preserve: Collection[str]) -> None:
        if seen.st_uid != user:
            self.not_kept[OWNERS] += 1
        if seen.st_nlink > 1 and stat.S_ISREG(seen.st_mode):
            self.not_kept[HARD_LINKS] += 1
        if seen.st_mode & SPECIAL_BITS and "mode" not in preserve:
            self.not_kept[MODES] += 1


@dataclass(slots=True)
class SnapshotOptions:
    """`preserve`: "mtime", "mode"; `limit`: largest sum of file sizes, in bytes."""

    preserve: Collection[str] = ()
    limit: int | None = None
    progress: Progress = lambda files, bytes: None
