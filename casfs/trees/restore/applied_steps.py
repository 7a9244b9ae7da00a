"""Applied steps: which steps of threads gave a directory files.

Its next checkpoint of each name carries them (`applied`), and tells blame where lines came from:

    applied-steps/<hash of the path>.json

Like any state of a directory they are a hint and keep nothing from gc: a step that is gone when
the checkpoint is made is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from casfs.digest import BlobHash, NodeHash
from casfs.store.store import Store
from casfs.system import locks
from casfs.system.clock import now_ms
from casfs.system.paths import real_path
from casfs.trees.restore.options import RestoreOptions
from casfs.trees.restore.restore_state import RestoreState, RestoreStates

FOLDER = "applied-steps"
MAX_STEPS = 100  # of a directory that is never recorded
Change = Callable[[RestoreState], None]


def note(store: Store, directory: Path, step: NodeHash) -> None:
    """Note that `directory` has, or is about to get, what a thread made up to this step."""

    def add(state: RestoreState) -> None:
        state.steps.pop(step, None)
        state.steps[step] = max(now_ms(), *state.looks.values(), 0)
        for oldest in list(state.steps)[:-MAX_STEPS]:
            del state.steps[oldest]

    _change(store, directory, add)


def note_restored(store: Store, directory: Path, options: RestoreOptions) -> None:
    """Notes the step that a directory was restored to, also where some of it could not be
    written."""
    if options.step is not None and not options.dry_run and directory.is_dir():
        note(store, directory, options.step)


@contextmanager
def carried(store: Store, directory: Path, name: str, looked_at: int) -> Iterator[list[NodeHash]]:
    """Gives the steps that a checkpoint of this name is to carry. Where it is made, the next one
    need not carry them, but for those noted after `looked_at` (ms), when its look began: it may
    not have seen all that they wrote."""
    state = _load(store, directory)
    last = state.looks.get(name, 0)
    steps = [NodeHash(BlobHash(step)) for step, noted in state.steps.items() if noted >= last]
    known = store.blobs.info(steps)
    yield [step for step in steps if step in known]
    if steps:
        _change(store, directory, lambda state: state.looks.update({name: looked_at}))


def _load(store: Store, directory: Path) -> RestoreState:
    path = real_path(directory)
    try:
        status = os.stat(directory)
    except OSError:  # what reads the directory says why
        return RestoreState(str(path), 0, 0, roots=())
    state = RestoreStates(store.root, FOLDER).find(path)
    if state is not None and state.is_of(status):
        return state
    return RestoreState(str(path), status.st_dev, status.st_ino, roots=())


def _change(store: Store, directory: Path, change: Change) -> None:
    key = RestoreStates.key(real_path(directory))
    with locks.held(store.root, f"{FOLDER}-{key[:32]}", lambda: None):
        state = _load(store, directory)
        change(state)
        RestoreStates(store.root, FOLDER).save(state)
