"""Compares a directory with the tree that it is known to hold.

The directory is recorded as a tree that no head keeps, as `jj` does: only files whose stat changed
are read, what is compared is two trees, and what must not be lost can be made a checkpoint at
once. A path of the known tree is never ignored, whatever the rules say: it was recorded, so its
change is a change.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from casfs.digest import TreeHash
from casfs.store import Store
from casfs.trees import tree
from casfs.trees.snapshot import exclusions, stat_cache, walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.properties import preserved_names
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.tracked_rules import TrackedRules
from casfs.trees.tree import Change


def local_changes(store: Store, base: TreeHash, directory: Path) -> list[Change]:
    """Returns what differs in `directory` from the tree `base`, in path order. Raises as
    `record`."""
    found = record(store, directory, base)
    return list(tree.changes(store, base, found))


def record(
    store: Store,
    directory: Path,
    base: TreeHash | None,
    report: SnapshotReport | None = None,
    options: SnapshotOptions | None = None,
) -> TreeHash:
    """Stores the tree that `directory` holds now, without a head; properties are preserved as in
    `base`. Raises NotFound (the directory), Failed (an unreadable file), Refused."""
    roots = [] if base is None else [base]
    return record_all(store, directory, roots, report or SnapshotReport(), options)


def record_all(
    store: Store,
    directory: Path,
    roots: Collection[TreeHash],
    report: SnapshotReport,
    options: SnapshotOptions | None = None,
    *,
    verify: bool = False,
) -> TreeHash:
    """As `record`, with every path of the trees `roots`. `verify`: read every file."""
    rules = exclusions.ignore_rules(store, directory, report)
    options = options or SnapshotOptions()
    if roots:
        options.preserve = preserved_names(store, *roots)
    return snapshot(store, directory, rules, report, options, roots, verify=verify)


def snapshot(
    store: Store,
    directory: Path,
    rules: IgnoreRules,
    report: SnapshotReport,
    options: SnapshotOptions,
    roots: Collection[TreeHash] = (),
    *,
    verify: bool = False,
) -> TreeHash:
    """Stores what `rules` leave of a directory as a tree, with every path of the trees `roots`."""
    cache = stat_cache.load(store, directory, rules, ",".join(sorted(options.preserve)))
    if cache is not None and verify:
        cache.rows.clear()
    for known in roots:
        rules = TrackedRules(rules, store, known)
    with store.batch() as batch:
        root = walker.snapshot(batch, directory, rules, report, options=options, cache=cache)
    if cache is not None:
        cache.save()
    return root.hash
