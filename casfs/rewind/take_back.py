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
from casfs.rewind import write_undone
from casfs.rewind.undo_calls import Undone, undo_calls
from casfs.sessions.session_steps import INTERRUPTED, CallRecord
from casfs.store.nodes.directory import Subdirectory
from casfs.store.store import Store
from casfs.system.files import os_errors
from casfs.trees import tree
from casfs.trees.git.repository_paths import RepositoryPaths
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.options import RestoreOptions, RestoreResult
from casfs.trees.restore.target import Target
from casfs.trees.restore.write import Progress
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot import tracked


@dataclass(frozen=True)
class Reversal:
    """What taking back `operation` would do, or, with `is_again`, doing it once more. `store`: in
    which its trees are, a view of the store until it is done; `written`: what is overwritten."""

    store: Store
    directory: Path
    operation: Operation
    is_again: bool
    undone: Undone
    written: Operation


def do(
    store: Store, planned: Reversal, actor: str, progress: Progress | None = None
) -> RestoreResult | None:
    """Does what was planned; notes it in the log. None where nothing was to be written. Raises
    Conflict where a path that is to be written has changed since; Refused, Failed."""
    operation = planned.operation
    done = None
    if planned.undone.changed:
        verb = Verb.REDO if planned.is_again else Verb.UNDO
        intent = Intent(verb, f"{operation.number}", actor, operation.number)
        options = RestoreOptions(
            force=True, leaves_out_failed=True, operation=intent, progress=progress
        )
        done = write_undone.write(store, planned.store, planned.directory, planned.undone, options)
    elif planned.undone.conflicts:
        return None  # it can be taken back once these files are out of the way
    if done is not None and done.failed:
        return done  # the next undo, or redo, does the rest
    stays = len(planned.undone.conflicts)
    operations.mark(store, operation, is_taken_back=not planned.is_again, stays=stays)
    target = Target(store, planned.directory)
    if operation.bases:
        target.reset_base(operation.bases["after" if planned.is_again else "before"])
    if not operation.is_done:
        with os_errors(f"cannot delete what is left of operation {operation.number}"):
            target.delete_temporary([operation.before.tree, operation.after.tree])
    return done


def plan(store: Store, directory: Path, operation: Operation, *, is_again: bool) -> Reversal:
    """Returns what would be done, and stores nothing. Raises NotFound where gc has deleted what the
    operation is to give back; Failed, Refused."""
    scratch = ScratchStore(store)
    written = operations.log_of(store, directory).to_take_back(operation, is_again=is_again)
    before, after = (RecordedState.of_tree(side) for side in (written.before, written.after))
    if is_again and written == operation:
        before, after = after, before
    sides = [before.tree, after.tree]
    if set(sides) - scratch.blobs.info(sides).keys():
        raise NotFound(f"operation {operation.number}: what it wrote is not in this store any more")
    whole = _looked_at_whole(scratch, before=before.tree, after=after.tree)
    seen = tracked.snapshot_tracked(scratch, directory, sides, whole=whole)
    overwriting = CallRecord(
        step=0,
        number=0,
        id="",
        tool=written.verb.value,
        arguments="",
        status="completed" if written.is_done else INTERRUPTED,
        reported_ms=0,
        before=before,
        after=after,
    )
    undone = undo_calls(scratch, seen.tree, [overwriting])
    undone.conflicts |= undone.kept  # all of it is the operation's
    return Reversal(
        scratch, directory, operation, is_again=is_again, undone=undone, written=written
    )


def _looked_at_whole(store: Store, before: TreeHash, after: TreeHash) -> set[bytes]:
    """Returns the directories in which not the written paths alone count: repositories, and those
    in whose place a file is to come again, which may hold another one by now."""
    paths = {path for side in (before, after) for path, _ in tree.walk(store, side)}
    git = RepositoryPaths(store, [before, after])
    whole = {top for path in paths if (top := git.of(path)) is not None}
    for path, entry in tree.walk(store, before):
        is_file = not isinstance(entry, Subdirectory)
        if is_file and isinstance(tree.find(store, after, path), Subdirectory):
            whole.add(path)
    return whole
