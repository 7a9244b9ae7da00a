"""Tree → host directory, in one of two ways.

*Full*, into a new or empty directory: complete or not there. The tree is built beside its
target (`casfs.trees.restore.write`) and renamed into place, so an interrupted restore leaves no
half directory under the name that was asked for.

*Incremental*, where a tree was restored before: only the paths that differ between the two
trees are touched (`casfs.trees.restore.incremental`). Which tree that was is said by the caller,
or by the store's own record (`casfs.trees.restore.records`). The record is marked before the first
change with all trees that the directory may hold from then on, so a restore that was interrupted,
by whatever, is completed by running it again.

Nothing of ours stays in the target. One restore at a time into a directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from casfs.errors import Conflict, Failed, NotFound, Refused
from casfs.store import Store
from casfs.system import locks, rmtree
from casfs.system.paths import DIR_FLAGS, printable
from casfs.trees import tree
from casfs.trees.restore.incremental import Olds, Outcome, Sync
from casfs.trees.restore.records import Record, Records
from casfs.trees.restore.write import Progress, Tally, fill


@dataclass(slots=True)
class Restored:
    """What a restore did. `files`: files and links written or set right; `old`: the tree that
    was there, None for a full restore."""

    root: str
    old: str | None = None
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    outcome: Outcome = field(default_factory=Outcome)


def restore(
    store: Store,
    root: str,
    target: Path,
    *,
    base: str | None = None,
    delete_untracked: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Make the directory `target` hold the tree `root`.

    `base`: the tree that was restored there before. `delete_untracked`: also delete what is in
    neither tree. `verify`: look at every path, not only at those that differ.
    Raises Refused where something is there that no tree accounts for; NotFound, Conflict,
    Corrupt, Failed.
    """
    for hash in filter(None, (root, base)):
        tree.load(store, hash)
    place = _absolute(target)
    started = time.monotonic()
    how = _Restore(store, root, place, Tally(progress=progress))
    lock = f"restore-{Records.key(place)[:32]}"
    with locks.held(store.root, lock, how.refuse_to_wait), how.naming():
        how.check(delete_untracked)
        how.clear()
        known = how.known()
        if how.is_free():
            how.full()
        else:
            how.incremental(how.olds(known, base), verify, delete_untracked)
    how.result.seconds = time.monotonic() - started
    return how.result


def forget(store: Store, target: Path) -> None:
    """Leave nothing of restores into a directory that is gone, or is to be another's: no
    record, and nothing beside it that one that was killed has left. Raises Failed."""
    place, records = _absolute(target), Records(store.root)
    rmtree.delete(place.parent / records.temp(place))
    try:
        records.forget(place)
    except OSError as error:
        raise Failed(f"cannot forget {target}: {error.strerror}") from None


def _absolute(target: Path) -> Path:
    """The path without links in what leads to it: one directory, one record."""
    try:
        path = target.absolute()
    except OSError as error:
        raise Failed(f"cannot restore to {target}: {error.strerror}") from None
    if path.name in ("", ".."):
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent)) / path.name


class _Restore:
    def __init__(self, store: Store, root: str, target: Path, tally: Tally) -> None:
        self._store = store
        self._root = root
        self._target = target
        self._tally = tally
        self._records = Records(store.root)
        self._temp = self._records.temp(target)
        self.result = Restored(root)

    def refuse_to_wait(self) -> None:
        raise Conflict(f"another restore into {self._target} is under way; wait for it")

    def check(self, delete_untracked: bool) -> None:
        """Raises Refused for what is no directory, and where the store would suffer."""
        target = self._target
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise Refused(f"{target} exists and is not a directory")
        if self._store.root is not None:
            store = Path(os.path.realpath(self._store.root))
            place = Path(os.path.realpath(target))
            if place == store or (delete_untracked and place in store.parents):
                raise Refused(f"{target} holds the store itself; restore into another directory")

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Turn what the kernel reports into one line that names the path."""
        try:
            yield
        except OSError as error:
            where = printable(b"/".join(self._tally.path))
            at = f" at {where}" if where else ""
            reason = error.strerror
            raise Failed(f"cannot restore to {self._target}{at}: {reason}") from error
        except RecursionError:
            raise Failed(f"cannot restore to {self._target}: directories too deep") from None

    # -- what is there ---------------------------------------------------------------------

    def clear(self) -> None:
        """Delete what a full restore that was killed left beside the target."""
        rmtree.delete(self._target.parent / self._temp)

    def known(self) -> Record | None:
        """What the store remembers of the directory that is there now."""
        record = self._records.find(self._target)
        try:
            found = os.lstat(self._target)
        except FileNotFoundError:
            return None
        return record if record is not None and record.is_of(found) else None

    def is_free(self) -> bool:
        try:
            with os.scandir(self._target) as found:
                return next(found, None) is None
        except FileNotFoundError:
            return True

    def olds(self, known: Record | None, base: str | None) -> Olds:
        """The trees that the directory may hold. Raises Refused when that is not known."""
        roots = list(known.roots) if known is not None else []
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

    def full(self) -> None:
        """Build the tree beside the target and rename it into place."""
        if self._target.exists() and not self._is_replaceable():
            self.incremental([None], False, False)
            return
        self._target.parent.mkdir(parents=True, exist_ok=True)
        aside = self._target.parent / self._temp
        aside.mkdir(0o700)
        try:
            fd = os.open(aside, DIR_FLAGS)
            try:
                self._remember(fd, [self._root])
                fill(self._store, self._root, fd, self._tally)
                aside.rename(self._target)  # takes the place of an empty directory
                self._remember(fd, [self._root])
            finally:
                os.close(fd)
        except BaseException:
            with suppress(Failed):
                rmtree.delete(aside)
            raise
        self._count(Outcome())

    def _is_replaceable(self) -> bool:
        """An empty directory that is mounted, or that we stand in, is filled as it is."""
        here = os.path.realpath(".")
        return not os.path.ismount(self._target) and os.path.realpath(self._target) != here

    # -- incremental ---------------------------------------------------------------------------

    def incremental(self, olds: Olds, verify: bool, delete_untracked: bool) -> None:
        fd = os.open(self._target, DIR_FLAGS)
        try:
            self._remember(fd, list(dict.fromkeys([*olds, self._root])))
            task = Sync(
                self._store,
                self._temp.encode(),
                self._tally,
                verify=verify,
                delete_untracked=delete_untracked,
            )
            task.directory(fd, b"", olds, self._root)
            self._refuse_blocked(task.outcome)
            self._remember(fd, [self._root])
        finally:
            os.close(fd)
        self.result.old = olds[0]
        self._count(task.outcome)

    def _refuse_blocked(self, outcome: Outcome) -> None:
        if outcome.blocked:
            first = printable(outcome.blocked[0])
            more = f" (and {len(outcome.blocked) - 1} more)" if len(outcome.blocked) > 1 else ""
            raise Refused(
                f"{self._target}/{first}{more}: a directory with files that are in no tree stands"
                " where the tree has a file; move them away, or use --delete-untracked, and run"
                " this again"
            )

    def _remember(self, fd: int, roots: Olds) -> None:
        found = os.fstat(fd)
        record = Record(str(self._target), found.st_dev, found.st_ino, tuple(roots))
        self._records.save(record, durable=len(roots) > 1)

    def _count(self, outcome: Outcome) -> None:
        self.result.files = self._tally.files
        self.result.bytes = self._tally.bytes
        self.result.outcome = outcome
