"""Options and report of one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

Progress = Callable[[int, int], None]  # files seen and bytes read so far


@dataclass(slots=True)
class SnapshotReport:
    """`bytes`: the sum of the file sizes; `read`: the number of files that were read."""

    files: int = 0
    bytes: int = 0
    entries: int = 0  # files, links and empty directories: the lines of a diff
    read: int = 0
    read_bytes: int = 0
    warnings: list[str] = field(default_factory=list)

    def add(self, other: SnapshotReport) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.entries += other.entries
        self.read += other.read
        self.read_bytes += other.read_bytes
        self.warnings += other.warnings


@dataclass(slots=True)
class SnapshotOptions:
    """`preserve`: "mtime", "mode"; `limit`: largest sum of file sizes, in bytes."""

    preserve: Collection[str] = ()
    limit: int | None = None
    progress: Progress = lambda files, bytes: None
