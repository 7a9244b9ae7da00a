"""What `checkpoint create` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from casfs.cli.output import echo_result
from casfs.cli.snapshot_options import notes, print_notes
from casfs.trees.snapshot.report import SnapshotReport


class Recorded(NamedTuple):
    """`checkpoint`: as in JSON; `skipped`: it is the previous one."""

    checkpoint: Mapping[str, Any]
    report: SnapshotReport
    stats: Mapping[str, int]
    new_bytes: int
    skipped: bool

    def echo(self, seconds: float) -> None:
        """Prints what was recorded, in this time."""
        value = {
            **self.checkpoint,
            "skipped": self.skipped,
            "stats": self.stats,
            "read": self.report.read,
            "readBytes": self.report.read_bytes,
            "newBytes": self.new_bytes,
            "seconds": round(seconds, 3),
            **notes(self.report),
        }
        echo_result(value, self._line(value["seconds"]))
        print_notes(self.report)

    def _line(self, seconds: float) -> str:
        changes = ", ".join(f"{self.stats[key]} {key}" for key in ("added", "modified", "deleted"))
        if self.skipped:
            changes = "unchanged"
        return (
            f"{self.checkpoint['id']} {changes}; {self.report.files} files seen,"
            f" {self.report.read} read, {self.new_bytes} new bytes, {seconds:.2f} s"
        )
