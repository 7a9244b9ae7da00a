"""Commits a workspace: stores what it holds as a tree and moves its head there.

Left out is what `.casfsignore` names, of what the last commit did not have; nothing by default: a
workspace began as a tree, and all that is new in it was made there.

A commit does not change base and upper: concurrent writes go into the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from casfs.backend.protocols import Head
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import create_from_root
from casfs.digest import TreeDigest, TreeHash
from casfs.store import Store
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules, invalid_patterns_named, read_patterns
from casfs.trees.snapshot.properties import preserved_names
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.tracked_rules import TrackedRules
from casfs.workspaces import overlay_snapshot, placeholder, registry
from casfs.workspaces.registry import Workspace
from casfs.write_batch import Batch


@dataclass(frozen=True, slots=True)
class Committed:
    """`checkpoint` is None for a workspace without a name, and where nothing had changed."""

    root: TreeHash
    checkpoint: Checkpoint | None
    report: SnapshotReport


def commit_workspace(store: Store, workspace: Workspace, message: str = "") -> Committed:
    """Store what the workspace holds and move its head there; one that was opened from a
    checkpoint creates another of that name.

    Raises Refused (read-only, files in a placeholder), Conflict (a concurrent commit), Failed.
    """
    registry.check_writable(workspace)
    placeholder.check(workspace)
    report = SnapshotReport()
    with store.batch() as batch:
        root = snapshot(store, batch, workspace, report).hash
        if root == workspace.root:
            return Committed(root, None, report)
        batch.commit()  # from here on the new tree can be compared; no head leads to it yet
        made, values = None, dict(workspace.record)
        if values["name"] is not None:
            base = values["checkpoint"]
            made = create_from_root(store, batch, values["name"], base, root, message)
            values["checkpoint"] = made.hash
        batch.swap(registry.head_name(workspace.id), workspace.head, Head(root, values))
    return Committed(root, made, report)


def is_dirty(store: Store, workspace: Workspace) -> bool:
    """Returns whether there are uncommitted changes."""
    strategy = workspace.strategy
    if workspace.record["readOnly"]:
        return False
    if not (workspace.upper if strategy.layered else workspace.path).exists():
        return False
    with store.batch() as batch:
        return snapshot(store, batch, workspace, SnapshotReport()).hash != workspace.root


def snapshot(
    store: Store, batch: Batch, workspace: Workspace, report: SnapshotReport
) -> TreeDigest:
    """Store the tree that the workspace holds now; returns its root. Raises Invalid for a pattern
    in its `.casfsignore`."""
    base, strategy, path = workspace.record["base"], workspace.strategy, workspace.path

    def rules(patterns: bytes) -> IgnoreRules:
        with invalid_patterns_named(path):
            return TrackedRules(IgnoreRules(patterns), store, workspace.root)

    if strategy.layered:
        return overlay_snapshot.snapshot(
            store, batch, base, workspace.upper, report, strategy.markers, rules=rules
        )
    options = SnapshotOptions(preserve=preserved_names(store, base))
    return walker.snapshot(batch, path, rules(read_patterns(path)), report, options=options)
