"""The target of a restore: the directory, its restore state and its staging directory."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from casfs.digest import TreeHash
from casfs.errors import Conflict, NotFound, Refused
from casfs.store.store import Store
from casfs.system import locks, mounts, rmtree
from casfs.system.files import closing_fd, os_errors
from casfs.system.paths import (
    DIR_FLAGS,
    OpenedDirectory,
    open_directory,
    printable,
    real_path,
)
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import host_entries
from casfs.trees.restore.restore_state import RestoreState, RestoreStates

SHOWN_PATHS = 5  # of those in a message
WORKSPACES = ("workspaces", "tests")  # directories of a store: of threads, of `casfs bisect`
Roots = list[TreeHash | None]  # None: an empty tree


class Target:
    """`path`: absolute; `staging`: the name of the staging directory beside it. `opened`: the
    descriptor of the directory, where others may swap links in its path; then all goes from
    there. `here`: the path that leads to the directory in this process and its children."""

    def __init__(self, store: Store, path: Path, opened: int | None = None) -> None:
        self._store = store
        self._states = RestoreStates(store.root)
        self._opened = opened
        if opened is None:
            self.path = self.here = absolute(path)
        else:
            self.here = OpenedDirectory(opened).here
            self.path = OpenedDirectory(opened).path
        self.staging = self._states.staging_name(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def lock(self) -> str:
        # Of the path, not of the inode: a new directory has none yet.
        return f"restore-{RestoreStates.key(self.path)[:32]}"

    def open(self) -> int:
        """Opens the directory itself, no link. Raises OSError."""
        if self._opened is None:
            return os.open(self.path, DIR_FLAGS)
        return os.open(".", DIR_FLAGS, dir_fd=self._opened)

    def refuse_to_wait(self) -> None:
        raise Conflict(f"another restore into {self} is under way; wait for it")

    def check(self, root: TreeHash, delete_untracked: bool, parents: bool) -> None:
        """Raises Refused for a target that is not a directory, that is in the store, or that holds
        the store where the tree `root` has files; NotFound for one without a parent."""
        target = self.path
        # What is open is a directory; whether its path still leads to it does not matter.
        if self._opened is None:
            if target.is_symlink() or (target.exists() and not target.is_dir()):
                raise Refused(f"{target} is not a directory")
            if not parents and not target.parent.exists():
                raise NotFound(f"no directory {target.parent}; use --parents to make it")
        store = Path(os.path.realpath(self._store.root))
        # The kernel gave the path of an open one: resolved again, a swapped link could lead on.
        real_target = real_path(target) if self._opened is None else target
        holds_store = real_target in store.parents
        if real_target == store or (delete_untracked and holds_store):
            raise Refused(f"{target} holds the store itself; restore into another directory")
        # Workspaces are in there; all else is the store's own, where gc may delete it.
        is_inside = store in real_target.parents
        above = {*real_target.parents}
        if is_inside and above.isdisjoint(store / folder for folder in WORKSPACES):
            raise Refused(f"{target} is in the store {store}; restore into another directory")
        if holds_store:
            inside = os.fsencode(store.relative_to(real_target))
            if tree.find(self._store, root, inside) is not None:
                raise Refused(
                    f"{target}: the tree has files at {printable(inside)}, where the store"
                    " itself is; restore into another directory"
                )

    def delete_staging(self) -> None:
        """Delete the staging directory that a killed full restore left beside the target."""
        # An open directory is never replaced, so it has none; its path could lead elsewhere by now.
        if self._opened is None:
            rmtree.delete(self.path.parent / self.staging)

    def delete_temporary(self, roots: Collection[TreeHash]) -> None:
        """Delete the temporary entries that a killed incremental restore between these trees left
        in their directories. Raises Conflict where another restore writes there; OSError."""
        folders = {b""}
        for root in roots:
            folders.update(path.rpartition(b"/")[0] for path, _ in tree.walk(self._store, root))
        top = self.open()
        with closing_fd(top), locks.held(self._store.root, self.lock, self.refuse_to_wait):
            for folder in folders:
                with suppress(FileNotFoundError, NotADirectoryError):
                    inner = open_directory(top, filter(None, folder.split(b"/")))
                    with closing_fd(inner):
                        host_entries.discard(inner, self.staging.encode())

    def _current_state(self) -> RestoreState | None:
        """Returns the restore state of the directory that is there now."""
        state = self._states.find(self.path)
        # `here` of an open directory is itself a link, of /proc; any other one is not followed.
        try:
            status = os.stat(self.here, follow_symlinks=self._opened is not None)
        except FileNotFoundError:
            return None
        # The state of a directory that was here before says nothing of this one.
        is_current = state is not None and state.is_of(status)
        return state if is_current else None

    def known_state(self) -> RecordedState | None:
        """Returns what a completed restore, or a checkpoint, left there."""
        current = self._current_state()
        return None if current is None else current.state

    def restored_state(self) -> RecordedState | None:
        """Returns what casfs wrote there last, if it did."""
        current = self._current_state()
        return None if current is None else current.last_written

    def recorded_as(self) -> str:
        """Returns NAME@ID of the checkpoint that was recorded of the directory last, or empty."""
        current = self._current_state()
        return "" if current is None else current.name

    def is_empty(self) -> bool:
        try:
            with os.scandir(self.here) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True

    def mount_points(self) -> frozenset[bytes]:
        """Returns the paths in the directory at which something is mounted."""
        # The kernel gave the path of an open one, without links.
        top = self.path if self._opened is not None else real_path(self.path)
        # Those of the directory on itself, too: they may be read-only, and cannot be deleted.
        points = mounts.mounted_below(top)
        return frozenset(os.fsencode(point.relative_to(top)) for point in points)

    def is_replaceable(self) -> bool:
        """An empty mount point or working directory is filled in place, and so is one whose parent
        is not writable: no directory can be renamed into it."""
        # Who opened it, or stands in it, would be left with the deleted directory.
        if self._opened is not None:
            return False
        if not self.path.exists():
            return True
        if os.path.ismount(self.path):
            return False
        if os.path.realpath(self.path) == os.path.realpath("."):
            return False
        return os.access(self.path.parent, os.W_OK | os.X_OK)

    def possible_trees(
        self, base: TreeHash | None, *, is_needed: bool, is_looked_at: bool
    ) -> Roots:
        """Returns the trees that the directory may hold: `base`, else what is known of it;
        `is_looked_at`: `base` is of a look at it. Raises Refused when they are unknown, and
        `is_needed`."""
        if base is not None and is_looked_at:
            # What a killed restore was about to write is in it where it is there, and stays.
            return [base]
        state = self._current_state()
        recorded = list(state.roots) if state is not None else []
        if base is not None:
            # The caller's tree stands above the record, but not what a killed restore wrote since:
            # several roots are recorded while one runs (`save_state`).
            unfinished = recorded if len(recorded) > 1 else []
            return list(dict.fromkeys([base, *unfinished]))
        if not recorded and is_needed:
            raise Refused(
                f"{self.path}: not empty and not restored by casfs before;"
                " use --base TREE, or an empty directory"
            )
        return self._stored(recorded)

    def _stored(self, roots: Roots) -> Roots:
        """Returns those that the store has. Raises Refused where it has none."""
        # The state keeps no tree from gc. What came from one that is gone is a local change.
        kept: Roots = []
        for root in roots:
            if root is None or self._store.blobs.info([root]):
                kept.append(root)
        if roots and not kept:
            raise Refused(
                f"{self.path}: the tree that was restored there, {roots[0]}, is not in this"
                " store any more; restore into a new or empty directory"
            )
        return kept

    def local_changes_refused(
        self, changed: Sequence[bytes], purged: Sequence[bytes], advice: str
    ) -> Refused:
        """`purged`: those of the changed paths that cannot be stored first; `advice`: what to do,
        empty where they can be overwritten."""
        if not advice:
            way_back = "`casfs undo` takes that back"
            if purged:
                way_back += f"; {listed(purged)} was purged, cannot be recorded, and is moved aside"
            advice = f"use --force to overwrite them ({way_back})"
        return Refused(f"{self}: local changes would be overwritten: {listed(changed)}; {advice}")

    def refuse_blocked(self, blocked: Sequence[bytes], *, forced: bool) -> None:
        """`forced`: what can be recorded is, so these hold what a checkpoint leaves out."""
        if blocked:
            kind = "untracked files"
            or_force = ", or use --force"
            if forced:
                kind = "files that checkpoints leave out"
                or_force = ""
            raise Refused(
                f"{self}/{listed(blocked)}: a directory with {kind} is where the tree has a file;"
                f" move it away{or_force}"
            )

    def save_state(
        self,
        fd: int,
        roots: Roots,
        name: str = "",
        work: TreeHash | None = None,
        *,
        by_restore: bool = False,
    ) -> None:
        """Save which trees the directory `fd`, which is or becomes this one, may hold; `name` and
        `work`: as in RestoreState; `by_restore`: a restore has made it, or begins to."""
        new = self._new_state(os.fstat(fd), roots)
        before = self._current_state()
        # A directory that a restore has made stays one when it is recorded as a checkpoint, any
        # other does not become one.
        was_restored = before is not None and (before.is_restored or before.written is not None)
        state = replace(new, name=name, work=work, is_restored=by_restore or was_restored)
        # One root is a hint, which may be lost. Several are all that tells of a killed restore.
        self._states.save(state, durable=len(roots) > 1)

    def save_partial_state(self, fd: int, roots: Roots) -> None:
        """As `save_state`, before single paths are restored: what the directory held stays what it
        is compared with, unless a restore of all of it was interrupted."""
        before = self._current_state()
        # The record is of no use where the caller named another tree, or gc took the recorded one.
        if before is None or before.roots[:1] != tuple(roots[:1]):
            before = self._new_state(os.fstat(fd), roots[:1])
        # None while a restore of all of it is under way, or was interrupted.
        was_complete = before.state is not None
        state = replace(before, roots=tuple(roots), is_partial=was_complete)
        self._states.save(state, durable=True)

    def base_values(self) -> dict[str, Any]:
        """Returns what restores compare with, as `reset_base` takes it."""
        current = self._current_state()
        if current is None or current.state is None:
            return {}
        return {
            "roots": list(current.roots[:1]),
            "name": current.name,
            "work": current.work,
            "is_restored": current.is_restored,
        }

    def reset_base(self, values: Mapping[str, Any]) -> None:
        """Has restores compare again with what they compared with when `values` were taken."""
        current = self._current_state()
        if current is not None:
            roots = tuple(values.get("roots", ()))
            reset = {**values, "roots": roots} if roots else {"roots": (), "name": "", "work": None}
            self._states.save(replace(current, **reset, is_partial=False))

    def save_written(self, fd: int, state: RecordedState) -> None:
        """Save of what state a rewind has brought something back to the directory `fd`: what was
        private in it stays so. What a restore compares with stays, too."""
        before = self._current_state() or self._new_state(os.fstat(fd), ())
        self._states.save(replace(before, written=state.full, written_work=state.tree))

    def _new_state(self, status: os.stat_result, roots: Sequence[TreeHash | None]) -> RestoreState:
        path = str(self.path)
        return RestoreState(path, status.st_dev, inode=status.st_ino, roots=tuple(roots))

    def forget(self) -> None:
        """Delete the state, and the staging directory that a killed restore left. Raises Failed."""
        self.delete_staging()
        with os_errors(f"cannot forget {self}"):
            self._states.forget(self.path)


def record_state(store: Store, directory: Path, state: RecordedState, name: str) -> None:
    """Note that `directory` holds `state`, recorded as the checkpoint `name`, as it does after a
    restore. Raises Failed."""
    work = state.tree if state.local else None
    with os_errors(f"cannot note what {directory} holds"):
        # Unlike a target, it may be named by a link: the state is of the directory it leads to.
        fd = os.open(directory, DIR_FLAGS & ~os.O_NOFOLLOW)
        with closing_fd(fd):
            target = Target(store, directory, fd)
            target.save_state(fd, [state.full], name, work=work)


def listed(paths: Sequence[bytes]) -> str:
    suffix = f" (and {len(paths) - SHOWN_PATHS} more)" if len(paths) > SHOWN_PATHS else ""
    return ", ".join(map(printable, paths[:SHOWN_PATHS])) + suffix


def absolute(target: Path) -> Path:
    """Returns the path of a target; resolves links in the parents: one directory, one state."""
    with os_errors(f"cannot restore to {target}"):
        path = target.absolute()
    # The last name is kept, so that a target that is a link is seen, and refused.
    if path.name in ("", ".."):
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent)) / path.name
