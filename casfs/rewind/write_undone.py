"""Writes into a directory what was decided of it: paths that change, and no others."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from casfs.digest import TreeDigest, TreeHash
from casfs.directories import operations
from casfs.errors import Conflict
from casfs.rewind.repositories import with_refs
from casfs.rewind.undo_calls import Undone
from casfs.store.nodes import directory as directories
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.paths import printable
from casfs.trees import dated, edit, tree
from casfs.trees.dated import DatedTree
from casfs.trees.git import repository_state
from casfs.trees.git.repository_paths import RepositoryPaths
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.options import RestoreOptions, RestoreResult
from casfs.trees.restore.restore import restore
from casfs.trees.snapshot import tracked
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

UNRECORDED = "what is there now cannot be recorded"
Leaves = dict[bytes, Entry | None]  # files, links and empty directories, by path


def write(
    store: Store, source: Store, directory: Path, undone: Undone, options: RestoreOptions
) -> RestoreResult:
    """Makes the changes of `undone`, whose trees are in `source`, `store` or a view of it. Raises
    Conflict where one of their paths is not as it was looked at, Refused, Failed."""
    local = store.local_writes()
    origin = None if undone.like is None else undone.like.full
    old, new = (_leaves(source, undone, is_new=is_new) for is_new in (False, True))
    old_modes, new_modes = (_modes(source, undone, is_new=is_new) for is_new in (False, True))
    with local.batch() as batch:
        _put_contents(local, source, batch, new)
        batch.commit()
        wanted = edit.with_entries(local, batch, root=None, changes=new, like=origin)
        there = [path for path, entry in old.items() if entry is not None]
        there += [path for path in old_modes if path != tree.TOP]
        sides = [wanted.hash, edit.of_names(local, batch, there).hash]
    look = SnapshotOptions()
    # So that the log has what git says of them before and after.
    repositories = {top for path in old if (top := undone.git.of(path)) is not None}
    report = SnapshotReport()
    dated_seen = tracked.snapshot_tracked(
        local, directory, sides, look, report=report, whole=repositories
    )
    seen = dated_seen.tree
    seen_paths = tree.PathFinder(local, seen)
    left_out = _left_out(directory, seen_paths, report=report, git=undone.git, paths=old)
    for path in left_out:
        del old[path], new[path]
    for path, entry in old.items():
        if not tree.is_same(local, _leaf(local, seen_paths.find(path)), entry):
            raise _changed(path)
    for path, mode in old_modes.items():
        if _mode(local, seen_paths.find(path)) != mode:
            raise _changed(path)
    with local.batch() as batch:
        root = seen if tree.load(local, seen) else None
        wanted = edit.with_entries(local, batch, root=root, changes=new, like=origin)
        batch.commit()
        # The directory itself is a person's, also where nothing of it is looked at.
        modes = {tree.TOP: tree.directory_mode(local, seen), **new_modes}
        wanted = edit.with_directory_modes(local, batch, wanted.hash, modes)
    state = RecordedState.of_tree(_completed(local, wanted, seen, new, undone))
    done = restore(store, state, directory, options.of_changes(dated_seen, undone.like))
    done.failed |= done.outcome.not_written([*old, *old_modes]) | left_out
    # The restore knew less of what is left, and by that the next undo goes on.
    if done.operation is not None and done.operation.left != len(done.failed):
        done.operation = operations.conclude(store, done.operation, left=len(done.failed))
    return done


def _left_out(
    directory: Path,
    seen: tree.PathFinder,
    *,
    report: SnapshotReport,
    git: RepositoryPaths,
    paths: Collection[bytes],
) -> dict[bytes, str]:
    """Returns the paths at which something is that the look could not record, such as a file that
    cannot be read: it could not be had back, so it stays. Of a repository all paths do."""
    where = os.fsencode(directory)
    left_out: dict[bytes, str] = {}
    repositories: dict[bytes, str] = {}
    for path, reason in report.unreadable.items():
        top = git.of(path)
        if top is not None and repository_state.is_state(path[len(top) + 1 :]):
            repositories[top] = reason
    for path in paths:
        reasons = (report.unreadable.get(above) for above in (*tree.parents(path), path))
        unreadable = next(filter(None, reasons), None)
        if unreadable is not None:
            left_out[path] = unreadable
        elif seen.find(path) is None and os.path.lexists(os.path.join(where, path)):
            left_out[path] = UNRECORDED
        if path in left_out and (top := git.of(path)) is not None:
            repositories.setdefault(top, left_out[path])
    for path in paths:
        top = git.of(path)
        if top in repositories:
            left_out.setdefault(path, repositories[top])
    return left_out


def _leaves(source: Store, undone: Undone, *, is_new: bool) -> Leaves:
    return {
        change.path: _leaf(source, change.new if is_new else change.old)
        for change in undone.changed
        if not _is_of_mode(change)
    }


def _modes(source: Store, undone: Undone, *, is_new: bool) -> dict[bytes, int]:
    return {
        change.path: mode
        for change in undone.changed
        if _is_of_mode(change)
        and (mode := _mode(source, change.new if is_new else change.old)) is not None
    }


def _is_of_mode(change: tree.Change) -> bool:
    """Whether it is the mode of a directory that changes, which stays with what is in it."""
    return isinstance(change.old, Subdirectory) and isinstance(change.new, Subdirectory)


def _mode(store: Store, entry: Entry | None) -> int | None:
    if not isinstance(entry, Subdirectory):
        return None
    return tree.directory_mode(store, entry.digest.hash)


def _changed(path: bytes) -> Conflict:
    return Conflict(f"{printable(path)} has changed since it was looked at; try again")


def _leaf(store: Store, entry: Entry | None) -> Entry | None:
    """Returns None for a directory with entries, which are changes of their own."""
    return entry if entry is not None and tree.is_leaf(store, entry) else None


def _put_contents(store: Store, source: Store, batch: Batch, leaves: Leaves) -> None:
    """Puts what was made by the decision, as a merged text, and is in the view alone."""
    hashes = {entry.digest.hash for entry in leaves.values() if isinstance(entry, File)}
    stored = store.blobs.info(hashes)
    for hash in hashes - stored.keys():
        batch.put(source.blobs.get(hash).data)
    for entry in leaves.values():
        if isinstance(entry, Subdirectory):
            own = tree.directory_properties(source, entry.digest.hash)
            batch.put_directory(directories.encode([], own))


def _completed(
    store: Store, root: TreeDigest, seen: TreeHash, leaves: Leaves, undone: Undone
) -> DatedTree:
    like = undone.like
    with store.batch() as batch:
        if like is not None:
            root = _with_empty_directories(store, batch, root, seen, leaves, like.full)
        repositories = {top for path in leaves if (top := undone.git.of(path)) is not None}
        root = with_refs(store, batch, root, repositories)
        times = None
        if like is not None:
            times = dated.times_for(store, batch, tree=root.hash, source=like.whole)
        return DatedTree(root.hash, times)


def _with_empty_directories(
    store: Store,
    batch: Batch,
    root: TreeDigest,
    seen: TreeHash,
    leaves: Leaves,
    origin: TreeHash,
) -> TreeDigest:
    """Returns the tree with the directories that were there, empty, before files came into them.
    They keep the modes that they have now."""
    deleted = [path for path, entry in leaves.items() if entry is None]
    missing: Leaves = {
        path: entry
        for path, entry in edit.emptied(store, origin, deleted).items()
        if tree.find(store, root.hash, path) is None
    }
    if not missing:
        return root
    kept = edit.with_entries(store, batch, root=root.hash, changes=missing, like=origin)
    batch.commit()
    new = {above for path in missing for above in (*tree.parents(path), path)}
    new = {path for path in new if tree.find(store, root.hash, path) is None}
    modes = {path: _mode(store, tree.find(store, seen, path)) for path in new}
    present = {path: mode for path, mode in modes.items() if mode is not None}
    kept = edit.with_directory_modes(store, batch, kept.hash, present)
    batch.commit()
    return kept
