"""Restores a tree to a host directory, fully or incrementally: afterwards it holds the tree.

*Full*, into a new or empty directory: complete or not there. The tree is built beside its
target (`casfs.trees.restore.write`) and renamed into place, so an interrupted restore leaves no
half directory under the target's name.

*Incremental*, where a tree was restored or recorded before. The old tree is given by the caller,
or by the restore state (`casfs.trees.restore.restore_state`). First every path of the old and the
new tree is looked at, by its stat where the stat cache knows it (`casfs.trees.snapshot.tracked`),
in a view of the store: looking stores nothing. What is as in neither tree was changed locally
(`casfs.trees.restore.local_changes`): the caller decides, before anything is touched, and is given
the tree of the whole directory, so that restoring it is undo. Then the paths that are not as in the
new tree are brought to it (`casfs.trees.restore.incremental`). Before the first change the state is
marked with all trees that the directory may hold from then on, so an interrupted restore is
completed by running it again.

Nothing of ours stays in the target. One restore at a time into a directory. The way of both is
`_Restore.run`: look, decide, have recorded what is lost, write.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from casfs.digest import TreeHash
from casfs.errors import Failed
from casfs.store.nodes.directory import Entry
from casfs.store.store import Store
from casfs.system import locks, rmtree
from casfs.system.files import closing_fd
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
from casfs.trees.snapshot.report import SPECIAL_BITS, RelativePath, SnapshotOptions, SnapshotReport

# Called with the state of the whole directory, and the changed paths.
OnLocalChanges = Callable[[RecordedState, list[bytes]], None]
OnDelete = Callable[[RecordedState], None]
Changes = Mapping[bytes, Entry | None]


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


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """How a restore treats what is in the directory.

    `base`: the tree that was restored there before. `paths`: restore only these of the tree.
    `delete_untracked`: also delete entries that are in neither tree, but none that a checkpoint
    leaves out; `on_delete`: called before, with the tree of all that is there. `verify`: read
    every file, also one whose stat is as it was. `set_id`: give files the set-id bits of their
    preserved modes. `parents`: make missing parents. `dry_run`: only find out what would be
    changed. `on_local_changes`: called before they are overwritten; without it they are refused.
    `name`: NAME@ID of the checkpoint, which is noted of the directory. `leaves_out_failed`: what
    cannot be read or written is in the result, and the rest is restored. `opened`: as in Target.
    """

    base: TreeHash | None = None
    paths: Sequence[bytes] = ()
    delete_untracked: bool = False
    verify: bool = False
    set_id: bool = False
    parents: bool = False
    dry_run: bool = False
    on_local_changes: OnLocalChanges | None = None
    on_delete: OnDelete = lambda before: None
    progress: Progress | None = None
    opened: int | None = None
    name: str = ""
    leaves_out_failed: bool = False


DEFAULTS = RestoreOptions()


def restore(
    store: Store, state: RecordedState, target: Path, options: RestoreOptions = DEFAULTS
) -> RestoreResult:
    """Make the directory `target` hold all of `state`: a new one with the recorded times, one that
    has files with times in the recorded order (`casfs.trees.restore.modification_order`).

    What cannot be recorded before it is overwritten, since it was purged, is moved aside.
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
    with lock, task.errors_named():
        restore_target.check(state.full, options.delete_untracked, options.parents)
        # Of a restore that was killed: under the lock nobody else is filling it.
        restore_target.delete_staging()
        task.run()
    task.result.seconds = time.monotonic() - started
    return task.result


