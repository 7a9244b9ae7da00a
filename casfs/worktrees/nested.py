"""Repositories inside a worktree: submodules, which have one of their own there, and clones. What
the outer repository says of a path does not hold in them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from casfs.digest import TreeHash
from casfs.store.nodes.directory import Subdirectory
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.git.index import GIT

GIT_NAME = os.fsencode(GIT)
STATES = (b"HEAD", b"packed-refs", b"refs")  # that say which commits a repository has


def is_of_top(store: Store, root: TreeHash, path: bytes) -> bool:
    """Returns whether a path of the tree is in its outer repository: in no inner one, and not below
    a link or a file."""
    parts = path.split(b"/")
    for length in range(1, len(parts)):
        above = b"/".join(parts[:length])
        entry = tree.find(store, root, above)
        if entry is None:
            continue
        if not isinstance(entry, Subdirectory):
            return False
        if tree.find(store, root, above + b"/" + GIT_NAME) is not None:
            return False
    return True


def changed(store: Store, old: TreeHash, new: TreeHash) -> Iterator[bytes]:
    """Yields the inner repositories whose commits or branches differ between two trees."""
    repositories: set[bytes] = set()
    for change in tree.changes(store, old, new):
        above, git, below = (b"/" + change.path).partition(b"/" + GIT_NAME + b"/")
        if git and below.split(b"/")[0] in STATES and above not in repositories:
            repositories.add(above)
            yield above[1:]
