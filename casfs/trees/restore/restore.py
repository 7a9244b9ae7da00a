"""Restores a tree to a host directory, fully or incrementally: afterwards it holds the tree.

*Full*, into a new or empty directory: complete or not there. The tree is built beside its
target (`casfs.trees.restore.write`) and renamed into place, so an interrupted restore leaves no
half directory under the target's name.

*Incremental*, where a tree was restored or recorded before. The old tree is given by the caller,
or by the restore state (`casfs.trees.restore.restore_state`). First every path of the old and the
new tree is looked at, by its stat where the stat cache knows it (`casfs.trees.snapshot.tracked`),
in a view of the store: looking stores nothing. What is as in neither tree was changed locally
(`casfs.trees.restore.local_changes`), and is refused unless the caller insists. Then the paths that
are not as in the new tree are brought to it (`casfs.trees.restore.incremental`). Before the first
change they are stored as they are, as an operation of the directory
(`casfs.directories.operations`), and the state is marked with all trees that the directory may hold
from then on, so an interrupted restore is completed by running it again, or taken back.

Nothing of ours stays in the target. One restore at a time into a directory. The way of both is
`_Restore.run`: look, decide, have recorded what is lost, write.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from casfs.digest import TimesHash, TreeHash
from casfs.directories import operations
from casfs.directories.operations import OpenedAt
from casfs.errors import Failed
from casfs.store.nodes.directory import Entry
from casfs.store.store import Store
from casfs.system import locks, rmtree
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS
from casfs.trees import dated, edit, tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import (
    applied_steps,
    host_entries,
    modification_order,
    unseen,
    written_paths,
)
from casfs.trees.restore.incremental import ALL_BITS, IncrementalRestore
from casfs.trees.restore.local_changes import local_changes, replaced_directories
from casfs.trees.restore.options import Contents, RestoreOptions, RestoreResult
from casfs.trees.restore.restore_errors import errors_named
from casfs.trees.restore.target import Roots, Target
from casfs.trees.restore.write import WriteProgress, write_tree
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot import tracked, working_tree
from casfs.trees.snapshot.properties import preserved_names
from casfs.trees.snapshot.report import SPECIAL_BITS, SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.tracked import Unseen

Changes = Mapping[bytes, Entry | None]
DEFAULTS = RestoreOptions()


def restore(
    store: Store, state: RecordedState, target: Path, options: RestoreOptions = DEFAULTS
) -> RestoreResult:
    """Make the directory `target` hold all of `state`: a new one with the recorded times, one that
    has files with times in the recorded order (`casfs.trees.restore.modification_order`).

    What cannot be stored before it is overwritten, since it was purged, is moved aside.
    Raises Refused for local changes, and for a directory that holds no known tree; NotFound,
    Conflict, Corrupt, Failed.
    """
    # A hash that names no tree is refused before the lock and the parents are made.
    for hash in filter(None, (state.full, state.tree, options.base)):
        tree.load(store, hash)
    started = time.monotonic()
    restore_target = Target(store, target, options.opened)
    task = _Restore(store, state, restore_target, options)
    lock = locks.held(store.root, restore_target.lock, restore_target.refuse_to_wait)
    with lock, errors_named(restore_target, task.progress, task.result):
        restore_target.check(state.full, options.delete_untracked, options.parents)
        # Of a restore that was killed: under the lock nobody else is filling it.
        restore_target.delete_staging()
        try:
            task.run()
        finally:
            applied_steps.note_restored(store, restore_target.path, options)
    task.result.seconds = time.monotonic() - started
    return task.result


class _Restore:
    def __init__(
        self, store: Store, state: RecordedState, target: Target, options: RestoreOptions
    ) -> None:
        # Through a view: what only looks, or is refused, must store no byte of the directory.
        self._store = ScratchStore(store)
        self._real_store = store
        self._state = state
        self._root = state.full
        self._goal = state.full  # what the directory shall hold, as far as this restore changes it
        self._paths: list[bytes] = []  # empty: the whole tree
        self._target = target
        self._options = options
        self._contents = Contents()
        self.result = RestoreResult(state.full)
        # One dict for both: what cannot be written is reported like what cannot be read.
        failed = self.result.failed if options.leaves_out_failed else None
        self._unseen: Unseen | None = None
        if options.is_of_checkpoint:
            self._unseen = unseen.of_restore(store, self._root, target.here)
        self.progress = WriteProgress(
            progress=options.progress, set_id=options.set_id, failed=failed
        )

    def run(self) -> None:
        """Looks and decides before it writes: what is refused leaves the directory as it is."""
        self._look()
        self._select_paths()
        # After the selection, which may have put an unreadable path into the goal.
        self._goal = self._without_failed(self._goal)
        self._find_local_changes()
        self._find_untracked()
        self._keep_objects()
        current = self._contents.current
        if self._options.dry_run:
            self.result.plan = list(tree.changes(self._store, current, self._goal))
            return
        if self.result.local and not self._options.force:
            raise self._target.local_changes_refused(
                self.result.local, self.result.purged, self._options.advice
            )
        if current is None and self._may_be_replaced():
            self._restore_fully()
        else:
            self._restore_incrementally()
        self.result.files = self.progress.files
        self.result.bytes = self.progress.bytes

    def _look(self) -> None:
        """Finds out what the directory may hold, and what it does hold of that."""
        contents = self._contents
        options = self._options
        if options.seen is not None:
            # What has changed since then is found where it is written.
            contents.olds = [options.seen.tree]
            contents.tracked = contents.current = options.seen.tree
            contents.dated = options.seen
            contents.newest = dated.load_times(self._store, options.seen).newest
            return
        if self._target.is_empty():
            contents.olds = [None]
            return
        # Single paths need no old tree: what is there of them is compared with the new one alone.
        contents.olds = self._target.possible_trees(
            options.base, is_needed=not options.paths, is_looked_at=options.keeps_base
        )
        contents.tracked = self._snapshot_tracked()
        contents.current = contents.tracked

    def _snapshot_tracked(self) -> TreeHash:
        roots = self._known_roots()
        options = self._snapshot_options(preserved_names(self._store, *roots))
        report = SnapshotReport()
        # A full restore fills the stat cache with the nodes of the tree, though it gave no set-id
        # bits: so the cache cannot tell whether they are missing.
        options.verify |= self._options.set_id
        path = self._target.here
        snapshot = tracked.snapshot_tracked(
            self._store, path, roots=roots, options=options, report=report, unseen=self._unseen
        )
        self.result.failed |= report.unreadable
        self._contents.unseen = sorted(exclusion.path for exclusion in report.excluded)
        self.result.excluded = self._contents.unseen
        self._contents.purged = sorted(report.purged)
        self._contents.newest = dated.load_times(self._store, snapshot).newest
        self._contents.dated = snapshot
        return snapshot.tree

    def _known_roots(self) -> list[TreeHash]:
        roots = dict.fromkeys([self._root, *self._contents.olds])
        return [root for root in roots if root is not None]

    def _snapshot_options(self, preserve: Sequence[str] = ()) -> SnapshotOptions:
        return SnapshotOptions(
            preserve,
            must_be_whole=not self._options.leaves_out_failed,
            verify=self._options.verify,
        )

    def _select_paths(self) -> None:
        """Restricts the restore to the paths that were asked for: all else stays as it is."""
        selected = {}
        for path in self._options.paths:
            tree_path = b"/".join(tree.split_path(path))
            entry = tree.resolve(self._store, self._root, tree_path)
            if entry is None:  # the root itself
                return
            selected[tree_path] = entry
        if selected:
            self._paths = list(selected)
            self._goal = self._edited(self._contents.current, selected, like=self._root)

    def _without_failed(self, root: TreeHash) -> TreeHash:
        """Leaves out what could not be read: it could not be brought back."""
        if not self.result.failed:
            return root
        return self._edited(root, dict.fromkeys(self.result.failed), like=None)

    def _without_unseen(self, root: TreeHash) -> TreeHash:
        """Leaves out what is not to be deleted: for what is in no old tree, nothing is done."""
        if not self._contents.unseen:
            return root
        return self._edited(root, dict.fromkeys(self._contents.unseen), like=None)

    def _edited(self, root: TreeHash | None, changes: Changes, like: TreeHash | None) -> TreeHash:
        """Puts a tree with these changes. `like`: a directory that `root` does not have gets the
        properties that it has in this tree."""
        with self._store.batch() as batch:
            # A directory whose only entry is left out, as it is unreadable, is there all the same.
            digest = edit.with_entries(
                self._store, batch, root=root, changes=changes, like=like, keep_empty=True
            )
        return digest.hash

    def _find_local_changes(self) -> None:
        """Finds the local changes that this restore would overwrite."""
        contents = self._contents
        tracked_tree = contents.tracked
        local: list[bytes] = []
        if tracked_tree is not None and tracked_tree != self._goal:
            # A restore of the whole tree is of every path anyway (`_is_selected`). Of single paths
            # one above may be lost, too: where `a/b` is selected, a file `a` that is here.
            differences = tree.diff(self._store, tracked_tree, self._goal) if self._paths else ()
            replaced = {change.path for change in differences}
            for path in local_changes(self._store, tracked_tree, [self._root, *contents.olds]):
                if path in replaced or self._is_selected(path):
                    local.append(path)
        # The look left these out, so no comparison of trees shows that they are overwritten.
        for path in contents.purged:
            if tree.find(self._store, self._goal, path) is not None:
                self.result.purged.append(path)
        self.result.local = sorted({*local, *self.result.purged})

    def _is_selected(self, path: bytes) -> bool:
        """Whether the restore is of this path, or of one above it."""
        if not self._paths:
            return True
        return any((path + b"/").startswith(selected + b"/") for selected in self._paths)

    def _find_untracked(self) -> None:
        """Adds the untracked entries that this restore deletes to `contents.current`. Raises
        Refused where one is in the way."""
        contents = self._contents
        current = contents.tracked
        if current is None:
            return
        blocked = self._blocked(current)
        # Nothing untracked is deleted.
        if not self._options.delete_untracked and not (self._options.forces_blocked and blocked):
            self._target.refuse_blocked(blocked, forced=self._options.force)
            return
        report = SnapshotReport()
        whole = self._record_whole(report)  # in the view: what is refused below stores nothing
        # All untracked entries are deleted, or, by force, those in blocked directories. Else local
        # changes alone are overwritten, and untracked entries stay.
        if self._options.delete_untracked:
            # It may have what the tree's own look left out, where another look recorded that.
            current = self._without_unseen(whole.full)
            paths = (exclusion.path for exclusion in report.excluded)
            self.result.excluded = sorted({*contents.unseen, *paths})
        elif blocked:
            entries = {path: tree.resolve(self._store, whole.full, path) for path in blocked}
            current = self._edited(current, entries, like=whole.full)
            self.result.local = sorted({*self.result.local, *blocked})
        # Again: what a checkpoint leaves out is still in the way, and could not be had back.
        self._target.refuse_blocked(self._blocked(current), forced=True)
        contents.current = current
        contents.dated = DatedTree(current, self._times_of(current, whole.whole))

    def _keep_objects(self) -> None:
        contents = self._contents
        if contents.current is None or not self._options.is_of_checkpoint:
            return
        if objects := unseen.objects_of_git(self._store, contents.current, self._goal):
            contents.unseen = [*contents.unseen, *objects]
            contents.current = self._without_unseen(contents.current)
            if contents.dated is not None:
                times = self._times_of(contents.current, contents.dated)
                contents.dated = DatedTree(contents.current, times)

    def _blocked(self, current: TreeHash) -> list[bytes]:
        """Returns the directories that a file is to replace, with other files than in `current`."""
        replaced = replaced_directories(self._store, current, self._goal)
        with closing_fd(self._target.open()) as top:
            return [
                path
                for path, root in replaced
                if tracked.has_untracked(self._store, top, path, root)
            ]

    def _record_whole(self, report: SnapshotReport) -> RecordedState:
        """Returns the whole directory as it is now, by the rules of a checkpoint."""
        held = self._target.known_state()
        # `record` decides by the first state what is private, so the one known to be there comes
        # first.
        states = [self._state] if held is None else [held, self._state]
        for root in self._known_roots():
            is_held = held is not None and root == held.full
            if root != self._root and not is_held:
                states.append(RecordedState(root))
        path = self._target.here
        options = self._snapshot_options()
        return working_tree.record(self._store, path, known=states, report=report, options=options)

    def _begin_operation(self, fd: int) -> None:
        """Stores what is about to be overwritten or deleted, and that it is."""
        intent = self._options.operation
        if intent is None:
            return
        opened = OpenedAt(self._target.path, fd)
        with self._real_store.local_writes().batch() as batch:
            is_whole = self._options.seen is not None and self._goal == self._root
            goal = self._dated_goal()
            written = written_paths.put(
                self._store, batch, opened, self._contents.dated, goal, is_whole=is_whole
            )
            if written is not None:
                self.result.operation = operations.begin(
                    self._real_store, batch, intent, opened, written, bases=self._bases()
                )

    def _may_be_replaced(self) -> bool:
        """Whether a new directory may replace this empty one: not a project, which is the working
        directory of shells and agents, nor one with a log, which the new one would not have."""
        if self._options.keeps_base or not self._target.is_replaceable():
            return False
        if self._options.operation is None or not self._target.here.exists():
            return True
        return not operations.log_of(self._real_store, self._target.here).operations

    def _bases(self) -> dict[str, Any] | None:
        """Returns what restores compare with before this one and after it; None where it changes
        nothing of that."""
        if self._options.keeps_base or self._paths:
            return None
        after = {
            "roots": [self._root],
            "name": self._options.name,
            "work": self._work_if_divided(),
            "is_restored": True,
        }
        return {"before": self._target.base_values(), "after": after}

    def _conclude_operation(self) -> None:
        if self.result.operation is not None:
            self.result.operation = operations.conclude(
                self._real_store, self.result.operation, left=len(self.progress.failed or ())
            )

    def _restore_fully(self) -> None:
        """Builds the tree beside the target and renames it into place."""
        path = self._target.path
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.parent / self._target.staging
        staging.mkdir(0o700)
        try:
            fd = os.open(staging, DIR_FLAGS)
            with closing_fd(fd):
                self._begin_operation(fd)
                # Before the rename: killed right after it, the directory is known all the same.
                self._save_state(fd)
                write_tree(self._store, self._dated_goal(), fd=fd, progress=self.progress)
                self._keep_private(fd)
                self._fill_stat_cache(fd)
                staging.rename(path)  # takes the place of an empty directory
                # Again: another restore deletes states of directories that are not there yet.
                self._save_state(fd)
                self._conclude_operation()
        except BaseException:
            # The first error is told, and the next restore deletes what is left.
            with suppress(Failed):
                rmtree.delete(staging)
            raise

    def _restore_incrementally(self) -> None:
        """Changes the directory in place: what differs, or all, where it is empty and must stay."""
        contents = self._contents
        fd = self._target.open()
        with closing_fd(fd):
            host_entries.grant_owner_access(fd)
            was_empty = self._target.is_empty()
            self._begin_operation(fd)
            self._mark_under_way(fd)
            temp = self._target.staging.encode()
            mode = self._allowed_mode_bits()
            task = IncrementalRestore(
                self._store,
                temp,
                self.progress,
                top_mode=mode,
                newest=contents.newest,
                mount_points=self._target.mount_points(),
            )
            self.result.outcome = task.outcome
            task.directory(fd, b"", [contents.current, *self._unfinished()], self._goal)
            if was_empty:
                task.date_as_recorded(fd, self._dated_goal())
            # The recorded times would be older than what was built there from other versions.
            else:
                is_built = modification_order.built_in(self._target.path)
                task.date(fd, self._options.dates or self._dated_goal(), is_built)
            # One that came meanwhile: the restore is not complete, and its state says so.
            self._target.refuse_blocked(task.outcome.blocked, forced=False)
            # Of single paths the state stays what `_mark_under_way` has made it. In a directory
            # that was empty the other paths are only missing, which is no local change.
            if not self._paths or contents.current is None:
                self._save_state(fd)
            self._conclude_operation()
        self.result.old = contents.olds[0] if contents.olds else None

    def _mark_under_way(self, fd: int) -> None:
        """Notes all trees that the directory may hold from now on, before the first change."""
        olds = self._contents.olds
        states = list(dict.fromkeys([*olds, self._root]))
        if self._options.keeps_base:
            self._save_state(fd)
        elif not self._paths:
            self._target.save_state(fd, states, by_restore=True)
        elif olds:  # else nothing is known of the other paths
            self._target.save_partial_state(fd, states)

    def _unfinished(self) -> Roots:
        """Returns the trees between which a restore was interrupted."""
        # Passed beside the current tree: a directory that differs between these is entered even if
        # it equals the goal, to delete temporary entries.
        olds = self._contents.olds
        if len(olds) <= 1:
            return []
        return [old and self._without_unseen(self._without_failed(old)) for old in olds]

    def _allowed_mode_bits(self) -> int:
        """Returns the permissions that the target may have: no more than those that the user gave
        it since the last restore."""
        current = self._contents.current
        if current is None:
            return ALL_BITS
        mode = tree.directory_mode(self._store, current)
        olds = [old for old in self._contents.olds if old is not None]
        known_modes = [tree.directory_mode(self._store, old) for old in olds]
        # A mode that a restore gave it is not one that the user chose.
        return ALL_BITS if mode in known_modes else mode | SPECIAL_BITS

    def _keep_private(self, fd: int) -> None:
        """An empty directory that the user made private is not opened by the tree's mode."""
        with suppress(FileNotFoundError):
            before = stat.S_IMODE(os.stat(self._target.path).st_mode)
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            os.fchmod(fd, mode & (before | SPECIAL_BITS))

    def _fill_stat_cache(self, fd: int) -> None:
        """Notes that the files are as in the tree, before another process knows them."""
        kept = preserved_names(self._store, self._goal)
        # The cache is told of the whole state, so all of it must have been written.
        if self._goal == self._root and not self.progress.failed:
            tracked.remember(
                self._real_store, fd, directory=self._target.path, state=self._state, preserve=kept
            )

    def _dated_goal(self) -> DatedTree:
        """Returns what the directory is to hold, with the times that it was recorded with."""
        return DatedTree(self._goal, self._times_of(self._goal, self._state.whole))

    def _times_of(self, root: TreeHash, source: DatedTree) -> TimesHash | None:
        with self._store.batch() as batch:
            return dated.times_for(self._store, batch, tree=root, source=source)

    def _save_state(self, fd: int) -> None:
        if self._options.keeps_base:
            if (like := self._options.like) is not None and like.local is not None:
                self._target.save_written(fd, like)
            return
        work = self._work_if_divided()
        self._target.save_state(fd, [self._root], self._options.name, work=work, by_restore=True)

    def _work_if_divided(self) -> TreeHash | None:
        return self._state.tree if self._state.local else None
