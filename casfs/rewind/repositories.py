"""Undoes what a call has done to a git repository, as git sees it.

A repository goes back as a whole or stays as a whole: half of it would be none. It has gone on
where a ref, the index or a file that the call has changed is neither as the call left it nor as it
was before. `git status` and `git gc` change none of these (`casfs.trees.git.repository_state`).

What comes back are objects that are not there any more, then what names them; no object is deleted,
since git's own gc does that. A branch that another work tree has checked out is that one's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from casfs.digest import TreeDigest, TreeHash
from casfs.sessions.session_steps import CallRecord
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import edit, tree
from casfs.trees.git import repository_state
from casfs.trees.git.repository_paths import RepositoryPaths
from casfs.trees.git.repository_state import (
    ALTERNATES,
    BRANCHES,
    COMMON,
    HEAD,
    INDEX,
    LOGS,
    PACKED_REFS,
    STASH_LOG,
    SYMBOLIC,
    RepositoryState,
)

PACKED_LINE = re.compile(rb"#|\^?[0-9a-f]{40,64}(?: refs/[^\n]*)?\n")
SHARED_INDEX = b"sharedindex."
Edits = dict[bytes, Entry | None]
Value = TypeVar("Value")


class UndoneRepository:
    """One repository, at `path` in the directory `current`, as undone so far."""

    def __init__(self, store: Store, current: TreeHash, path: bytes, git: RepositoryPaths) -> None:
        self._store = store
        self._git = git
        self._current = current
        self.path = path
        self._present = repository_state.read(store, current, path)
        self._goal = self._present
        self._source: TreeHash | None = None  # has what the goal names
        self._states: dict[TreeHash, RepositoryState | None] = {current: self._present}
        self._files: Edits | None = None  # what becomes of each, where that is known byte by byte
        self._with_lost: list[TreeHash] = []  # have what is not there any more
        self._object_ids: set[bytes] | None = None  # that are there
        self.has_gone_on = False
        self.held: set[bytes] = set()  # branches of other work trees that are not undone

    def _state_in(self, root: TreeHash) -> RepositoryState | None:
        if root not in self._states:
            self._states[root] = repository_state.read(self._store, root, self.path)
        return self._states[root]

    def bring_to(self, root: TreeHash) -> None:
        """Makes it the repository that a tree has, whatever it is by now."""
        self._goal = self._without_held(self._state_in(root))
        self._source = root
        self.has_gone_on = self._is_needed(self._goal)

    def undo(self, call: CallRecord) -> None:
        assert call.before is not None
        assert call.after is not None
        before = self._state_in(call.before.full)
        after = self._state_in(call.after.full)
        if self.has_gone_on or _identity(before) == _identity(after):
            return
        goal = self._goal
        if _identity(goal) == _identity(after):
            goal = self._without_held(before)
            self.has_gone_on = self._is_needed(goal)
        elif before is None or after is None or goal is None:
            self.has_gone_on = _identity(goal) != _identity(before)
        else:
            goal = self._merged(goal, before, after)
        if not self.has_gone_on:
            self._goal = goal
            self._source = call.before.full

    def bring_back_lost(self, root: TreeHash) -> None:
        """Has the objects that a tree has come back where they are not there any more, in whatever
        file, and its logs of refs; whatever else becomes of the repository."""
        self._with_lost.append(root)

    def undo_interrupted(self, call: CallRecord) -> None:
        """Takes back what was killed while it wrote into the repository, where each file is as it
        was before or as it was to be: git need not see a repository there."""
        assert call.before is not None
        assert call.after is not None
        files: Edits = {}
        goal = self._state_in(call.before.full)
        if self._is_needed(goal):
            return
        for change in tree.changes(self._store, call.before.full, call.after.full):
            if self._git.of(change.path) == self.path != change.path:
                present = tree.find(self._store, self._current, change.path)
                sides = [_leaf(change.old), _leaf(change.new)]
                if not any(self._is_same(_leaf(present), side) for side in sides):
                    return
                is_object = repository_state.is_object(change.path[len(self.path) + 1 :])
                if sides[0] is not None or not is_object:
                    files[change.path] = sides[0]
        self._files = files
        self._goal = goal
        self.has_gone_on = False

    def is_changed_by(self, call: CallRecord) -> bool:
        """Whether a call has changed the repository, as git sees it."""
        assert call.before is not None
        assert call.after is not None
        sides = (call.before.full, call.after.full)
        first, second = map(self._state_in, sides)
        return _identity(first) != _identity(second)

    def _merged(
        self, goal: RepositoryState, before: RepositoryState, after: RepositoryState
    ) -> RepositoryState:
        """Returns the goal with what differs between two states taken back."""
        refs = dict(goal.refs)
        for name in before.refs.keys() | after.refs.keys():
            old, new = before.refs.get(name), after.refs.get(name)
            if old == new:
                continue
            if self._present is not None and name in self._present.held:
                self._note_held(name, old)
            elif refs.get(name) == new:
                _set(refs, name, old)
            elif refs.get(name) != old:
                self.has_gone_on = True
        # Where a branch `a` was made since, `a/b` cannot come back.
        if any(above in refs for name in refs for above in tree.parents(name)):
            self.has_gone_on = True
        # A branch that is checked out by now is not deleted: HEAD would be unborn.
        if self._present is not None and _is_born(self._present.refs) and not _is_born(refs):
            self.has_gone_on = True
        files = dict(goal.files)
        for name in before.files.keys() | after.files.keys():
            was, became = before.files.get(name), after.files.get(name)
            if repository_state.same_file(was, became):
                continue
            if repository_state.same_file(files.get(name), became):
                _set(files, name, was)
            elif not repository_state.same_file(files.get(name), was):
                self.has_gone_on = True
        merged = replace(goal, refs=refs, files=files)
        if before.tracked != after.tracked:
            if goal.tracked == after.tracked:
                merged = replace(merged, tracked=before.tracked, index=before.index)
            elif goal.tracked != before.tracked:
                self.has_gone_on = True
        if before.stashes != after.stashes:
            if goal.stashes == after.stashes:
                merged = replace(merged, stashes=before.stashes, stash_log=before.stash_log)
            elif goal.stashes != before.stashes:
                self.has_gone_on = True
        return merged

    def _without_held(self, before: RepositoryState | None) -> RepositoryState | None:
        """Returns the state before, with the branches of other work trees as they are."""
        if before is None or self._present is None or not self._present.held:
            return before
        refs = dict(before.refs)
        for name in self._present.held:
            self._note_held(name, before.refs.get(name))
            _set(refs, name, self._present.refs.get(name))
        return replace(before, refs=refs)

    def _note_held(self, name: bytes, before: bytes | None) -> None:
        if self._present is not None and self._present.refs.get(name) != before:
            self.held.add(name)

    def _is_needed(self, goal: RepositoryState | None) -> bool:
        """Whether a work tree elsewhere is of the repository, which would go."""
        return goal is None and self._present is not None and bool(self._present.held)

    @property
    def words(self) -> list[str]:
        """What is to change, in words."""
        words = []
        if _identity(self._present) != _identity(self._goal):
            words = repository_state.words(self._present, self._goal)
        elif lost := self._lost_objects():
            words = [f"{len(lost)} files with objects or logs"]
        return words

    def edits(self) -> Edits:
        """Returns the paths that are to change in the directory."""
        if self._files is not None:
            return {
                path: entry
                for path, entry in self._files.items()
                if not self._is_same(entry, _leaf(tree.find(self._store, self._current, path)))
            }
        if _identity(self._present) == _identity(self._goal):
            return self._lost_objects()
        if self._goal is None or self._present is None:
            return self._edits_of_all()
        edits = self._edits_of_refs(self._present, self._goal)
        if self._present.tracked != self._goal.tracked:
            edits[INDEX] = self._goal.index
            edits |= self._shared_index()
        if self._present.stashes != self._goal.stashes:
            edits[STASH_LOG] = self._goal.stash_log
        for name in self._present.files.keys() | self._goal.files.keys():
            old, new = self._present.files.get(name), self._goal.files.get(name)
            if not repository_state.same_file(old, new):
                edits[name] = new
        return {**self._lost_objects(), **self._below(edits)}

    def leaves_unborn(self, edits: Edits) -> bool:
        """Whether a work tree in the directory, which these edits leave as it is, is on a branch
        that goes."""
        if self._present is None or self._goal is None:
            return False
        gone = self._present.refs.keys() - self._goal.refs.keys()
        heads = repository_state.heads_of_work_trees(self._store, self._current, self.path)
        return any(head in gone and path not in edits for path, head in heads.items())

    def lacks_commits(self, edits: Edits) -> bool:
        """Whether a commit that the repository is to name is neither there nor comes back with
        these edits: git's gc has deleted it since."""
        if self._goal is None or self._present is None:
            return False
        if tree.find(self._store, self._current, self.path + ALTERNATES) is not None:
            return False  # they may be there
        named = repository_state.commit_ids(self._goal) - repository_state.ids(self._present)
        missing = named and named - self._present_ids()
        for path, entry in edits.items() if missing else ():
            if entry is not None and self._git.of(path) == self.path:
                missing -= repository_state.ids_in(self._store, path, entry)
        return bool(missing)

    def _shared_index(self) -> Edits:
        """Returns the other file of an index that is split, where git has deleted that since."""
        top = None if self._source is None else tree.find(self._store, self._source, self.path)
        entries = tree.load(self._store, top.digest.hash) if isinstance(top, Subdirectory) else {}
        return {
            name: entry
            for name, entry in entries.items()
            if name.startswith(SHARED_INDEX) and self._find(name) is None
        }

    def _below(self, edits: Edits) -> Edits:
        return {self.path + b"/" + name: entry for name, entry in edits.items()}

    def _edits_of_all(self) -> Edits:
        """A repository that the call has made goes, and one that it has deleted comes back."""
        edits: Edits = dict.fromkeys(path for path, _ in self._leaves(self._current))
        if self._goal is not None and self._source is not None:
            edits |= dict(self._leaves(self._source))
        return edits

    def _leaves(self, root: TreeHash) -> Iterable[tuple[bytes, Entry]]:
        for path, entry in tree.below(self._store, root, self.path):
            if tree.is_leaf(self._store, entry) and self._git.of(path) == self.path:
                yield path, entry

    def _edits_of_refs(self, present: RepositoryState, goal: RepositoryState) -> Edits:
        """A ref is written loose, which stands above a packed one; one that is to go is taken out
        of both."""
        edits: Edits = {}
        gone = set()
        for name in present.refs.keys() | goal.refs.keys():
            value = goal.refs.get(name)
            if present.refs.get(name) == value:
                continue
            if value is None:
                gone.add(name)
                # With its log, beside which git makes no branch below it, or above.
                for file in (name, LOGS + name):
                    if self._find(file) is not None:
                        edits[file] = None
            else:
                edits[name] = self._file(name, value + b"\n")
        packed = self._find(PACKED_REFS)
        if isinstance(packed, File):
            data = self._store.blobs.get(packed.digest.hash).data
            kept = _without_packed(data, gone)
            if kept != data:
                edits[PACKED_REFS] = self._file(PACKED_REFS, kept)
        return edits

    def _is_same(self, entry: Entry | None, other: Entry | None) -> bool:
        return tree.is_same(self._store, entry, other)

    def _find(self, name: bytes) -> Entry | None:
        return tree.find(self._store, self._current, self.path + b"/" + name)

    def _file(self, name: bytes, data: bytes) -> File:
        digest = self._store.local_writes().put(data)
        return File(name.rpartition(b"/")[2], digest, executable=False)

    def _lost_objects(self) -> Edits:
        """Returns the files that have objects which are in no file there any more: of the trees
        that are known to have such, and of the goal, where an object that it names is lost."""
        sources = list(dict.fromkeys(self._with_lost))
        if self._source is not None and self._goal is not None and self._present is not None:
            named = repository_state.ids(self._goal) - repository_state.ids(self._present)
            if named - self._present_ids():
                sources.append(self._source)
        lost: Edits = {}
        for source in sources:
            files = repository_state.object_files(self._store, source, self.path)
            present = {path: tree.find(self._store, self._current, path) for path in files}
            absent = {path: entry for path, entry in files.items() if present[path] is None}
            lost |= self._lost_logs(source)
            if source in self._with_lost:  # a call has written into some of them
                lost |= self._damaged(files, present)
            # A pack is its index, by which it is known, and files of the same name beside it.
            stems = {
                path.rpartition(b".")[0] or path
                for path, entry in absent.items()
                if repository_state.ids_in(self._store, path, entry) - self._present_ids()
            }
            for path, entry in absent.items():
                is_alternates = path.endswith(repository_state.ALTERNATES)
                if is_alternates or (path.rpartition(b".")[0] or path) in stems:
                    lost[path] = entry
        return lost

    def _lost_logs(self, source: TreeHash) -> Edits:
        """Returns the logs of refs, those of before, that are empty or not there any more: what was
        reset or amended is found by these alone."""
        lost: Edits = {}
        refs = {} if self._goal is None else self._goal.refs
        for path, entry in tree.below(self._store, source, self.path + b"/" + LOGS.rstrip(b"/")):
            name = path[len(self.path) + 1 :]
            if not isinstance(entry, File) or not entry.digest.size_bytes:
                continue
            there = self._find(name)
            is_empty = isinstance(there, File) and not there.digest.size_bytes
            if (there is None or is_empty) and name.removeprefix(LOGS) in refs:
                lost[path] = entry
        return lost

    def _damaged(
        self, files: Mapping[bytes, Entry], present: Mapping[bytes, Entry | None]
    ) -> Edits:
        """Returns the files of objects that have other bytes by now, where one of them has a name
        that says which objects are in it; with what git derives from these."""
        changed: Edits = {
            path: entry
            for path, entry in files.items()
            if present[path] is not None and not self._is_same(present[path], entry)
        }
        return changed if any(map(repository_state.is_named_by_content, changed)) else {}

    def _present_ids(self) -> set[bytes]:
        if self._object_ids is None:
            self._object_ids = set()
            files = repository_state.object_files(self._store, self._current, self.path)
            for path, entry in files.items():
                self._object_ids |= repository_state.ids_in(self._store, path, entry)
        return self._object_ids


