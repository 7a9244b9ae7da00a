"""Restores a tree to a host directory, fully or incrementally.

*Full*, into a new or empty directory: complete or not there. The tree is built beside its
target (`casfs.trees.restore.write`) and renamed into place, so an interrupted restore leaves no
half directory under the target's name.

*Incremental*, where a tree was restored before: only the paths that differ between the two
trees are touched (`casfs.trees.restore.incremental`). The old tree is given by the caller, or by
the restore state (`casfs.trees.restore.restore_state`). Before the first change the state is
marked with all trees that the directory may hold from then on, so an interrupted restore is
completed by running it again.

Nothing of ours stays in the target. One restore at a time into a directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from casfs.digest import TreeHash
from casfs.errors import Conflict, Failed, NotFound, Refused
from casfs.store import Store
from casfs.system import locks, rmtree
from casfs.system.paths import DIR_FLAGS, printable
from casfs.trees import tree
from casfs.trees.restore.incremental import IncrementalRestore, Olds, Outcome
from casfs.trees.restore.restore_state import RestoreState, RestoreStates
from casfs.trees.restore.write import Progress, WriteProgress, write_tree


@dataclass(slots=True)
class RestoreResult:
    """`files`: files and links that were written or corrected; `old`: the previous tree, None for
    a full restore."""

    root: TreeHash
    old: TreeHash | None = None
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    outcome: Outcome = field(default_factory=Outcome)


def restore(
    store: Store,
    root: TreeHash,
    target: Path,
    *,
    base: TreeHash | None = None,
    delete_untracked: bool = False,
    verify: bool = False,
    set_id: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Make the directory `target` hold the tree `root`.

    `base`: the tree that was restored there before. `delete_untracked`: also delete entries that
    are in neither tree. `verify`: look at every path, not only at those that differ.
    `set_id`: give files the set-id bits of their preserved modes.
    Raises Refused for a directory that holds no known tree; NotFound, Conflict,
    Corrupt, Failed.
    """
    for hash in filter(None, (root, base)):
        tree.load(store, hash)
    place = _absolute(target)
    started = time.monotonic()
    task = _Restore(store, root, place, WriteProgress(progress=progress, set_id=set_id))
    lock = f"restore-{RestoreStates.key(place)[:32]}"
    with locks.held(store.root, lock, task.refuse_to_wait), task.errors_named():
        task.check_target(delete_untracked)
        task.delete_staging()
        state = task.current_state()
        if task.is_empty():
            task.restore_fully()
        else:
            olds = task.possible_trees(state, base)
            task.restore_incrementally(olds, verify, delete_untracked)
    task.result.seconds = time.monotonic() - started
    return task.result


def forget(store: Store, target: Path) -> None:
    """Delete the restore state of a directory that is gone or will be reused, and the staging
    directory that a killed restore left beside it. Raises Failed."""
    place, states = _absolute(target), RestoreStates(store.root)
    rmtree.delete(place.parent / states.staging_name(place))
    try:
        states.forget(place)
    except OSError as error:
        raise Failed(f"cannot forget {target}: {error.strerror}") from None


def _absolute(target: Path) -> Path:
    """Resolves links in the parents: one directory, one state."""
    try:
        path = target.absolute()
    except OSError as error:
        raise Failed(f"cannot restore to {target}: {error.strerror}") from None
    if path.name in ("", ".."):
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent)) / path.name


