"""Restores of one tree over another, as the tests of `casfs.trees.restore` make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from casfs.digest import TreeHash
from casfs.directories import operations
from casfs.directories.operations import PERSON, Intent, Verb
from casfs.rewind import take_back
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.options import RestoreOptions, RestoreResult
from casfs.trees.restore.restore import restore
from tests.support.helpers import Tree, put_tree


def restore_tree(store: Store, root: TreeHash, target: Path, **options: Any) -> RestoreResult:
    """Restores a tree that is all work and has no times."""
    return restore(store, RecordedState(root), target, RestoreOptions(**options))


def moved(store: Store, place: Path, old: Tree, new: Tree, **options: Any) -> RestoreResult:
    """Restores `old`, then `new` on top; returns the result of the second restore."""
    restore_tree(store, put_tree(store, old), place)
    return restore_tree(store, put_tree(store, new), place, base=put_tree(store, old), **options)


def restored(store: Store, root: TreeHash, place: Path, **options: Any) -> RestoreResult:
    """Restores a tree as a person does: the directory's log has it."""
    return restore_tree(store, root, place, operation=Intent(Verb.RESTORE, "a tree"), **options)


def take_back_last(store: Store, place: Path) -> RestoreResult | None:
    """Takes back what a person has done last in a directory."""
    operation = operations.log_of(store, place).to_undo(PERSON)
    assert operation is not None
    plan = take_back.plan(store, place, operation, is_again=False)
    return take_back.do(store, plan, PERSON)


def do_again(store: Store, place: Path) -> RestoreResult | None:
    """Does again what a person has taken back last in a directory."""
    operation = operations.log_of(store, place).to_redo(PERSON)
    assert operation is not None
    plan = take_back.plan(store, place, operation, is_again=True)
    return take_back.do(store, plan, PERSON)


def leftovers(place: Path) -> list[Path]:
    return list(place.parent.rglob(".casfs.*"))
