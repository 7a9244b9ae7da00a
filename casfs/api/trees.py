"""Trees of a store: list, read, compare, build from a directory, restore to one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from casfs.api.values import Change, Checkpoint, Entry, Restored, Step
from casfs.checkpoints.revisions import Revision, resolve, resolve_tree, step_of
from casfs.digest import Digest, TreeHash
from casfs.directories.operations import Intent, Verb
from casfs.errors import NotFound
from casfs.sessions import caller
from casfs.store.nodes import directory
from casfs.store.store import Store
from casfs.trees import tree as trees
from casfs.trees.diff import unified_diff
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import restore
from casfs.trees.restore.options import RestoreOptions
from casfs.trees.snapshot import exclusions, policy, working_tree
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

Tree: TypeAlias = str | Digest | Checkpoint | Step | Entry
TreePath: TypeAlias = str | bytes | os.PathLike[str]
HostPath: TypeAlias = str | os.PathLike[str]
Warn: TypeAlias = Callable[[str], object]


class Trees:
    """The trees of a store.

    A `tree` is a revision (NAME, NAME~N, NAME@{TIME}, THREAD@STEP, REV:PATH, a hash, …), a
    `Digest`, a `Checkpoint`, a `Step` or the `Entry` of a directory. A `path` is relative to its
    root; symlinks are not followed. All methods raise NotFound for a tree or path that is not
    there, Conflict for an ambiguous prefix, Corrupt for damaged nodes and blobs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def resolve(self, tree: Tree) -> TreeHash:
        """Returns the hash of the root of `tree`."""
        if isinstance(tree, str):
            return resolve_tree(self._store, tree)
        hash: str | None
        if isinstance(tree, Digest):
            hash = tree.hash
        elif isinstance(tree, Checkpoint):
            hash = tree.root
        else:
            hash = tree.workspace if isinstance(tree, Step) else tree.hash
        if hash is None:
            raise NotFound(f"{tree}: no tree")
        return cast(TreeHash, hash)

    def stat(self, tree: Tree, path: TreePath = "") -> Entry:
        """Returns the entry at `path`."""
        root = self.resolve(tree)
        raw_path = os.fsencode(path)
        entry = trees.resolve(self._store, root, raw_path)
        if entry is None:
            return Entry("", "directory", root)
        return _entry(b"/".join(trees.split_path(raw_path)), entry)

    def ls(self, tree: Tree, path: TreePath = "") -> list[Entry]:
        """Returns the entries of a directory, sorted by name."""
        root, below = self._directory(tree, path)
        return [
            _entry(below + name, entry) for name, entry in trees.load(self._store, root).items()
        ]

    def walk(self, tree: Tree, path: TreePath = "") -> Iterator[Entry]:
        """Yields every entry below a directory, each directory before its content."""
        root, below = self._directory(tree, path)
        for entry_path, entry in trees.walk(self._store, root, below):
            yield _entry(entry_path, entry)

    def open(self, tree: Tree, path: TreePath) -> BinaryIO:
        """Opens a file for reading: seekable, verified, of any size."""
        return self._store.blobs.open(_hash(self._file(tree, path)))

    def read(self, tree: Tree, path: TreePath, offset: int = 0, size: int = -1) -> bytes:
        """Returns up to `size` bytes of a file from `offset` on; all of the rest for -1."""
        with self.open(tree, path) as file:
            file.seek(offset)
            return file.read(size)

    def diff(self, old: Tree | None, new: Tree | None) -> Iterator[Change]:
        """Yields the paths that differ, in path order; None is the empty tree."""
        for change in trees.changes(self._store, self._optional(old), self._optional(new)):
            before, after = (
                None if entry is None else _entry(change.path, entry)
                for entry in (change.old, change.new)
            )
            yield Change(change.letter, os.fsdecode(change.path), old=before, new=after)

    def patch(self, old: Tree | None, new: Tree | None) -> bytes:
        """Returns the difference as a unified diff for `git apply`, of at most 1 MiB."""
        return unified_diff.patch(self._store, self._optional(old), self._optional(new))

    def build(
        self,
        source: HostPath,
        *,
        default_excludes: bool = True,
        exclude: Sequence[str] = (),
        warn: Warn | None = None,
    ) -> Digest:
        """Stores the tree of the directory `source`; without a checkpoint gc may collect it.

        Left out are what `.casfsignore` and the patterns of `exclude` name, in gitignore's syntax,
        and with `default_excludes` directories that are derived by evidence, and `.git`. `warn` is
        called with one line for each entry that a tree cannot hold, or that cannot be read; without
        it the latter are Python's warnings. Raises NotFound, Invalid (a pattern), Failed, Refused.
        """
        where = Path(source)
        report = SnapshotReport()
        options = SnapshotOptions(scanner=policy.load(self._store).scanner())
        ignore = exclusions.ignore_rules(
            self._store, where, report, defaults=default_excludes, patterns=exclude
        )
        with self._store.batch() as batch:
            state = working_tree.snapshot(
                self._store, batch, directory=where, rules=ignore, report=report, options=options
            )
        pass_on_report(report, warn)
        return Digest(state.tree, self._store.blobs.info([state.tree])[state.tree].size)

    def restore(
        self,
        tree: Tree,
        target: HostPath,
        *,
        base: Tree | None = None,
        paths: Iterable[TreePath] = (),
        delete_untracked: bool = False,
        verify: bool = False,
        force: bool = False,
        parents: bool = False,
    ) -> Restored:
        """Makes the directory `target` hold `tree`: new, empty, or recorded or restored before.

        In the last case only what differs or is missing is written, and files in neither tree
        stay unless `delete_untracked`, which never deletes what a
        checkpoint leaves out, as `.git`. `base` names the tree that is there where the store does
        not know; `paths`: restore only these. `verify` reads every file, also where its stat is
        unchanged. Local changes are refused; `force` overwrites them. `casfs undo DIR` takes a
        restore back: it is the `operation` of the directory with this number. `parents` makes
        missing parents. Raises Refused for local changes and for a directory of unknown content,
        Conflict, Failed.
        """
        revision = self._revision(tree)
        state = revision.state
        done = restore.restore(
            self._store,
            state,
            Path(target),
            RestoreOptions(
                base=None if base is None else self._state(base).full,
                paths=[os.fsencode(path) for path in paths],
                delete_untracked=delete_untracked,
                verify=verify,
                parents=parents,
                force=force,
                operation=Intent(Verb.RESTORE, f"{tree}", caller.actor(self._store, {})),
                step=step_of(self._store, revision),
            ),
        )
        changed, kept = (
            tuple(map(os.fsdecode, paths)) for paths in (done.outcome.changed, done.outcome.kept)
        )
        return Restored(
            state.tree,
            done.old,
            files=done.files,
            bytes=done.bytes,
            deleted=done.outcome.deleted,
            changed=changed,
            kept=kept,
            operation=None if done.operation is None else done.operation.number,
            aside={
                os.fsdecode(path): os.fsdecode(aside) for path, aside in done.outcome.aside.items()
            },
        )

    def _state(self, tree: Tree) -> RecordedState:
        return self._revision(tree).state

    def _revision(self, tree: Tree) -> Revision:
        """Returns what was recorded, where that is known: the whole directory comes back."""
        if isinstance(tree, Checkpoint | Step):
            return resolve(self._store, tree.hash)
        if isinstance(tree, str):
            return resolve(self._store, tree)
        return Revision(RecordedState(self.resolve(tree)))

    def _optional(self, tree: Tree | None) -> TreeHash | None:
        return None if tree is None else self.resolve(tree)

    def _directory(self, tree: Tree, path: TreePath) -> tuple[TreeHash, bytes]:
        """Returns its root, and the prefix of the paths below it."""
        entry = _checked(self.stat(tree, path), "directory")
        return cast(TreeHash, entry.hash), os.fsencode(entry.path) + b"/" if entry.path else b""

    def _file(self, tree: Tree, path: TreePath) -> Entry:
        return _checked(self.stat(tree, path), "file")


