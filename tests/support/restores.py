"""Restores of one tree over another, as the tests of `casfs.trees.restore` make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore import RestoreOptions, RestoreResult, restore
from tests.support.helpers import Tree, put_tree


def restore_tree(store: Store, root: TreeHash, target: Path, **options: Any) -> RestoreResult:
    """Restores a tree that is all work and has no times."""
    return restore(store, RecordedState(root), target, RestoreOptions(**options))


def moved(store: Store, place: Path, old: Tree, new: Tree, **options: Any) -> RestoreResult:
    """Restores `old`, then `new` on top; returns the result of the second restore."""
    restore_tree(store, put_tree(store, old), place)
    return restore_tree(store, put_tree(store, new), place, base=put_tree(store, old), **options)


def leftovers(place: Path) -> list[Path]:
    return list(place.parent.rglob(".casfs.*"))