@dataclass(slots=True)
class _Contents:
    """What the directory holds before the restore. `olds`: the trees that it may have been restored
    to. `tracked`: what it has at the paths of these and the new tree; None where it is empty.
    `current`: that, with the untracked entries that this restore deletes. `whole`: all of it, where
    it is to be recorded. `purged`: paths that are left out, as their content was purged. `newest`:
    the last time of a file, in ns."""

    olds: Roots = field(default_factory=list)
    tracked: TreeHash | None = None
    current: TreeHash | None = None
    whole: RecordedState | None = None
    purged: list[bytes] = field(default_factory=list)
    newest: int | None = None


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
        self._contents = _Contents()
        self.result = RestoreResult(state.full)
        # One dict for both: what cannot be written is reported like what cannot be read.
        failed = self.result.failed if options.leaves_out_failed else None
        self._progress = WriteProgress(
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
        current = self._contents.current
        if self._options.dry_run:
            self.result.plan = list(tree.changes(self._store, current, self._goal))
            return
        self._record_before()
        if current is None and self._target.is_replaceable():
            self._restore_fully()
        else:
            self._restore_incrementally()
        self.result.files = self._progress.files
        self.result.bytes = self._progress.bytes

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turns an OSError into Failed with one line that names the path."""
        try:
            yield
        except OSError as error:
            where = printable(b"/".join(self._progress.path))
            location = f" at {where}" if where else ""
            raise Failed(f"cannot restore to {self._target}{location}: {error.strerror}") from error
        # The depth of a snapshot is bounded, that of a tree from elsewhere is not.
        except RecursionError:
            raise Failed(f"cannot restore to {self._target}: directories too deep") from None

    def _look(self) -> None:
        """Finds out what the directory may hold, and what it does hold of that."""
        contents = self._contents
        if self._target.is_empty():
            contents.olds = [None]
            return
        base = self._options.base
        # Single paths need no old tree: what is there of them is compared with the new one alone.
        is_whole = not self._options.paths
        contents.olds = self._target.possible_trees(base, self._root, is_needed=is_whole)
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
            self._store, path, roots=roots, options=options, report=report
        )
        self.result.failed |= report.unreadable
        self._contents.purged = sorted(report.purged)
        self._contents.newest = dated.load_times(self._store, snapshot).newest
        return snapshot.tree

    def _known_roots(self) -> list[TreeHash]:
        roots = dict.fromkeys([self._root, *self._contents.olds])
        return [root for root in roots if root is not None]

    def _snapshot_options(self, preserve: Sequence[str] = ()) -> SnapshotOptions:
        return SnapshotOptions(
            preserve,
            leaves_out_unreadable=self._options.leaves_out_failed,
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
        """Adds the untracked entries that this restore deletes to `contents.current`, and sets
        `contents.whole` where the directory is to be recorded before. Raises Refused where one is
        in the way."""
        contents = self._contents
        current = contents.tracked
        if current is None:
            return
        blocked = self._blocked(current)
        is_forced = self._options.on_local_changes is not None
        overwrites = is_forced and bool(blocked or self.result.local)
        # Nothing untracked is deleted, and nothing is lost that is to be recorded.
        if not self._options.delete_untracked and not overwrites:
            self._target.refuse_blocked(blocked, forced=False)
            return
        report = SnapshotReport()
        # In the view first: a dry run, and what is refused below, must store nothing.
        whole = self._record_whole(self._store, report)
        # All untracked entries are deleted, or, by force, those in blocked directories. Else local
        # changes alone are overwritten, and untracked entries stay.
        if self._options.delete_untracked:
            current = whole.full
            self.result.excluded = sorted(exclusion.path for exclusion in report.excluded)
        elif blocked:
            entries = {path: tree.resolve(self._store, whole.full, path) for path in blocked}
            current = self._edited(current, entries, like=whole.full)
            self.result.local = sorted({*self.result.local, *blocked})
        # Again: what a checkpoint leaves out is still in the way, and could not be had back.
        self._target.refuse_blocked(self._blocked(current), forced=True)
        contents.current = current
        contents.whole = whole

    def _blocked(self, current: TreeHash) -> list[bytes]:
        """Returns the directories that a file is to replace, with other files than in `current`."""
        return [
            path
            for path, root in replaced_directories(self._store, current, self._goal)
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
        with closing_fd(fd):
            return any(tracked.untracked(self._store, fd, [root]))

    def _record_before(self) -> None:
        """Has the caller record the directory where something is lost, unless that is refused."""
        contents = self._contents
        changed = self.result.local
        if changed:
            on_local_changes = self._options.on_local_changes
            if on_local_changes is None:
                raise self._target.local_changes_refused(changed, self.result.purged)
            on_local_changes(self._record_whole(self._real_store), changed)
        elif contents.whole is not None:
            # Without a local change something is lost only where there are untracked files.
            untracked = tree.changes(self._store, contents.tracked, contents.whole.full)
            if any(untracked):
                self._options.on_delete(self._record_whole(self._real_store))

    def _record_whole(self, store: Store, report: SnapshotReport | None = None) -> RecordedState:
        """Stores the whole directory as it is now, by the rules of a checkpoint."""
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
        return working_tree.record(store, path, known=states, report=report, options=options)

    def _restore_fully(self) -> None:
        """Builds the tree beside the target and renames it into place."""
        path = self._target.path
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.parent / self._target.staging
        staging.mkdir(0o700)
        try:
            fd = os.open(staging, DIR_FLAGS)
            with closing_fd(fd):
                # Before the rename: killed right after it, the directory is known all the same.
                self._save_state(fd)
                write_tree(self._store, self._dated_goal(), fd=fd, progress=self._progress)
                self._keep_private(fd)
                self._fill_stat_cache(fd)
                staging.rename(path)  # takes the place of an empty directory
                # Again: another restore deletes states of directories that are not there yet.
                self._save_state(fd)
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
            self._mark_under_way(fd)
            temp = self._target.staging.encode()
            mode = self._allowed_mode_bits()
            task = IncrementalRestore(
                self._store, temp, self._progress, top_mode=mode, newest=contents.newest
            )
            task.directory(fd, b"", [contents.current, *self._unfinished()], self._goal)
            if contents.current is None:
                task.date_as_recorded(fd, self._dated_goal())
            # The recorded times would be older than what was built there from other versions.
            else:
                task.date(fd, self._dated_goal())
            # One that came meanwhile: the restore is not complete, and its state says so.
            self._target.refuse_blocked(task.outcome.blocked, forced=False)
            # Of single paths the state stays what `_mark_under_way` has made it. In a directory
            # that was empty the other paths are only missing, which is no local change.
            if not self._paths or contents.current is None:
                self._save_state(fd)
        self.result.old = contents.olds[0] if contents.olds else None
        self.result.outcome = task.outcome

    def _mark_under_way(self, fd: int) -> None:
        """Notes all trees that the directory may hold from now on, before the first change."""
        olds = self._contents.olds
        states = list(dict.fromkeys([*olds, self._root]))
        if not self._paths:
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
        return [old and self._without_failed(old) for old in olds]

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
        if self._goal == self._root and not self._progress.failed:
            tracked.remember(
                self._real_store, fd, directory=self._target.path, state=self._state, preserve=kept
            )

    def _dated_goal(self) -> DatedTree:
        """Returns what the directory is to hold, with the times that it was recorded with."""
        with self._store.batch() as batch:
            times = dated.times_for(self._store, batch, tree=self._goal, source=self._state.whole)
        return DatedTree(self._goal, times)

    def _save_state(self, fd: int) -> None:
        work = self._state.tree if self._state.local else None
        self._target.save_state(fd, [self._root], self._options.name, work=work, by_restore=True)
