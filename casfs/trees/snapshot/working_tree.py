"""Records a directory as it is now, as a recorded state that no head keeps yet.

This is how everything that records a directory does it: checkpoints, threads, what a restore is
about to overwrite. Only files whose stat changed are read. A path of a known state is never
ignored, whatever the rules say: it was recorded, so its change is a change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from casfs.digest import TreeHash
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import recorded_state, tree
from casfs.trees.dated import DatedTree
from casfs.trees.git.index import TrackedFiles
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import classes, exclusions, policy, stat_cache, walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.properties import preserved_names
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.tracked_rules import TrackedRules

AS_BEFORE = "as it was before"


def record(
    store: Store,
    directory: Path,
    known: Collection[RecordedState],
    report: SnapshotReport | None = None,
    options: SnapshotOptions | None = None,
) -> RecordedState:
    """Stores what `directory` holds now, with every path of the states `known`, whose properties
    are preserved. Raises NotFound (the directory), Failed, Refused."""
    report = report or SnapshotReport()
    options = options or SnapshotOptions()
    # With the scanner of a checkpoint, so that the rows of its stat cache serve here, too.
    options.scanner = policy.load(store).scanner()
    rules = exclusions.ignore_rules(store, directory, report)
    if known:
        # What they kept of modes and times is to be compared, and to be had back.
        roots = [state.full for state in known]
        options.preserve = preserved_names(store, *roots)
    for state in known:
        rules = TrackedRules(rules, store, state)
    base = next(iter(known), None)
    with store.batch() as batch:
        return snapshot(
            store,
            batch,
            directory,
            rules,
            report=report,
            options=options,
            earlier=Earlier(base),
        )


class Earlier(NamedTuple):
    """What is known of a directory before a snapshot. `base`: what it held; `known`: what a restore
    made of it: what was private in that stays private. `tracked`: what git tracks there, as it was
    read with the directory. `tracked_at_start`: of the workspace of a thread, what git tracked when
    that began: what was private in `base` stays so, too, as an agent may have had git track it."""

    base: RecordedState | None = None
    known: RecordedState | None = None
    tracked: TrackedFiles | None = None
    tracked_at_start: TrackedFiles | None = None


NOTHING_EARLIER = Earlier()


def snapshot(
    store: Store,
    batch: Batch,
    directory: Path,
    rules: IgnoreRules,
    report: SnapshotReport,
    options: SnapshotOptions,
    earlier: Earlier = NOTHING_EARLIER,
) -> RecordedState:
    """Stores what `rules` leave of a directory. The batch is committed, but for the heads that it
    moves."""
    cache = stat_cache.load(store, directory, rules=rules, variant=options.variant)
    # Only its rows are dropped: what is read is to be remembered.
    if options.verify:
        cache.rows.clear()
    encoded = walker.snapshot(batch, directory, rules, report, options=options, cache=cache)
    full = encoded.dated
    state = divide(store, batch, full, directory, report=report, earlier=earlier)
    # Last: until `divide` has committed, the nodes that the rows name are not in the store.
    cache.save()
    return state


def divide(
    store: Store,
    batch: Batch,
    full: DatedTree,
    directory: Path,
    report: SnapshotReport,
    earlier: Earlier = NOTHING_EARLIER,
    *,
    is_partial: bool = False,
) -> RecordedState:
    """Returns the state of a directory of which a snapshot made the tree `full` and `report`, in
    this batch. `is_partial`: only what has changed since the earlier `base` was looked at and
    reported. Raises Invalid for a damaged git index."""
    base = earlier.base
    # From here to `Batch.settle` all is stored with the mark of local blobs: whatever ends this
    # early shows nothing of it. Committed, the tree can be read; no head leads to it yet.
    batch.begin_local()
    batch.commit()
    base_private: tree.Entries = {}
    if base is not None and (is_partial or earlier.tracked_at_start is not None):
        base_private = _private_before(store, base)
    if is_partial:
        _report_unchanged(store, full.tree, before=base_private, report=report)
    settings = policy.load(store)
    rules = IgnoreRules(work=settings.work)
    # Before `classes.settle`: a file whose only findings are allowed is not private for them.
    _drop_allowed(report, settings.allowed_lines)
    tracked = earlier.tracked_at_start or earlier.tracked or TrackedFiles(directory, above=True)
    # Without git a file that was recorded as work, with this content, stays work.
    is_known_work = partial(_is_known_work, store, base, full.tree)
    reasons, private_by_content = classes.settle(
        report,
        tracked,
        rules,
        private_before=_stays_private(store, earlier, base_private),
        is_known_work=is_known_work,
    )
    base_tree = None if base is None else base.tree
    state = recorded_state.divide(
        store, batch, full, reasons, base=base_tree, kept=private_by_content
    )
    batch.commit()
    # Takes effect with the commit that moves the caller's head: whatever ends this before leaves
    # all of it hidden. `work` is a pair of hashes, tree and times, of which the latter may be None.
    batch.settle(filter(None, state.work))
    return state


def _stays_private(store: Store, earlier: Earlier, base_private: tree.Entries) -> tree.Entries:
    """Returns what stays private although git may track it by now."""
    # Of a checkpoint git says anew what is private; in a thread an agent's `git add` must not.
    entries = {} if earlier.tracked_at_start is None else base_private
    # What a restore has made here as private was private when it was recorded.
    if earlier.known is not None:
        entries = entries | _private_before(store, earlier.known)
    return entries


def _private_before(store: Store, base: RecordedState) -> dict[bytes, Entry]:
    return dict(recorded_state.local_paths(store, base.tree, base.full))


def _is_known_work(store: Store, base: RecordedState | None, full: TreeHash, path: bytes) -> bool:
    """Whether the file at a path was recorded as work with the content that it has now: in the work
    of `base` it is as in the tree `full`, and it has no mark of local blobs. Such a file stays work
    though the scanner finds a secret in it."""
    if base is None:
        return False
    known = tree.find(store, base.tree, path)
    entry = tree.find(store, full, path)
    if not isinstance(known, File) or not isinstance(entry, File) or known.digest != entry.digest:
        return False
    return not store.blobs.local_among([entry.digest.hash])


def _drop_allowed(report: SnapshotReport, allowed_lines: Mapping[bytes, Collection[int]]) -> None:
    """Drops findings in lines that a person has allowed."""
    for path, lines in allowed_lines.items():
        hits = report.findings.pop(path, ())
        kept = tuple(hit for hit in hits if hit.line not in lines)
        if kept:
            report.findings[path] = kept


def _report_unchanged(
    store: Store, full: TreeHash, before: tree.Entries, report: SnapshotReport
) -> None:
    """Adds to the report what was only in the local tree before and is as it was; a derived
    directory is one whatever has changed in it."""
    for path, entry in before.items():
        current = tree.find(store, full, path)
        if isinstance(entry, Subdirectory) and isinstance(current, Subdirectory):
            report.derived.setdefault(path, AS_BEFORE)
        elif current == entry:
            report.private.setdefault(path, AS_BEFORE)


def snapshot_paths(
    store: Store,
    directory: Path,
    rules: IgnoreRules,
    options: SnapshotOptions,
    *,
    report: SnapshotReport | None = None,
) -> DatedTree:
    """Stores what `rules` leave of a directory as one tree, whatever is work in it. It is only
    compared, and no head keeps it."""
    cache = stat_cache.load(store, directory, rules=rules, variant=options.variant)
    if options.verify:
        cache.rows.clear()
    with store.batch() as batch:
        root = walker.snapshot(batch, directory, rules, report, options=options, cache=cache)
    # What is new of it stays local: `Snapshot.take` has begun the batch so, and nothing has settled
    # what is work.
    cache.save()
    return root.dated
