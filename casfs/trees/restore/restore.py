"""Restores a tree to a host directory, fully or incrementally: afterwards it holds the tree.

*Full*, into a new or empty directory: complete or not there. The tree is built beside its
target (`casfs.trees.restore.write`) and renamed into place, so an interrupted restore leaves no
half directory under the target's name.

*Incremental*, where a tree was restored or recorded before. The old tree is given by the caller,
or by the restore state (`casfs.trees.restore.restore_state`). First every path of the old and the
new tree is looked at, by its stat where the stat cache knows it
(`casfs.trees.snapshot.tracked`), in a view of the store: looking stores nothing. What is as in
neither tree was changed locally
(`casfs.trees.restore.local_changes`): the caller decides, before anything is touched, and is
given the tree of the whole directory, so that restoring it is undo. Then the
paths that are not as in the new tree are brought to it (`casfs.trees.restore.incremental`).
Before the first change the state is marked with all trees that the directory may hold from then
on, so an interrupted restore is completed by running it again.

Nothing of ours stays in the target. One restore at a time into a directory.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from casfs.digest import TreeHash
from casfs.errors import Failed
from casfs.store.store import Store
from casfs.system import locks, rmtree
from casfs.system.paths import DIR_FLAGS, open_directory, printable
from casfs.trees import dated, edit, tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import host_entries
from casfs.trees.restore.incremental import ALL_BITS, IncrementalRestore, Outcome
from casfs.trees.restore.local_changes import local_changes, replaced_directories
from casfs.trees.restore.target import Roots, Target
from casfs.trees.restore.write import Progress, WriteProgress, write_tree
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot import tracked, working_tree
from casfs.trees.snapshot.properties import preserved_names
from casfs.trees.snapshot.report import (
    SPECIAL_BITS,
    RelativePath,
    SnapshotOptions,
    SnapshotReport,
)

# Called with the state of the whole directory, and the changed paths.
OnLocalChanges = Callable[[RecordedState, list[bytes]], None]


@dataclass(slots=True)
class RestoreResult:
    """`files`: files and links that were written or corrected; `old`: the previous tree, None for
    a full restore; `local`: paths that were changed locally; `purged`: those of them whose content
    was purged, so that no checkpoint can record it; `plan`: what a dry run would change;
    `excluded`: paths that stay where untracked files are deleted, as no checkpoint has them;
    `failed`: paths that are as they were, since they could not be read or written, with the
    reason."""

    root: TreeHash
    old: TreeHash | None = None
    local: list[bytes] = field(default_factory=list)
    purged: list[bytes] = field(default_factory=list)
    plan: list[tree.Change] = field(default_factory=list)
    excluded: list[bytes] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    outcome: Outcome = field(default_factory=Outcome)
    failed: dict[RelativePath, str] = field(default_factory=dict)


def restore(
    store: Store,
    state: RecordedState,
    target: Path,
    *,
    base: TreeHash | None = None,
    paths: Sequence[bytes] = (),
    delete_untracked: bool = False,
    verify: bool = False,
    set_id: bool = False,
    parents: bool = False,
    dry_run: bool = False,
    on_local_changes: OnLocalChanges | None = None,
    on_delete: Callable[[RecordedState], None] = lambda before: None,
    progress: Progress | None = None,
    opened: int | None = None,
    name: str = "",
    leaves_out_failed: bool = False,
) -> RestoreResult:
    """Make the directory `target` hold all of `state`: a new one with the recorded times, one that
    has files with times in the recorded order (`casfs.trees.restore.modification_order`).

    `base`: the tree that was restored there before. `paths`: restore only these of the tree.
    `delete_untracked`: also delete entries that are in neither tree, but none that a checkpoint
    leaves out; `on_delete`: called before, with the tree of all that is there. `verify`: read
    every file, also one whose stat is as it was. `set_id`: give files the set-id bits of their
    preserved modes. `parents`: make missing parents. `on_local_changes`: called before they are
    overwritten; without it they are refused. What cannot be recorded, since it was purged, is moved
    aside. `opened`: as in Target. `name`: NAME@ID of the
    checkpoint that `state` is of, which is noted of the directory. `leaves_out_failed`: what cannot
    be read or written is in the result, and the rest is restored.
    Raises Refused for local changes, and for a directory that holds no known tree; NotFound,
    Conflict, Corrupt, Failed.
    """
    root = state.full
    for hash in filter(None, (root, state.tree, base)):
        tree.load(store, hash)
    started = time.monotonic()
    restore_target = Target(store, target, opened)
    failed: dict[bytes, str] = {}
    writing = WriteProgress(progress=progress, set_id=set_id)
    writing.failed = failed if leaves_out_failed else None
    task = _Restore(store, state, target=restore_target, progress=writing, name=name)
    task.result.failed = failed
    with (
        locks.held(store.root, restore_target.lock, restore_target.refuse_to_wait),
        task.errors_named(),
    ):

        def record() -> RecordedState:
            return task.record(store, olds, verify=verify)

        restore_target.check(root, delete_untracked, parents)
        restore_target.delete_staging()
        if restore_target.is_empty():
            olds = []
            current = None
        else:
            olds = restore_target.possible_trees(base, root, is_needed=not paths)
            current = task.look(olds, verify=verify or set_id)
        task.select(paths, current)
        task.leave_unreadable()
        task.find_local_changes(current, olds)
        known = current
        before = None
        if current is not None:
            forced = on_local_changes is not None
            current, before = task.find_untracked(current, olds, delete_untracked, forced, verify)
        if dry_run:
            task.result.plan = list(task.changes(current, task.goal))
        else:
            if current is not None and task.result.local:
                changed = task.result.local
                if on_local_changes is None:
                    raise restore_target.local_changes_refused(changed, task.result.purged)
                on_local_changes(record(), changed)
            elif before is not None and any(task.changes(known, before.full)):
                on_delete(record())
            task.execute(current, olds)
    task.result.seconds = time.monotonic() - started
    return task.result


class _Restore:
    def __init__(
        self,
        store: Store,
        state: RecordedState,
        target: Target,
        progress: WriteProgress,
        name: str,
    ) -> None:
        self._store = ScratchStore(store)
        self._real_store = store
        self._state = state
        self._name = name
        self._root = self.goal = root = state.full
        self._paths: list[bytes] = []  # empty: the whole tree
        self._purged: list[bytes] = []  # paths of which `look` has left out the content
        self._newest: int | None = None  # time of a file that is there, in ns
        self._target = target
        self._progress = progress
        self.result = RestoreResult(root)

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turns an OSError into Failed with one line that names the path."""
        try:
            yield
        except OSError as error:
            where = printable(b"/".join(self._progress.path))
            location = f" at {where}" if where else ""
            reason = error.strerror
            raise Failed(f"cannot restore to {self._target}{location}: {reason}") from error
        except RecursionError:
            raise Failed(f"cannot restore to {self._target}: directories too deep") from None

    # -- what is to be done -------------------------------------------------------------------

    def look(self, olds: Roots, *, verify: bool) -> TreeHash:
        """Returns the tree of what is there now, of the paths that any of the trees has."""
        roots = self._known(olds)
        kept = preserved_names(self._store, *roots)
        path = self._target.here
        report = SnapshotReport()
        options = self._options(kept)
        snapshot = tracked.snapshot_tracked(
            self._store, path, roots=roots, options=options, report=report, verify=verify
        )
        self.result.failed |= report.unreadable
        self._purged = sorted(report.purged)
        self._newest = dated.load_times(self._store, snapshot).newest
        return snapshot.tree

    def _options(self, preserve: Sequence[str] = ()) -> SnapshotOptions:
        may_leave_out = self._progress.failed is not None
        return SnapshotOptions(preserve, leaves_out_unreadable=may_leave_out)

    def leave_unreadable(self) -> None:
        """Takes what cannot be read out of the goal: it could not be brought back."""
        self.goal = self._without_failed(self.goal)

    def _without_failed(self, root: TreeHash) -> TreeHash:
        if not self.result.failed:
            return root
        without = dict.fromkeys(self.result.failed)
        with self._store.batch() as batch:
            digest = edit.with_entries(
                self._store, batch, root=root, changes=without, keep_empty=True
            )
        return digest.hash

    def _known(self, olds: Roots) -> list[TreeHash]:
        return [root for root in dict.fromkeys([self._root, *olds]) if root is not None]

    def select(self, paths: Sequence[bytes], current: TreeHash | None) -> None:
        """Restrict the restore to these paths of the tree: all else stays as it is `current`."""
        wanted = {}
        for path in paths:
            tree_path = b"/".join(tree.split_path(path))
            entry = tree.resolve(self._store, self._root, tree_path)
            if entry is None:  # the root itself
                return
            wanted[tree_path] = entry
        if wanted:
            self._paths = list(wanted)
            with self._store.batch() as batch:
                digest = edit.with_entries(
                    self._store, batch, root=current, changes=wanted, like=self._root
                )
            self.goal = digest.hash

    def find_local_changes(self, current: TreeHash | None, olds: Roots) -> None:
        """Find the local changes that this restore would overwrite."""
        if current is not None and current != self.goal:
            changed_paths = local_changes(self._store, current, [self._root, *olds])
            changes = tree.diff(self._store, current, self.goal) if self._paths else ()
            replaced = {change.path for change in changes}
            self.result.local = [
                path for path in changed_paths if path in replaced or self._is_selected(path)
            ]
        self.result.purged = [
            path for path in self._purged if tree.find(self._store, self.goal, path) is not None
        ]
        self.result.local = sorted({*self.result.local, *self.result.purged})

    def _is_selected(self, path: bytes) -> bool:
        """Whether the restore is of this path, or of one above it."""
        above = (path + b"/").startswith
        return not self._paths or any(above(selected_path + b"/") for selected_path in self._paths)

    def find_untracked(
        self, current: TreeHash, olds: Roots, delete: bool, forced: bool, verify: bool
    ) -> tuple[TreeHash, RecordedState | None]:
        """Returns `current` with what this restore deletes of the untracked files, and the state of
        the whole directory where it is to be recorded. Raises Refused where one is in the way."""
        blocked = self._blocked(current)
        if not (delete or (forced and (blocked or self.result.local))):
            self._target.refuse_blocked(blocked, forced=False)
            return current, None
        report = SnapshotReport()
        before = self.record(self._store, olds, report=report, verify=verify)
        if delete:
            current = before.full
            self.result.excluded = sorted(exclusion.path for exclusion in report.excluded)
        elif blocked:
            full = before.full
            wanted = {path: tree.resolve(self._store, full, path) for path in blocked}
            with self._store.batch() as batch:
                current = edit.with_entries(
                    self._store, batch, root=current, changes=wanted, like=full
                ).hash
            self.result.local = sorted({*self.result.local, *blocked})
        self._target.refuse_blocked(self._blocked(current), forced=True)
        return current, before

    def record(
        self, store: Store, olds: Roots, *, report: SnapshotReport | None = None, verify: bool
    ) -> RecordedState:
        """Stores the whole directory as it is now."""
        held = self._target.known_state()
        known = [RecordedState(old) for old in self._known(olds) if not self._is_of(old, held)]
        states = [*([held] if held else []), self._state, *known]
        return working_tree.record(
            store,
            self._target.here,
            known=states,
            report=report,
            options=self._options(),
            verify=verify,
        )

    def changes(self, old: TreeHash | None, new: TreeHash) -> Iterator[tree.Change]:
        return tree.changes(self._store, old, new)

    def _is_of(self, root: TreeHash, held: RecordedState | None) -> bool:
        return root == self._root or (held is not None and root == held.full)

    def _blocked(self, current: TreeHash) -> list[bytes]:
        """Returns the directories in whose place the tree has a file, with other files than in
        `current`."""
        return [
            path
            for path, root in replaced_directories(self._store, current, self.goal)
            if self._has_untracked(path, root)
        ]

    def _has_untracked(self, path: bytes, root: TreeHash) -> bool:
        top = self._target.open()
        try:
            fd = open_directory(top, path.split(b"/"))
        except OSError:  # replaced, or unreadable: what enters it later says so
            return False
        finally:
            os.close(top)
        try:
            return any(tracked.untracked(self._store, fd, [root]))
        finally:
            os.close(fd)

    # -- doing it ------------------------------------------------------------------------------

    def execute(self, current: TreeHash | None, olds: Roots) -> None:
        if current is not None:
            self._restore_incrementally(current, olds)
        elif self._target.is_replaceable():
            self._restore_fully()
        else:
            self._restore_incrementally(None, [None])

    def _restore_fully(self) -> None:
        """Build the tree beside the target and rename it into place."""
        path = self._target.path
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.parent / self._target.staging
        staging.mkdir(0o700)
        try:
            fd = os.open(staging, DIR_FLAGS)
            try:
                self._save_state(fd)
                write_tree(self._store, self._dated_goal(), fd=fd, progress=self._progress)
                self._keep_private(fd)
                kept = preserved_names(self._store, self.goal)
                if self.goal == self._root and not self._progress.failed:
                    tracked.remember(
                        self._real_store, fd, directory=path, state=self._state, preserve=kept
                    )
                staging.rename(path)  # takes the place of an empty directory
                self._save_state(fd)
            finally:
                os.close(fd)
        except BaseException:
            with suppress(Failed):
                rmtree.delete(staging)
            raise
        self._count(Outcome())

    def _dated_goal(self) -> DatedTree:
        """Returns what the directory is to hold, with the times that it was recorded with."""
        with self._store.batch() as batch:
            times = dated.times_for(self._store, batch, tree=self.goal, source=self._state.whole)
        return DatedTree(self.goal, times)

    def _save_state(self, fd: int) -> None:
        work = self._state.tree if self._state.local else None
        self._target.save_state(fd, [self._root], self._name, work=work)

    def _keep_private(self, fd: int) -> None:
        """An empty directory that the user made private is not opened by the tree's mode."""
        with suppress(FileNotFoundError):
            was = stat.S_IMODE(os.stat(self._target.path).st_mode)
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & (was | SPECIAL_BITS))

    def _restore_incrementally(self, current: TreeHash | None, olds: Roots) -> None:
        fd = self._target.open()
        try:
            host_entries.grant_owner_access(fd)
            states = list(dict.fromkeys([*olds, self._root]))
            if not self._paths:
                self._target.save_state(fd, states)
            elif olds:  # else nothing is known of the other paths
                self._target.save_partial_state(fd, states)
            task = IncrementalRestore(
                self._store,
                self._target.staging.encode(),
                self._progress,
                top_mode=self._top_mode(current, olds),
                newest=self._newest,
            )
            unfinished = [old and self._without_failed(old) for old in olds if len(olds) > 1]
            task.directory(fd, b"", [current, *unfinished], self.goal)
            if current is None and olds == [None]:
                task.date_as_recorded(fd, self._dated_goal())
            else:
                task.date(fd, self._dated_goal())
            self._target.refuse_blocked(task.outcome.blocked, forced=False)
            if not self._paths or current is None:
                self._save_state(fd)
        finally:
            os.close(fd)
        self.result.old = olds[0] if olds else None
        self._count(task.outcome)

    def _top_mode(self, current: TreeHash | None, olds: Roots) -> int:
        """Returns the permissions that the target may have: no more than those that the user gave
        it since the last restore."""
        if current is None:
            return ALL_BITS
        mode = tree.directory_mode(self._store, current)
        known = [tree.directory_mode(self._store, old) for old in olds if old is not None]
        return ALL_BITS if mode in known else mode | SPECIAL_BITS

    def _count(self, outcome: Outcome) -> None:
        self.result.files = self._progress.files
        self.result.bytes = self._progress.bytes
        self.result.outcome = outcome
