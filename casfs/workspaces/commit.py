"""Commits a workspace: stores what it holds as a tree and moves its head there.

Left out is what `.casfsignore` names, of what the last commit did not have; derived directories
are kept here only: a workspace began as a tree, and all that is new in it was made there.

A commit does not change base and upper: concurrent writes go into the next one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from casfs.backend.protocols import Head
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import create_from_base
from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import tree
from casfs.trees.git.index import GIT
from casfs.trees.recorded_state import FIELDS, RecordedState
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot import policy, walker, working_tree
from casfs.trees.snapshot.ignore import IgnoreRules, invalid_patterns_named, read_patterns
from casfs.trees.snapshot.properties import preserved_names
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.tracked_rules import TrackedRules
from casfs.workspaces import overlay_snapshot, registry
from casfs.workspaces.registry import Workspace


@dataclass(frozen=True, slots=True)
class Committed:
    """`checkpoint` is None for a workspace without a name, and where nothing had changed."""

    root: TreeHash
    checkpoint: Checkpoint | None
    report: SnapshotReport


def commit_workspace(store: Store, workspace: Workspace, message: str = "") -> Committed:
    """Store what the workspace holds and move its head there; one that was opened from a
    checkpoint creates another of that name.

    Raises Refused (read-only), Conflict (a concurrent commit), Failed.
    """
    registry.check_writable(workspace)
    report = SnapshotReport()
    with store.batch() as batch:
        state = snapshot(store, batch, workspace=workspace, report=report)
        root = state.tree
        if state.is_equal(workspace.recorded):
            return Committed(root, checkpoint=None, report=report)
        checkpoint = None
        values = dict(workspace.record)
        values |= {**dict.fromkeys(FIELDS), **state.fields}
        if values["name"] is not None:
            base = values["checkpoint"]
            checkpoint = create_from_base(
                store, batch, name=values["name"], base=base, state=state, message=message
            )
            values["checkpoint"] = checkpoint.hash
        batch.swap(registry.head_name(workspace.id), workspace.head, Head(root, values))
    return Committed(root, checkpoint, report)


def is_dirty(store: Store, workspace: Workspace) -> bool:
    """Returns whether there are uncommitted changes."""
    strategy = workspace.strategy
    if workspace.record["readOnly"]:
        return False
    if not (workspace.upper if strategy.layered else workspace.path).exists():
        return False
    scratch = ScratchStore(store)
    with scratch.batch() as batch:
        report = SnapshotReport()
        state = snapshot(scratch, batch, workspace=workspace, report=report)
        is_equal = state.is_equal(workspace.recorded)
    return not is_equal and not _differs_in_purged_only(
        scratch, workspace, state=state, report=report
    )


def _differs_in_purged_only(
    store: Store, workspace: Workspace, state: RecordedState, report: SnapshotReport
) -> bool:
    """Of what was purged a tree has an entry for its old readers, and no snapshot has one."""
    recorded = workspace.recorded
    purged = {path: tombstone.hash for path, tombstone in tree.missing(store, recorded.full)}
    if not purged:
        return False
    kept = {path for path, hash in purged.items() if report.purged.get(path) == hash}
    return all(change.path in kept for change in tree.changes(store, recorded.full, state.full))


def snapshot(
    store: Store, batch: Batch, workspace: Workspace, report: SnapshotReport
) -> RecordedState:
    """Store what the workspace holds now; the batch is committed, but for the heads that it moves.
    Raises Invalid for a pattern in its `.casfsignore`, Failed for what cannot be read."""
    base = workspace.record["base"]
    strategy = workspace.strategy
    path = workspace.path
    settings = policy.load(store)

    has_git = tree.find(store, workspace.recorded.full, os.fsencode(GIT)) is not None

    def own_rules(patterns: bytes) -> IgnoreRules:
        with invalid_patterns_named(path):
            rules = IgnoreRules(
                patterns,
                defaults=True,
                keeps_derived=True,
                keeps_git=has_git or registry.WORKTREE in workspace.record,
                work=settings.work,
                private=settings.private,
            )
        # A file that leads to the repository of the project, and would lead others there.
        if registry.WORKTREE in workspace.record:
            rules.excluded = {os.fsencode(GIT): "the link to the repository"}
        return rules

    def rules(patterns: bytes) -> IgnoreRules:
        return TrackedRules(own_rules(patterns), store, workspace.recorded)

    if strategy.layered:
        full = overlay_snapshot.snapshot(
            store,
            batch,
            base=workspace.stack.lower,
            upper=workspace.upper,
            report=report,
            marks_by_files=strategy.marks_by_files,
            rules=rules,
            scanner=settings.scanner(),
            view=path if workspace.state == "open" else None,
        )
    else:
        # Else what is left out would count as deleted, and the only copy of it would go by `rm`.
        options = SnapshotOptions(
            preserved_names(store, base), scanner=settings.scanner(), must_be_whole=True
        )
        full = walker.snapshot(
            batch, path, rules=rules(read_patterns(path)), report=report, options=options
        ).dated
    tracked = None
    if has_git:  # of a thread: its repository is recorded as one
        from casfs.trees.git.recorded_index import RecordedTrackedFiles

        tracked = RecordedTrackedFiles(store, workspace.recorded)
    return working_tree.divide(
        store,
        batch,
        full=full,
        directory=path,
        report=report,
        is_partial=strategy.layered,
        earlier=working_tree.Earlier(base=workspace.recorded, tracked_at_start=tracked),
    )
