"""How much of a followed directory is recorded, and what a narrower look at it has seen.

A directory is followed once, for all who record it: a watch, worktrees of it, sessions of agents.
What is read is what the widest of them needs; the others are given a part of that.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import dated, edit
from casfs.trees.dated import DatedTree
from casfs.trees.git.index import GIT
from casfs.trees.snapshot import derived
from casfs.trees.snapshot.classes import is_below
from casfs.trees.snapshot.report import Excluded, SnapshotReport

# What a snapshot reports by path of the directories that it lists, and of no others.
BY_LISTING = (
    "private", "derived", "findings", "purged", "unreadable", "git_files",
)  # fmt: skip


class Extent(NamedTuple):
    """What a wider one reads has all that a narrower one needs. `keeps_derived`: derived
    directories and `.git` are recorded; `keeps_top_git`: so is that of the directory itself;
    `max_bytes`: a look at more is Refused."""

    width: int
    keeps_derived: bool = False
    keeps_top_git: bool = True
    max_bytes: int | None = None


CHECKPOINT = Extent(width=0)
# A worktree has a link to the repository, and no copy of it.
PROJECT = Extent(width=1, keeps_derived=True, keeps_top_git=False)


def of_session(max_bytes: int | None) -> Extent:
    return Extent(width=2, keeps_derived=True, max_bytes=max_bytes)


class Extents:
    """The extents that the users of one directory hold, at most one of each width."""

    def __init__(self) -> None:
        self._by_width = {CHECKPOINT.width: CHECKPOINT}

    @property
    def widest(self) -> Extent:
        return self._by_width[max(self._by_width)]

    def hold(self, extent: Extent) -> None:
        self._by_width[extent.width] = extent

    def release(self, extent: Extent) -> bool:
        """Returns whether it was held: another user may hold one of the same width instead."""
        if extent is CHECKPOINT or self._by_width.get(extent.width) is not extent:
            return False
        del self._by_width[extent.width]
        return True

    def drop_wider(self, extent: Extent) -> bool:
        """Returns whether there were wider ones."""
        wider = [width for width in self._by_width if width > extent.width]
        for width in wider:
            del self._by_width[width]
        return bool(wider)


def narrowed(
    store: Store, batch: Batch, full: DatedTree, seen: SnapshotReport, extent: Extent
) -> tuple[DatedTree, SnapshotReport]:
    """Returns what an extent has of a stored tree `full`, of which a look that was as wide, or
    wider, has reported `seen`; and what a look of its own would have reported."""
    # A copy: the division adds to it what it finds for this extent alone, and drops findings that a
    # setting allows, which may be taken back.
    seen = replace(seen, findings=dict(seen.findings), local={}, exposed={})
    paths = _left_out(seen, extent)
    if not paths:
        return full, seen
    return _without(store, batch, full, paths), _report_without(seen, paths)


def carry_unlisted(
    report: SnapshotReport, seen: SnapshotReport, listed: Collection[bytes], gone: Collection[bytes]
) -> None:
    """Adds to the report of a look what those before it, `seen`, reported of directories that it
    did not list. `gone`: directories that are not there any more."""
    for kind in BY_LISTING:
        entries = getattr(report, kind)
        for path, value in getattr(seen, kind).items():
            directory = (b"/" + path).rpartition(b"/")[0]
            if value == derived.CACHE_TAG.decode():  # its own listing reports that
                directory = b"/" + path
            if directory not in listed and directory not in gone:
                entries.setdefault(path, value)


def _left_out(seen: SnapshotReport, extent: Extent) -> dict[bytes, str]:
    """Returns what the extent does not have, with the reasons."""
    reasons: dict[bytes, str] = {}
    if not extent.keeps_top_git:
        reasons[os.fsencode(GIT)] = derived.GIT  # whatever it is, also a file that leads to one
    if not extent.keeps_derived:
        reasons |= seen.derived
    return {path: why for path, why in reasons.items() if not is_below(path, reasons)}


def _without(store: Store, batch: Batch, full: DatedTree, paths: Collection[bytes]) -> DatedTree:
    """Returns a stored tree without these paths, stored with the mark of local blobs. The batch is
    committed."""
    batch.begin_local()  # until it is decided what of it is work
    batch.commit()  # what is edited is read from the store
    root = edit.with_entries(
        store, batch, root=full.tree, changes=dict.fromkeys(paths), keep_empty=True
    ).hash
    batch.commit()
    return DatedTree(root, dated.times_for(store, batch, tree=root, source=full))


def _report_without(seen: SnapshotReport, paths: Mapping[bytes, str]) -> SnapshotReport:
    """Returns what a look that left out these paths would have reported."""
    kept: dict[str, Any] = {
        kind: {
            path: value
            for path, value in getattr(seen, kind).items()
            if path not in paths and not is_below(path, paths)
        }
        for kind in BY_LISTING
    }
    excluded = [entry for entry in seen.excluded if not is_below(entry.path, paths)]
    known = {entry.path for entry in excluded}
    excluded += [Excluded(path, why) for path, why in paths.items() if path not in known]
    return replace(seen, excluded=excluded, **kept)