def pass_on(lines: Iterable[str], warn: Warn | None) -> None:
    if warn is not None:
        for line in lines:
            warn(line)


def pass_on_report(report: SnapshotReport, warn: Warn | None) -> None:
    """Passes on what was not recorded. What could not be read is never left out in silence."""
    pass_on(report.warnings, warn)
    for line in report.unreadable_lines():
        if warn is None:
            warnings.warn(line, stacklevel=3)
        else:
            warn(line)


def _checked(entry: Entry, kind: str) -> Entry:
    if entry.kind != kind:
        raise NotFound(f"{entry.path or '.'}: not a {kind}, but a {entry.kind}")
    return entry


def _hash(entry: Entry) -> str:
    assert entry.hash is not None
    return entry.hash


def _entry(path: bytes, entry: directory.Entry) -> Entry:
    where = os.fsdecode(path)
    if isinstance(entry, directory.Subdirectory):
        return Entry(where, "directory", entry.digest.hash)
    kept = entry.properties or directory.Properties()
    seconds, ns = kept.mtime or (0, 0)
    mtime_ns = None if kept.mtime is None else seconds * 10**9 + ns
    if isinstance(entry, directory.Symlink):
        target = os.fsdecode(entry.target)
        return Entry(where, "symlink", target=target, mode=kept.unix_mode, mtime_ns=mtime_ns)
    hash = entry.digest.hash
    size = entry.digest.size_bytes
    return Entry(
        where,
        "file",
        hash=hash,
        size=size,
        executable=entry.executable,
        mode=kept.unix_mode,
        mtime_ns=mtime_ns,
    )
