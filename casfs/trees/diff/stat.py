"""Diff statistics: lines added and deleted, and sizes, path by path.

The same files have lines here as in `casfs.trees.diff.unified_diff`; the others have sizes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from casfs.store.nodes.directory import Entry, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.diff import lines as textdiff
from casfs.trees.diff import unified_diff
from casfs.trees.tree import Change


@dataclass(frozen=True, slots=True)
class PathStat:
    """`lines`: (added, deleted); None for binary and large files, and directories.
    `modes`: the permissions, where they differ."""

    change: Change
    lines: tuple[int, int] | None
    old_bytes: int
    new_bytes: int
    modes: tuple[int, int] | None


def path_stats(store: Store, changes: Iterable[Change]) -> Iterator[PathStat]:
    for change in changes:
        old = unified_diff.text_lines(store, change.old)
        new = unified_diff.text_lines(store, change.new)
        lines = None
        if not isinstance(old, str) and not isinstance(new, str):
            lines = textdiff.counts(old, new)
        modes = tree.changed_modes(store, change)
        yield PathStat(
            change, lines, old_bytes=_size(change.old), new_bytes=_size(change.new), modes=modes
        )


def _size(entry: Entry | None) -> int:
    if entry is None or isinstance(entry, Subdirectory):
        return 0
    return len(entry.target) if isinstance(entry, Symlink) else entry.digest.size_bytes
