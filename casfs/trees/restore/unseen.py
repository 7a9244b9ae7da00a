"""What a restore of a tree must not delete though the tree lacks it: what the tree says nothing of,
since the look that made it would have left it out; and objects of git.

A tree does not say by which rules it was made. So repositories and derived directories that it
lacks count as left out, with what its own `.casfsignore` names; and so does what the directory
leaves out now: a restore knows of it only because somebody has recorded it by other rules.
"""

from __future__ import annotations

from pathlib import Path

from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.git import repository_state
from casfs.trees.git.repository_paths import RepositoryPaths
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


def objects_of_git(store: Store, current: TreeHash, goal: TreeHash) -> list[bytes]:
    """Returns the files with objects that `current` has and `goal` does not, of repositories that
    both have. A commit made since may need them, and git deletes what nothing needs. Raises
    NotFound, Corrupt."""
    git = RepositoryPaths(store, [current, goal])
    paths = []
    for change in tree.changes(store, current, goal):
        top = git.of(change.path) if change.new is None else None
        is_object = top is not None and repository_state.is_object(change.path[len(top) + 1 :])
        if top is not None and is_object and tree.find(store, goal, top) is not None:
            paths.append(change.path)
    return paths
