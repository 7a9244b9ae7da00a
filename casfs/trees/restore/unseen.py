"""What a tree says nothing of, since the look that made it would have left it out, whether it was
there or not: a restore of the tree must not delete it.

A tree does not say by which rules it was made. So repositories and derived directories that it
lacks count as left out, with what its own `.casfsignore` names; and so does what the directory
leaves out now: a restore knows of it only because somebody has recorded it by other rules.
"""

from __future__ import annotations

from pathlib import Path

from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.trees.snapshot import ignore, policy
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.tracked import Unseen


def of_restore(store: Store, root: TreeHash, directory: Path) -> Unseen:
    """Returns that of the tree `root`, which is to be restored to a directory. Raises Invalid,
    Failed where its `.casfsignore` cannot be read."""
    settings = policy.load(store)
    patterns = ignore.patterns_of(store, root)
    with ignore.invalid_patterns_named(directory):
        rules_here = IgnoreRules(ignore.read_patterns(directory))
    return Unseen(root, [IgnoreRules(patterns, defaults=True, work=settings.work), rules_here])
