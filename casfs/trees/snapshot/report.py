"""Options and report of one snapshot."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from casfs.errors import Failed
from casfs.system.paths import printable

# A report of a daemon's snapshot is printed by a command that imports nothing to make one.
if TYPE_CHECKING:
    from casfs.digest import Digest
    from casfs.scanner import Scanner

RelativePath = bytes
HostPath = bytes
Progress = Callable[[int, int], None]  # files seen and bytes read so far
SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
KINDS = {  # of what has no place in a tree
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a fifo",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}

BY_PATTERN = "an ignore pattern"
NOT_PART = STORE, MOUNT, OTHER_MOUNT = "the store", "a mount of casfs", "a mount"

HARD_LINKS, OWNERS, MODES, XATTRS = NOT_KEPT = (
    "hardLinks", "foreignOwners", "specialModes", "extendedAttributes",
)  # fmt: skip


class Hit(NamedTuple):
    """A secret that the scanner found in a file: its kind, and the line, counted from 1."""

    kind: str
    line: int

    def __str__(self) -> str:
        return f"{self.kind} in line {self.line}"


Hits = tuple[Hit, ...]


class ReadContent(NamedTuple):
    """The content of a file that was read."""

    digest: Digest
    hits: Hits = ()


KnownFiles = dict[bytes, ReadContent]


class Excluded(NamedTuple):
    """An entry that was left out, with all below it; `path` is relative to the directory."""

    path: RelativePath
    reason: str


@dataclass(slots=True)
class SnapshotReport:
    """`bytes`: the sum of the file sizes; `read`: the number of files that were read; `not_kept`:
    counts by kind; `known`: what `stat_cache.read_once` has read, by stat.

    By path, candidates for the local tree (`casfs.trees.snapshot.classes`): `private`: for its
    name, with the reason; `derived`: kept directories, with the reason; `findings`: what the
    scanner found. By path, what `classes.settle` decided: `local`: private files; `exposed`:
    files with secrets that are work. `purged`: files that were left out, since their content was
    purged; `unreadable`: entries that were left out, with the reason; `git_files`: the `.git`
    files, of linked work trees and submodules."""

    files: int = 0
    bytes: int = 0
    entries: int = 0  # files, links and empty directories: the lines of a diff
    read: int = 0
    read_bytes: int = 0
    warnings: list[str] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    private: dict[RelativePath, str] = field(default_factory=dict)
    derived: dict[RelativePath, str] = field(default_factory=dict)
    findings: dict[RelativePath, Hits] = field(default_factory=dict)
    local: dict[RelativePath, str] = field(default_factory=dict)
    exposed: dict[RelativePath, Hits] = field(default_factory=dict)
    purged: dict[RelativePath, str] = field(default_factory=dict)
    unreadable: dict[RelativePath, str] = field(default_factory=dict)
    git_files: dict[RelativePath, None] = field(default_factory=dict)
    not_kept: Counter[str] = field(default_factory=Counter)
    known: KnownFiles | None = None

    def add(self, other: SnapshotReport) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.entries += other.entries
        self.read += other.read
        self.read_bytes += other.read_bytes
        self.warnings += other.warnings
        self.excluded += other.excluded
        self.private |= other.private
        self.derived |= other.derived
        self.findings |= other.findings
        self.local |= other.local
        self.exposed |= other.exposed
        self.purged |= other.purged
        self.unreadable |= other.unreadable
        self.git_files |= other.git_files
        self.not_kept.update(other.not_kept)

    def exclude(self, path: RelativePath, reason: str) -> bool:
        """Notes that an entry was left out; returns True."""
        self.excluded.append(Excluded(path, reason))
        return True

    def unreadable_lines(self) -> Iterator[str]:
        """Yields a line for each entry that was left out as it cannot be read."""
        for path, reason in self.unreadable.items():
            yield f"cannot read {printable(path)}: {reason}; it is left out"

    def leave_out_unreadable(
        self, root: HostPath, path: RelativePath, reason: str, options: SnapshotOptions
    ) -> None:
        """Notes an entry that cannot be read. Raises Failed where the options do not allow that it
        is left out."""
        if options.must_be_whole:
            raise Failed(f"cannot read {printable(root + b'/' + path)}: {reason}")
        self.unreadable[path] = reason

    def count_not_kept(self, seen: os.stat_result, user: int, preserve: Collection[str]) -> None:
        if seen.st_uid != user:
            self.not_kept[OWNERS] += 1
        if seen.st_nlink > 1 and stat.S_ISREG(seen.st_mode):
            self.not_kept[HARD_LINKS] += 1
        if seen.st_mode & SPECIAL_BITS and "mode" not in preserve:
            self.not_kept[MODES] += 1


@dataclass(slots=True)
class SnapshotOptions:
    """`preserve`: "mtime", "mode"; `limit`: largest sum of file sizes, in bytes; `scanner`: looks
    for secrets in the files that are read; None: nothing does; `times`: they are recorded, too;
    `must_be_whole`: what cannot be read fails the snapshot; else it is left out, and in the report;
    `verify`: every file is read."""

    preserve: Collection[str] = ()
    limit: int | None = None
    progress: Progress = lambda files, bytes: None
    scanner: Scanner | None = None
    times: bool = True
    must_be_whole: bool = False
    verify: bool = False

    @property
    def variant(self) -> str:
        """Equal for snapshots that can use the same rows of the stat cache."""
        scanned = "" if self.scanner is None else self.scanner.version
        return ",".join([*sorted(self.preserve), scanned])
