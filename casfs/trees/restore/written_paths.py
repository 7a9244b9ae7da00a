"""The paths that a command is about to write, as two trees: as they are, and as they shall be.

Both are stored for the log of operations before the first write, with the content of each file that
the store does not have yet, so that whatever is overwritten or deleted can be had back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from casfs.digest import TimesHash, TreeHash
from casfs.directories.operations import OpenedAt, WrittenPaths
from casfs.errors import Conflict
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.write_batch import Batch
from casfs.system.files import closing_fd
from casfs.system.paths import FILE_FLAGS, open_directory, printable
from casfs.trees import dated, edit, tree
from casfs.trees.dated import DatedTree
from casfs.trees.git import repository_state
from casfs.trees.git.repository_paths import RepositoryPaths
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot import tracked
from casfs.trees.snapshot.report import SnapshotOptions

Leaves = dict[bytes, Entry]  # files, links and empty directories, by path
Modes = dict[bytes, int]  # of directories, by path


def put(
    scratch: ScratchStore,
    batch: Batch,
    opened: OpenedAt,
    current: DatedTree | None,
    goal: DatedTree,
    *,
    is_whole: bool,
) -> WrittenPaths | None:
    """Puts what differs between the trees `current`, which an open directory holds, and `goal`,
    into a batch of the store that `scratch` is a view of; commits it. None where nothing does.
    `is_whole`: the trees have only paths that differ, so they are taken as they are where they are
    stored. Raises Conflict where a file was changed since it was looked at."""
    if is_whole:
        empty = batch.put_directory(directory.encode([])).hash
        batch.commit()
        trees = [empty if current is None else current.tree, goal.tree]
        if len(scratch.stored(trees)) == len(set(trees)):
            return _dated(scratch, batch, trees, (current, goal))
    before: Leaves = {}
    after: Leaves = {}
    modes: tuple[Modes, Modes] = {}, {}  # of directories on both sides, where they differ
    for change in tree.changes(scratch, current and current.tree, goal.tree):
        if isinstance(change.old, Subdirectory) and isinstance(change.new, Subdirectory):
            for side_modes, directory_entry in zip(modes, (change.old, change.new), strict=True):
                mode = tree.directory_mode(scratch, directory_entry.digest.hash)
                side_modes[change.path] = mode
            continue
        for side, entry in ((before, change.old), (after, change.new)):
            if entry is not None and tree.is_leaf(scratch, entry):
                side[change.path] = entry
    if not before and not after and modes[0] == modes[1]:
        return None
    git = RepositoryPaths(scratch, [side.tree for side in (current, goal) if side is not None])
    repositories = {git.of(path) for path in before.keys() | after.keys()}
    # So that what becomes of one is understood as git does, whatever git has packed by then.
    for top in repositories:
        if top is not None and current is not None:
            there = _state_files(scratch, opened, top)
            before = there | before
            # What neither tree has stays, and counts: refs that were packed since, a new branch.
            after |= {
                path: entry
                for path, entry in there.items()
                if tree.find(scratch, current.tree, path) is None
            }
        if top is not None:
            after = repository_state.state_files(scratch, goal.tree, top) | after
    if current is not None:
        before |= edit.emptied(scratch, current.tree, after)
    after |= edit.emptied(scratch, goal.tree, before)
    _put_contents(scratch, batch, opened.fd, before)
    trees = []
    for leaves, side_modes, source in ((before, modes[0], current), (after, modes[1], goal)):
        root = _put_tree(scratch, batch, leaves, like=source and source.tree)
        batch.commit()  # so that the tree can be read
        if side_modes:
            root = edit.with_directory_modes(scratch, batch, root, side_modes).hash
            batch.commit()
        trees.append(root)
    return _dated(scratch, batch, trees, (current, goal))


def _dated(
    scratch: ScratchStore,
    batch: Batch,
    trees: Sequence[TreeHash],
    sources: Sequence[DatedTree | None],
) -> WrittenPaths:
    """Returns trees with the times that their paths have in the sources."""

    def is_stored(times: TimesHash) -> bool:
        return bool(scratch.stored([times]))

    dates = [
        None if source is None else dated.times_for(scratch, batch, root, source, has=is_stored)
        for root, source in zip(trees, sources, strict=True)
    ]
    return WrittenPaths(*map(DatedTree, trees, dates))


def _state_files(scratch: ScratchStore, opened: OpenedAt, top: bytes) -> Leaves:
    """Returns the files in which a repository in the directory has its state now, by path."""
    names: list[bytes] = []
    try:
        os.close(open_directory(opened.fd, top.split(b"/")))
    except OSError:  # it is about to be made, or is a file by now
        return {}
    for folder, folders, files, _ in os.fwalk(top, dir_fd=opened.fd):
        inside = (folder + b"/")[len(top) + 1 :]
        if not inside:
            folders[:] = [name for name in folders if name not in repository_state.NO_STATE]
        state = [name for name in files if repository_state.is_state(inside + name)]
        names += [folder + b"/" + name for name in state]
    with scratch.batch() as batch:
        root = edit.of_names(scratch, batch, names).hash
    options = SnapshotOptions(must_be_whole=True)
    seen = tracked.snapshot_tracked(scratch, opened.path, [root], options).tree
    return repository_state.state_files(scratch, seen, top)


def _put_tree(
    scratch: ScratchStore, batch: Batch, leaves: Mapping[bytes, Entry], like: TreeHash | None
) -> TreeHash:
    for entry in leaves.values():
        if isinstance(entry, Subdirectory):  # the view may have it in memory only
            own = tree.directory_properties(scratch, entry.digest.hash)
            batch.put_directory(directory.encode([], own))
    return edit.with_entries(scratch, batch, root=None, changes=leaves, like=like).hash


def _put_contents(
    scratch: ScratchStore, batch: Batch, fd: int, leaves: Mapping[bytes, Entry]
) -> None:
    files = {path: entry for path, entry in leaves.items() if isinstance(entry, File)}
    stored = scratch.stored({entry.digest.hash for entry in files.values()})
    for path, entry in files.items():
        if entry.digest.hash in stored:
            continue
        *above, name = path.split(b"/")
        try:
            inner = open_directory(fd, above)
            with (
                closing_fd(inner),
                open(os.open(name, FILE_FLAGS, dir_fd=inner), "rb", buffering=0) as file,
            ):
                digest = batch.put_stream(file)
        except OSError:
            raise _changed(path) from None
        if digest.hash != entry.digest.hash:
            raise _changed(path)


def _changed(path: bytes) -> Conflict:
    return Conflict(f"{printable(path)} was changed while it was looked at; try again")
