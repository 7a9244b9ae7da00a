"""Three-way merges of trees: what changed from `base` to `theirs`, brought to `ours`.

Path by path: what only they changed is taken; what both changed is merged by lines where all are
text. Else it is a conflict, and one version stays whole: ours, or theirs where ours is deleted.
Paths in a directory named `.git` are left out, as in patches. Only the paths that they changed are
looked at, so all trees here but `theirs` may be partial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from casfs.digest import TreeHash
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.trees import edit, tree
from casfs.trees.diff import renames, three_way, unified_diff

Leaves = dict[bytes, Entry]  # files, links and empty directories, by path
GIT = b".git"
MARKERS = b"<<<<<<< ", b">>>>>>> "


@dataclass(slots=True)
class Changes:
    """The leaves that differ between two trees, as they are in each; `skipped`: those in `.git`."""

    old: Leaves = field(default_factory=dict)
    new: Leaves = field(default_factory=dict)
    skipped: int = 0

    @property
    def paths(self) -> list[bytes]:
        return sorted(self.old.keys() | self.new.keys())


@dataclass(slots=True)
class Merged:
    """`root`: of the merged paths; `changed`: what is not as in ours;
    `conflicts`: path and reason; `unresolved`: files with the markers of a former merge."""

    root: TreeHash
    changed: list[tree.Change]
    conflicts: list[tuple[bytes, str]]
    unresolved: list[bytes]


def changes(store: Store, base: TreeHash, theirs: TreeHash) -> Changes:
    leaf_changes = Changes()
    for change in tree.changes(store, base, theirs):
        if GIT in change.path.split(b"/"):
            leaf_changes.skipped += 1
            continue
        for side, entry in ((leaf_changes.old, change.old), (leaf_changes.new, change.new)):
            if entry is not None and tree.is_leaf(store, entry):
                side[change.path] = entry
    return leaf_changes


def partial_tree(store: Store, leaves: Mapping[bytes, Entry], like: TreeHash) -> TreeHash:
    """Stores a tree of these paths alone; directories have the properties that they have in
    `like`."""
    with store.batch() as batch:
        return edit.with_entries(store, batch, root=None, changes=leaves, like=like).hash


def merge(store: Store, theirs: Changes, ours: TreeHash, like: TreeHash, label: str) -> Merged:
    """Merges the changes `theirs` into the tree `ours`; `label` names them in markers. New
    directories have the properties that they have in `like`."""
    merging = _Merge(store, label)
    edits: dict[bytes, Entry | None] = {}
    whole: list[bytes] = []  # directories that stay, with all that is in them
    for path in theirs.paths:
        mine = tree.find(store, ours, path)
        if isinstance(mine, Subdirectory) and path in theirs.new and not tree.is_leaf(store, mine):
            if not _has_others(store, mine, path, theirs):
                mine = None  # all that is in it goes
            elif isinstance(theirs.new[path], Subdirectory):  # empty there, and here not
                continue
            else:
                merging.conflicts.append((path, f"a directory here, a file in {label}"))
                whole.append(path + b"/")
                continue
        result = merging.entry(path, theirs.old.get(path), mine, theirs.new.get(path))
        if not tree.is_same(store, result, mine):
            edits[path] = result
    for path in [path for path in edits if path.startswith(tuple(whole))]:
        del edits[path]
    files = {path for path, entry in tree.walk(store, ours) if not isinstance(entry, Subdirectory)}
    drop_blocked(edits, files, merging.conflicts)
    with store.batch() as batch:
        root = edit.with_entries(store, batch, root=ours, changes=edits, like=like).hash
    differing = [
        tree.Change(path, tree.find(store, ours, path), entry)
        for path, entry in sorted(edits.items())
    ]
    changed = renames.detect(store, differing)
    return Merged(root, changed, conflicts=sorted(merging.conflicts), unresolved=merging.unresolved)


def _has_others(store: Store, mine: Subdirectory, path: bytes, theirs: Changes) -> bool:
    """Whether a directory has more than what they have deleted in it."""
    for inner, entry in tree.walk(store, mine.digest.hash, path + b"/"):
        is_deleted = inner not in theirs.new and tree.is_same(store, entry, theirs.old.get(inner))
        if tree.is_leaf(store, entry) and not is_deleted:
            return True
    return False


def drop_blocked(
    edits: dict[bytes, Entry | None], ours: set[bytes], conflicts: list[tuple[bytes, str]]
) -> None:
    """Drops new entries where a leaf of ours would be a directory above them, or below them."""
    left = ours - edits.keys()
    above = {parent for path in left for parent in tree.parents(path)}
    for path in [path for path, entry in edits.items() if entry is not None]:
        if path in above or not left.isdisjoint(tree.parents(path)):
            del edits[path]
            conflicts.append((path, "a file here, a directory there"))


class _Merge:
    def __init__(self, store: Store, label: str) -> None:
        self._store = store
        self._label = label
        self.conflicts: list[tuple[bytes, str]] = []
        self.unresolved: list[bytes] = []

    def entry(
        self, path: bytes, base: Entry | None, ours: Entry | None, theirs: Entry | None
    ) -> Entry | None:
        """Returns the merged entry of one path."""
        if isinstance(ours, Subdirectory) and isinstance(theirs, Subdirectory):
            return ours  # of its mode no apply speaks, as in git
        if self._is_same(ours, theirs) or self._is_same(base, theirs):
            return ours
        if self._is_same(ours, base):
            return theirs
        if isinstance(ours, File) and isinstance(theirs, File):
            return self._file(
                path, base if isinstance(base, File) else None, ours=ours, theirs=theirs
            )
        if ours is None:
            self.conflicts.append((path, f"deleted here, changed in {self._label}"))
            return theirs
        if theirs is None:
            if not isinstance(ours, Subdirectory):
                self.conflicts.append((path, f"changed here, deleted in {self._label}"))
        else:
            self.conflicts.append((path, "changed on both sides, not as text"))
        return ours

    def _file(self, path: bytes, base: File | None, ours: File, theirs: File) -> File:
        merged = tree.with_mode_of(ours, self._mode(path, base, ours=ours, theirs=theirs))
        if ours.digest == theirs.digest or (base and theirs.digest == base.digest):
            return merged
        if base and ours.digest == base.digest:
            return merged._replace(digest=theirs.digest)
        old, mine, new = (self._text(file) for file in (base, ours, theirs))
        if old is None or mine is None or new is None:
            self.conflicts.append((path, "changed on both sides, binary or too large"))
            return merged
        if has_markers(mine) and not has_markers(old):
            self.unresolved.append(path)
        done = three_way.merge(old, mine, theirs=new, labels=("ours", self._label))
        if done.conflicts:
            marked = "1 conflict" if done.conflicts == 1 else f"{done.conflicts} conflicts"
            self.conflicts.append((path, f"changed on both sides, {marked} marked"))
        return merged._replace(digest=self._store.put(done.text))

    def _mode(self, path: bytes, base: File | None, ours: File, theirs: File) -> File:
        """Returns the file whose mode counts."""
        if tree.has_same_mode(self._store, ours, theirs):
            return ours
        if base is None:
            if ours.executable != theirs.executable:
                self.conflicts.append((path, "executable on one side only"))
            return ours
        if tree.has_same_mode(self._store, ours, base):
            return theirs
        if not tree.has_same_mode(self._store, base, theirs):
            self.conflicts.append((path, "its mode was changed on both sides"))
        return ours

    def _is_same(self, entry: Entry | None, other: Entry | None) -> bool:
        return tree.is_same(self._store, entry, other)

    def _text(self, file: File | None) -> bytes | None:
        """Returns the content of a text file, empty for none; None for other files."""
        lines = unified_diff.text_lines(self._store, file)
        return None if isinstance(lines, str) else b"".join(lines)


def has_markers(text: bytes) -> bool:
    """Whether a text has unresolved conflict markers."""
    lines = text.splitlines()
    return all(any(line.startswith(mark) for line in lines) for mark in MARKERS)