def with_refs(
    store: Store, batch: Batch, root: TreeDigest, repositories: Iterable[bytes]
) -> TreeDigest:
    """Returns the tree with the directory of refs in each of these repositories that it has. Where
    all refs are packed it is empty, and without it git sees no repository."""
    missing: Edits = {}
    for path in repositories:
        has_head = tree.find(store, root.hash, path + b"/" + HEAD) is not None
        is_linked = tree.find(store, root.hash, path + b"/" + COMMON) is not None
        if has_head and not is_linked and tree.find(store, root.hash, path + b"/refs") is None:
            empty = batch.put_directory(directory.encode([]))
            missing[path + b"/" + BRANCHES.rstrip(b"/")] = Subdirectory(b"heads", empty)
    if not missing:
        return root
    batch.commit()
    completed = edit.with_entries(store, batch, root=root.hash, changes=missing)
    batch.commit()
    return completed


def _is_born(refs: Mapping[bytes, bytes]) -> bool:
    """Whether HEAD is detached at a commit, or names a branch that exists."""
    head = refs.get(HEAD, b"")
    return not head.startswith(SYMBOLIC) or head.removeprefix(SYMBOLIC).strip() in refs


def _identity(state: RepositoryState | None) -> object:
    return None if state is None else state.identity


def _leaf(entry: Entry | None) -> File | Symlink | None:
    return None if isinstance(entry, Subdirectory) else entry


def _set(values: dict[bytes, Value], name: bytes, value: Value | None) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def _without_packed(data: bytes, gone: set[bytes]) -> bytes:
    """Also without lines that are none: because of one git reads no ref."""
    lines = []
    is_gone = False
    for line in data.splitlines(keepends=True):
        if not PACKED_LINE.match(line.rstrip(b"\n") + b"\n"):
            is_gone = True  # with what follows it
            continue
        if line.startswith(b"^"):  # what the tag before it leads to
            if not is_gone:
                lines.append(line)
            continue
        is_gone = line.partition(b" ")[2].strip() in gone
        if not is_gone:
            lines.append(line)
    return b"".join(lines)
