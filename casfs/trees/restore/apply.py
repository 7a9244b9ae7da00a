"""Applies the changes between two trees to a directory: a three-way merge into what it holds.

What is there now is recorded, of the changed paths alone, and merged
(`casfs.trees.diff.merge`). Then each path is made beside its place and renamed over it. Before the
first one the log of the directory has what was there and what is to be there
(`casfs.directories.operations`): what was killed is taken back before the next apply.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from casfs.digest import NodeHash, TreeHash
from casfs.directories import operations
from casfs.directories.operations import (
    PERSON,
    Intent,
    OpenedAt,
    Operation,
    Verb,
    WrittenPaths,
)
from casfs.errors import Failed, NotFound, Refused
from casfs.store.store import Store
from casfs.system import locks
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS, printable
from casfs.trees import dated, recorded_state, tree
from casfs.trees.dated import DatedTree
from casfs.trees.diff import merge
from casfs.trees.diff.merge import Changes, Merged
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import applied_steps
from casfs.trees.restore.incremental import IncrementalRestore, Outcome
from casfs.trees.restore.target import Target, listed
from casfs.trees.restore.write import WriteProgress
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot import tracked
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

PURGED_HERE = "its content here was purged, and could not be recorded; it is as it was"


@dataclass(frozen=True, slots=True)
class Applied:
    """`skipped`: changed paths in `.git`, which are left out; `failed`: paths that are as they
    were, since they could not be written, with the reason; `aside`: to which paths what was changed
    meanwhile was moved; `operation`: its entry in the log of the directory, None where nothing was
    changed."""

    merged: Merged
    skipped: int
    failed: Mapping[bytes, str]
    aside: Mapping[bytes, bytes]
    operation: Operation | None = None


def apply(
    store: Store,
    old: RecordedState,
    new: RecordedState,
    directory: Path,
    *,
    label: str,
    actor: str = PERSON,
    step: NodeHash | None = None,
    check: bool = False,
) -> Applied:
    """Brings what changed from the state `old` to the state `new` to `directory`, in work and in
    private files; conflicts are marked, and named in the result. `label` names the new side in
    markers, and the operation in the log of the directory; `step`: the one that made `new`, which
    the next checkpoint there is to name; `check`: change nothing. Raises NotFound, Refused,
    Conflict (another restore or apply there), Failed."""
    target = Target(store, directory)
    if not target.path.is_dir():
        raise NotFound(f"no directory {directory}")
    with locks.held(store.root, target.lock, target.refuse_to_wait):
        # First in a view of the store: what is only checked, or refused, stores nothing.
        scratch = ScratchStore(store)
        before, after = (recorded_state.with_private(scratch, state) for state in (old, new))
        target.check(new.tree, False, False)
        task = _Apply(store, target, new.work)
        _refuse_interrupted(store, target)
        theirs = merge.changes(scratch, before, after)
        result = _merge(scratch, target, theirs=theirs, old=before, new=after, label=label)
        if step is not None and not check:
            # Before the first write: a kill between would lose it.
            applied_steps.note(store, target.path, step)
        if result.merged.changed and not check:
            for side in (old, new):
                recorded_state.with_private(store, side)
            # What it makes of private files is local; a record of the directory says what is work.
            result = _merge(
                store.local_writes(), target, theirs=theirs, old=before, new=after, label=label
            )
            task.write(result, Intent(Verb.APPLY, label, actor))
            if step is not None:  # again: a look that has begun may have missed what was written
                applied_steps.note(store, target.path, step)
    return Applied(
        result.merged,
        theirs.skipped,
        failed=task.failed,
        aside=task.aside,
        operation=task.operation,
    )


def _refuse_interrupted(store: Store, target: Target) -> None:
    """Raises Refused where the last thing done there is an apply that was killed: what is there is
    neither what was before nor what was to be."""
    newest = next(iter(operations.log_of(store, target.path).operations), None)
    if newest is None or newest.is_done or newest.is_taken_back or newest.verb is not Verb.APPLY:
        return
    raise Refused(
        f"{target}: an apply of {newest.argument} was interrupted; take it back (`casfs undo`), or"
        " do all of it (then `casfs redo`), and run this again"
    )


@dataclass(frozen=True, slots=True)
class _MergeHere:
    """`ours`: the changed paths, as they are in the directory."""

    ours: DatedTree
    merged: Merged


def _merge(
    store: Store, target: Target, theirs: Changes, old: TreeHash, new: TreeHash, label: str
) -> _MergeHere:
    """Raises Refused where conflicts of a former apply are not resolved."""
    sides = [
        merge.partial_tree(store, theirs.old, old),
        merge.partial_tree(store, theirs.new, new),
    ]
    report = SnapshotReport()
    # Where a file takes the place of a directory, all that is in that counts.
    above = {parent for path in theirs.old for parent in tree.parents(path)}
    whole = theirs.new.keys() & above
    options = SnapshotOptions(must_be_whole=True)  # what is not seen would be taken for deleted
    ours = tracked.snapshot_tracked(store, target.path, sides, options, report=report, whole=whole)
    theirs, refused = _without_purged(theirs, report.purged)
    merged = merge.merge(store, theirs, ours=ours.tree, like=new, label=label)
    merged.conflicts = sorted([*merged.conflicts, *refused])
    if merged.unresolved:
        raise Refused(
            f"{target}: conflicts of a former apply are not resolved:"
            f" {listed(merged.unresolved)}; edit the marked lines, and run this again"
        )
    return _MergeHere(ours, merged)


def _without_purged(
    theirs: Changes, purged: Collection[bytes]
) -> tuple[Changes, list[tuple[bytes, str]]]:
    """Leaves out what would overwrite or delete a file whose content was purged: nothing could
    give it back. Returns the rest, and the conflicts."""
    if not purged:
        return theirs, []
    above = tuple(path + b"/" for path in purged)
    blocked = {path for path in theirs.paths if (path + b"/").startswith(above)}
    old, new = (
        {path: entry for path, entry in side.items() if path not in blocked}
        for side in (theirs.old, theirs.new)
    )
    return replace(theirs, old=old, new=new), [(path, PURGED_HERE) for path in sorted(blocked)]


class _Apply:
    def __init__(self, store: Store, target: Target, source: DatedTree) -> None:
        """`source`: in whose recorded order files are written."""
        self._store = store
        self._target = target
        self._source = source
        self.failed: dict[bytes, str] = {}
        self.aside: dict[bytes, bytes] = {}
        self.operation: Operation | None = None

    def write(self, result: _MergeHere, intent: Intent) -> None:
        operation = self._begin(result.ours, result.merged.root, intent)
        outcome = self._write(result.ours.tree, result.merged.root)
        self.failed |= outcome.not_written(change.path for change in result.merged.changed)
        self.aside = outcome.aside
        self.operation = operations.conclude(self._store, operation, left=len(self.failed))

    def _begin(self, ours: DatedTree, merged: TreeHash, intent: Intent) -> Operation:
        fd = os.open(self._target.path, DIR_FLAGS)
        with closing_fd(fd), self._store.local_writes().batch() as batch:
            times = dated.times_for(self._store, batch, tree=merged, source=self._source)
            written = WrittenPaths(ours, DatedTree(merged, times))
            opened = OpenedAt(self._target.path, fd)
            return operations.begin(self._store, batch, intent, opened, written)

    def _write(self, old: TreeHash, new: TreeHash) -> Outcome:
        progress = WriteProgress(failed=self.failed)
        fd = os.open(self._target.path, DIR_FLAGS)
        try:
            task = IncrementalRestore(
                self._store,
                self._target.staging.encode(),
                progress,
                mount_points=self._target.mount_points(),
            )
            task.directory(fd, b"", [old], new)
            task.date(fd, self._source)
        except OSError as error:
            where = printable(b"/".join(progress.path))
            raise Failed(f"cannot write {self._target}/{where}: {error.strerror}") from error
        finally:
            os.close(fd)
        return task.outcome
