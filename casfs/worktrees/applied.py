"""What a project has of a worktree: what was applied, and was not taken back since.

By `casfs undo` or by git: then the worktree is the only one that has the change, which must be
brought again by the next apply, and not be lost by `rm`. Of an undo the project's log of operations
tells; git leaves a file exactly as it was before the apply. What a person has changed otherwise
since then is a decision, and so is how a conflict was resolved: it stands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from casfs import canonical
from casfs.digest import TreeHash
from casfs.directories import operations
from casfs.directories.operations import Operation
from casfs.store.nodes.directory import Entry, Subdirectory
from casfs.store.store import Store
from casfs.trees import edit, recorded_state, tree
from casfs.trees.diff import unified_diff
from casfs.trees.restore.apply import Applied
from casfs.trees.snapshot import tracked
from casfs.worktrees.worktree import Worktree

MAX_RECORD_BYTES = 2000  # of a worktree's applies, in the record of its head; older ones are one


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """What one apply has brought: what changed from the tree `old` to `new`. `operation`: its
    number in the log of the project, None where nothing was written; `marked`, `left`: trees with
    the paths that had a conflict, of which both sides are in the project, or only its own."""

    old: TreeHash
    new: TreeHash
    operation: int | None = None
    marked: TreeHash | None = None
    left: TreeHash | None = None

    @classmethod
    def of_record(cls, fields: Mapping[str, Any]) -> Self:
        return cls(
            TreeHash(fields["old"]),
            TreeHash(fields["new"]),
            fields.get("operation"),
            fields.get("marked"),
            fields.get("left"),
        )

    @property
    def record(self) -> dict[str, Any]:
        fields = {"old": self.old, "new": self.new, "operation": self.operation}
        fields |= {"marked": self.marked, "left": self.left}
        return {name: value for name, value in fields.items() if value is not None}


def with_apply(
    store: Store, worktree: Worktree, done: Applied, old: TreeHash, new: TreeHash
) -> list[dict[str, Any]]:
    """Returns the record of a worktree's applies with one that brought what changed from `old` to
    `new`."""
    written: set[bytes] = set()
    if done.operation is not None:
        written = set(_written(store, done.operation))
    conflicts = {path for path, _ in done.merged.conflicts}
    last = AppliedChanges(
        old,
        # What could not be written is not noted as brought: its only copy may be here.
        with_paths_of(store, new, old, done.failed.keys()),
        None if done.operation is None else done.operation.number,
        marked=_names(store, conflicts & written),
        left=_names(store, conflicts - written),
    )
    applies = [*applies_of(worktree), last]
    while True:
        records = [changes.record for changes in applies]
        if len(applies) == 1 or len(canonical.encode(records)) <= MAX_RECORD_BYTES:
            return records
        applies[:2] = [_as_one(store, *applies[:2])]


def _as_one(store: Store, first: AppliedChanges, second: AppliedChanges) -> AppliedChanges:
    """What neither has brought stays known: its only copy may be in the worktree."""
    left = _paths_in(store, first.left) | _paths_in(store, second.left)
    return AppliedChanges(first.old, second.new, left=_names(store, left))


def _names(store: Store, paths: Collection[bytes]) -> TreeHash | None:
    if not paths:
        return None
    with store.local_writes().batch() as batch:
        return edit.of_names(store, batch, paths).hash


def _paths_in(store: Store, root: TreeHash | None) -> set[bytes]:
    entries = () if root is None else tree.walk(store, root)
    return {path for path, entry in entries if not isinstance(entry, Subdirectory)}


def applies_of(worktree: Worktree) -> list[AppliedChanges]:
    return [AppliedChanges.of_record(fields) for fields in worktree.applies]


def base(store: Store, worktree: Worktree, *, with_left: bool = True) -> TreeHash:
    """Returns the tree since which changes in a worktree are its own. `with_left`: without the
    conflicts of which the project has its own side alone. Raises Failed."""
    began = recorded_state.with_private(store, worktree.workspace.recorded)
    if not worktree.applies or not worktree.project.is_dir():
        return began
    log = operations.log_of(store, worktree.project)
    numbered = {operation.number: operation for operation in log.operations}
    root = began
    standing: list[Operation] = []
    decided: set[bytes] = set()
    left: dict[bytes, AppliedChanges] = {}
    for changes in applies_of(worktree):
        operation = None if changes.operation is None else numbered.get(changes.operation)
        if operation is not None and operation.is_taken_back:
            continue
        paths = {change.path for change in tree.changes(store, changes.old, changes.new)}
        root = with_paths_of(store, root, changes.new, paths)
        left |= dict.fromkeys(_paths_in(store, changes.left), changes)
        if operation is not None:
            standing.append(operation)
            decided = (decided - paths) | _paths_in(store, changes.marked)
    gone = _not_there(store, worktree, standing, is_removal=not with_left) - decided
    if not with_left:
        gone |= _not_taken(store, worktree, left)
    return with_paths_of(store, root, began, gone)


def _written(store: Store, operation: Operation) -> Iterable[bytes]:
    for change in tree.changes(store, operation.before.tree, operation.after.tree):
        yield change.path


def _not_there(
    store: Store, worktree: Worktree, standing: list[Operation], *, is_removal: bool
) -> set[bytes]:
    """Returns the paths that are exactly as before one of the operations that wrote them. For a
    removal also those that have nothing of what it brought: `git checkout` has written a version
    that is older than both."""
    if not standing:
        return set()
    sides = [side.tree for operation in standing for side in (operation.before, operation.after)]
    ours = tracked.snapshot_tracked(store, worktree.project, sides).tree
    gone = set()
    later: set[bytes] = set()
    for operation in reversed(standing):
        for path in _written(store, operation):
            before, after = (
                tree.find(store, side.tree, path) for side in (operation.before, operation.after)
            )
            entry = tree.find(store, ours, path)
            is_last = is_removal and path not in later
            if tree.is_same(store, entry, before) or (
                is_last and _is_without(store, entry, before, after)
            ):
                gone.add(path)
            later.add(path)
    return gone


def _is_without(
    store: Store, entry: Entry | None, before: Entry | None, after: Entry | None
) -> bool:
    """Whether a text has nothing of what changed from `before` to `after`."""
    texts = [unified_diff.text_lines(store, side) for side in (entry, before, after)]
    if any(isinstance(text, str) for text in texts):
        return False
    present, old, new = map(set, texts)
    return present.isdisjoint(new - old) if new - old else present >= old - new


def _not_taken(
    store: Store, worktree: Worktree, left: Mapping[bytes, AppliedChanges]
) -> set[bytes]:
    """Returns the paths with a conflict where the project is not as the worktree was."""
    names = _names(store, left)
    if names is None:
        return set()
    ours = tracked.snapshot_tracked(store, worktree.project, [names]).tree
    return {
        path
        for path, changes in left.items()
        if not tree.is_same(
            store, tree.find(store, ours, path), tree.find(store, changes.new, path)
        )
    }


def with_paths_of(
    store: Store, root: TreeHash, other: TreeHash, paths: Collection[bytes]
) -> TreeHash:
    """Returns a tree in which these paths are as in the tree `other`."""
    if not paths:
        return root
    entries = {path: tree.find(store, other, path) for path in paths}
    with store.local_writes().batch() as batch:
        return edit.with_entries(store, batch, root, changes=entries, like=other).hash
