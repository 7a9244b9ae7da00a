"""What a project has of a worktree: what was applied, and is there still.

An apply may be taken back, by `casfs undo` or by git: then the worktree is the only one that has
the change, which must be brought again by the next apply, and not be lost by `rm`. So a path counts
as applied as long as a merge of what was applied would change nothing in the project. A path where
that merge has a conflict counts as applied, too: somebody has changed the same lines since.
"""

from __future__ import annotations

from collections.abc import Collection

from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.trees import edit, recorded_state, tree
from casfs.trees.diff import merge
from casfs.trees.snapshot import tracked
from casfs.worktrees.worktree import Worktree


def base(store: Store, worktree: Worktree) -> TreeHash:
    """Returns the tree since which changes in a worktree are its own. Raises Failed."""
    began = recorded_state.with_private(store, worktree.workspace.recorded)
    applied = worktree.applied
    if applied is None or not worktree.project.is_dir():
        return began
    changes = merge.changes(store, began, applied)
    if not changes.paths:
        return applied
    sides = [
        merge.partial_tree(store, changes.old, like=began),
        merge.partial_tree(store, changes.new, like=applied),
    ]
    ours = tracked.snapshot_tracked(store, worktree.project, sides).tree
    merged = merge.merge(store, changes, ours=ours, like=applied, label="applied")
    decided = {path for path, _ in merged.conflicts}
    brought = {change.path for change in tree.changes(store, ours, merged.root)}
    undone = [path for path in changes.paths if path in brought - decided]
    return with_paths_of(store, applied, began, undone)


def with_paths_of(
    store: Store, root: TreeHash, other: TreeHash, paths: Collection[bytes]
) -> TreeHash:
    """Returns a tree in which these paths are as in the tree `other`."""
    if not paths:
        return root
    entries = {path: tree.find(store, other, path) for path in paths}
    with store.local_writes().batch() as batch:
        return edit.with_entries(store, batch, root, changes=entries, like=other).hash