class _Restore:
    def __init__(self, store: Store, root: TreeHash, target: Path, progress: WriteProgress) -> None:
        self._store = store
        self._root = root
        self._target = target
        self._progress = progress
        self._states = RestoreStates(store.root)
        self._staging = self._states.staging_name(target)
        self.result = RestoreResult(root)

    def refuse_to_wait(self) -> None:
        raise Conflict(f"another restore into {self._target} is under way; wait for it")

    def check_target(self, delete_untracked: bool) -> None:
        """Raises Refused for a target that is not a directory, or holds the store."""
        target = self._target
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise Refused(f"{target} is not a directory")
        if self._store.root is not None:
            store = Path(os.path.realpath(self._store.root))
            place = Path(os.path.realpath(target))
            if place == store or (delete_untracked and place in store.parents):
                raise Refused(f"{target} holds the store itself; restore into another directory")

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turns an OSError into Failed with one line that names the path."""
        try:
            yield
        except OSError as error:
            where = printable(b"/".join(self._progress.path))
            at = f" at {where}" if where else ""
            reason = error.strerror
            raise Failed(f"cannot restore to {self._target}{at}: {reason}") from error
        except RecursionError:
            raise Failed(f"cannot restore to {self._target}: directories too deep") from None

    # -- the target now ---------------------------------------------------------------------

    def delete_staging(self) -> None:
        """Delete the staging directory that a killed full restore left beside the target."""
        rmtree.delete(self._target.parent / self._staging)

    def current_state(self) -> RestoreState | None:
        """Returns the restore state of the directory that is there now."""
        state = self._states.find(self._target)
        try:
            found = os.lstat(self._target)
        except FileNotFoundError:
            return None
        return state if state is not None and state.is_of(found) else None

    def is_empty(self) -> bool:
        try:
            with os.scandir(self._target) as found:
                return next(found, None) is None
        except FileNotFoundError:
            return True

    def possible_trees(self, state: RestoreState | None, base: TreeHash | None) -> Olds:
        """Returns the trees that the directory may hold. Raises Refused when they are unknown."""
        roots = list(state.roots) if state is not None else []
        if base is not None:
            unfinished = roots if len(roots) > 1 else []
            return list(dict.fromkeys([base, *unfinished]))
        if not roots:
            raise Refused(
                f"{self._target}: not empty and not restored by casfs before;"
                " use --base TREE, or an empty directory"
            )
        try:
            for root in filter(None, roots):
                tree.load(self._store, root)
        except NotFound:
            raise Refused(
                f"{self._target}: the tree that was restored there, {root}, is not in this store"
                " any more; restore into a new or empty directory"
            ) from None
        return roots

    # -- full --------------------------------------------------------------------------------

    def restore_fully(self) -> None:
        """Build the tree beside the target and rename it into place."""
        if self._target.exists() and not self._is_replaceable():
            self.restore_incrementally([None], False, False)
            return
        self._target.parent.mkdir(parents=True, exist_ok=True)
        staging = self._target.parent / self._staging
        staging.mkdir(0o700)
        try:
            fd = os.open(staging, DIR_FLAGS)
            try:
                self._save_state(fd, [self._root])
                write_tree(self._store, self._root, fd, self._progress)
                staging.rename(self._target)  # takes the place of an empty directory
                self._save_state(fd, [self._root])
            finally:
                os.close(fd)
        except BaseException:
            with suppress(Failed):
                rmtree.delete(staging)
            raise
        self._count(Outcome())

    def _is_replaceable(self) -> bool:
        """An empty mount point or working directory is filled in place."""
        here = os.path.realpath(".")
        return not os.path.ismount(self._target) and os.path.realpath(self._target) != here

    # -- incremental ---------------------------------------------------------------------------

    def restore_incrementally(self, olds: Olds, verify: bool, delete_untracked: bool) -> None:
        fd = os.open(self._target, DIR_FLAGS)
        try:
            self._save_state(fd, list(dict.fromkeys([*olds, self._root])))
            task = IncrementalRestore(
                self._store,
                self._staging.encode(),
                self._progress,
                verify=verify,
                delete_untracked=delete_untracked,
            )
            task.directory(fd, b"", olds, self._root)
            self._refuse_blocked(task.outcome)
            self._save_state(fd, [self._root])
        finally:
            os.close(fd)
        self.result.old = olds[0]
        self._count(task.outcome)

    def _refuse_blocked(self, outcome: Outcome) -> None:
        if outcome.blocked:
            first = printable(outcome.blocked[0])
            more = f" (and {len(outcome.blocked) - 1} more)" if len(outcome.blocked) > 1 else ""
            raise Refused(
                f"{self._target}/{first}{more}: a directory with untracked files is where"
                " the tree has a file; move them away, or use --delete-untracked, and run"
                " this again"
            )

    def _save_state(self, fd: int, roots: Olds) -> None:
        found = os.fstat(fd)
        state = RestoreState(str(self._target), found.st_dev, found.st_ino, tuple(roots))
        self._states.save(state, durable=len(roots) > 1)

    def _count(self, outcome: Outcome) -> None:
        self.result.files = self._progress.files
        self.result.bytes = self._progress.bytes
        self.result.outcome = outcome
