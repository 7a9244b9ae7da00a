"""What directories held before a restore or an apply overwrote it: the way back of `casfs undo`.

The checkpoint `before-restore` has the files. Which directory it is of stays in this store, beside
the restore states: a path of this machine is in no node.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from casfs.checkpoints import checkpoint
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.digest import TreeHash
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.system.paths import real_path
from casfs.trees.restore.restore_state import RestoreState, RestoreStates

FOLDER = "overwritten"  # of the store


class Overwritten(NamedTuple):
    """`before`: what `directory` held."""

    directory: Path
    before: Checkpoint


def note(store: Store, directory: Path, before: Checkpoint) -> None:
    """Notes what a directory held, in place of what was noted before."""
    path = real_path(directory)
    directory_stat = os.stat(directory)
    name = f"{before.name}@{before.id}"
    state = RestoreState(
        str(path),
        directory_stat.st_dev,
        inode=directory_stat.st_ino,
        roots=(TreeHash(before.root),),
        name=name,
    )
    RestoreStates(store.root, FOLDER).save(state)


def listing(store: Store) -> list[Overwritten]:
    """Returns the directories whose former files can come back, the last overwritten first."""
    directories = []
    for state in RestoreStates(store.root, FOLDER).listing():
        try:
            directories.append(Overwritten(Path(state.path), checkpoint.find(store, state.name)))
        except CasfsError:  # forgotten, or purged
            continue
    return sorted(directories, key=lambda directory: directory.before.id, reverse=True)


def forget(store: Store, done: Overwritten) -> None:
    """Forgets it, unless the directory was overwritten again since."""
    states = RestoreStates(store.root, FOLDER)
    state = states.find(done.directory)
    if state is not None and state.name == f"{done.before.name}@{done.before.id}":
        states.forget(done.directory)
