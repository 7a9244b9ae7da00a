"""How much differs between two trees, path by path: lines where there are lines, bytes.

The same files have lines here as in `casfs.trees.diff.patch`; of the others only the sizes are
known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from casfs.nodes.directory import Entry, Subdirectory, Symlink
from casfs.store import Store
from casfs.trees.diff import lines as textdiff
from casfs.trees.diff import patch
from casfs.trees.tree import Change


@dataclass(frozen=True, slots=True)
class Row:
    """`lines`: how many were added and deleted, None where there are none to count."""

    change: Change
    lines: tuple[int, int] | None
    old_bytes: int
    new_bytes: int


def rows(store: Store, changes: Iterable[Change]) -> Iterator[Row]:
    for change in changes:
        old, new = patch.text(store, change.old), patch.text(store, change.new)
        lines = None
        if not isinstance(old, str) and not isinstance(new, str):
            lines = textdiff.counts(old, new)
        yield Row(change, lines, _size(change.old), _size(change.new))


def _size(entry: Entry | None) -> int:
    if entry is None or isinstance(entry, Subdirectory):
        return 0
    return len(entry.target) if isinstance(entry, Symlink) else entry.digest.size_bytes
