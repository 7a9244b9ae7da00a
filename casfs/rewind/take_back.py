"""Takes back an operation of a directory, or does it once more; what was changed since stays.

Only the paths that the operation wrote are looked at. Where one is as the operation left it, it
becomes what it was before; a text that was changed since is merged by lines; all else stays and is
named (`casfs.rewind.undo_calls`). So an operation that was interrupted is taken back like any
other: each of its paths is as before or as after.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from casfs.digest import TreeHash
from casfs.directories import operations
from casfs.directories.operations import Intent, Operation, Verb
from casfs.errors import NotFound
from casfs.rewind.undo_calls import Undone, undo_calls
from casfs.sessions.session_steps import CallRecord
from casfs.store.store import Store
from casfs.system.files import os_errors
from casfs.trees import tree
from casfs.trees.git.repository_state import repository_of
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.options import RestoreOptions, RestoreResult
from casfs.trees.restore.restore import restore
from casfs.trees.restore.target import Target
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot import tracked
from casfs.trees.snapshot.report import SnapshotOptions


@dataclass(frozen=True)
class Reversal:
    """What taking back `operation` would do, or, with `is_again`, doing it once more. `store`: in
    which its trees are, a view of the store until it is done."""

    store: Store
    directory: Path
    operation: Operation
    is_again: bool
    current: TreeHash
    undone: Undone


def plan(store: Store, directory: Path, operation: Operation, *, is_again: bool) -> Reversal:
    """Returns what would be done, and stores nothing. Raises NotFound where gc has deleted what the
    operation is to give back; Failed, Refused."""
    return _plan(ScratchStore(store), directory, operation, is_again=is_again)


def do(store: Store, planned: Reversal, actor: str) -> RestoreResult | None:
    """Does what was planned, in the directory as it is now; notes it in the log. None where nothing
    was to be written. Raises as `plan`, and Conflict where another command writes there."""
    operation = planned.operation
    reversal = _plan(store.local_writes(), planned.directory, operation, is_again=planned.is_again)
    done = None
    if reversal.undone.changed:
        verb = Verb.REDO if planned.is_again else Verb.UNDO
        intent = Intent(verb, f"{operation.number}", actor, operation.number)
        options = RestoreOptions(
            base=reversal.current, force=True, leaves_out_failed=True, operation=intent
        )
        done = restore(store, reversal.undone.state, planned.directory, options)
    elif reversal.undone.conflicts:
        return None  # it can be taken back once these files are out of the way
    operations.mark(store, operation, is_taken_back=not planned.is_again)
    target = Target(store, planned.directory)
    if operation.bases:
        target.reset_base(operation.bases["after" if planned.is_again else "before"])
    if not operation.is_done:
        with os_errors(f"cannot delete what is left of operation {operation.number}"):
            target.delete_temporary([operation.before.tree, operation.after.tree])
    return done


def _plan(store: Store, directory: Path, operation: Operation, *, is_again: bool) -> Reversal:
    before, after = (RecordedState.of_tree(side) for side in (operation.before, operation.after))
    if is_again:
        before, after = after, before
    missing = {before.tree, after.tree} - store.blobs.info([before.tree, after.tree]).keys()
    if missing:
        raise NotFound(f"operation {operation.number}: what it wrote is not in this store any more")
    options = SnapshotOptions(leaves_out_unreadable=True)
    sides = [before.tree, after.tree]
    paths = (path for side in sides for path, _ in tree.walk(store, side))
    repositories = {top for path in paths if (top := repository_of(path)) is not None}
    seen = tracked.snapshot_tracked(store, directory, sides, options, whole=repositories)
    overwriting = CallRecord(
        step=0,
        number=0,
        id="",
        tool=operation.verb.value,
        arguments="",
        status="completed",
        reported_ms=0,
        before=before,
        after=after,
    )
    undone = undo_calls(store, RecordedState.of_tree(seen), [overwriting], looks=False)
    return Reversal(store, directory, operation, is_again, seen.tree, undone)
