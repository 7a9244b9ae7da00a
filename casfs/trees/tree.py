"""Merkle trees of `directory` nodes: load, resolve, walk, diff. Without the host file system.

Equal subtrees have equal hashes, so the cost of comparing two trees is that of their differences
(seed 004, SPEC-08.13), and a loaded directory never expires.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from casfs.digest import TreeDigest, TreeHash
from casfs.errors import Invalid, NotFound
from casfs.store import tombstones
from casfs.store.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.system.paths import printable
from casfs.trees.directory_cache import Entries as Entries
from casfs.trees.directory_cache import directory_properties as directory_properties
from casfs.trees.directory_cache import load as load
from casfs.trees.directory_cache import loaded

DIRECTORY_MODE = 0o755  # of a directory whose node has none
COMPARED_BITS = 0o755  # of a mode: without the write bits of others, which a tree may not keep
TOP = b"."  # the path of the root in a difference
PathEntry = tuple[bytes, Entry]


class Change(NamedTuple):
    """One path of a diff. `old` is None where it was added, `new` where it was deleted. `source`:
    the path of `old`, where the file was renamed (`casfs.trees.diff.renames`); `similarity`: how
    much of it is equal, in percent."""

    path: bytes
    old: Entry | None
    new: Entry | None
    source: bytes | None = None
    similarity: int = 100

    @property
    def letter(self) -> str:
        """A added, D deleted, M content, R renamed, T type, target, mode or mtime."""
        if self.source is not None:
            return "R"
        if self.old is None:
            return "A"
        if self.new is None:
            return "D"
        if isinstance(self.old, File) and isinstance(self.new, File):
            return "M" if self.old.digest != self.new.digest else "T"
        return "T"


def split_path(path: bytes) -> list[bytes]:
    """Splits a path below a root into components. Raises Invalid for `..`."""
    # `..` is not resolved: behind a symlink, which nothing here follows, it would lead elsewhere.
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise Invalid(f"{path.decode('utf-8', 'replace')}: a path in a tree must not contain ..")
    return parts


def parents(path: bytes) -> Iterator[bytes]:
    """Yields the directories above a path, the topmost first."""
    parts = path.split(b"/")
    return (b"/".join(parts[:count]) for count in range(1, len(parts)))


def resolve(store: Store, root: TreeHash, path: bytes) -> Entry | None:
    """Returns the entry at `path`, None for the root itself; does not follow symlinks. Raises
    NotFound."""
    entry: Entry | None = None
    tree_hash = root
    for part in split_path(path):
        if entry is not None:
            if not isinstance(entry, Subdirectory):
                raise NotFound(f"{printable(path)}: {printable(entry.name)} is not a directory")
            tree_hash = entry.digest.hash
        entry = load(store, tree_hash).get(part)
        if entry is None:
            # What was purged without a substitute is not among the entries; a person is told why.
            purged = loaded(store, tree_hash).purged
            if any(file.name == part for file in purged):
                raise NotFound(f"{printable(path)}: it was purged; see `casfs purge --list`")
            raise NotFound(f"{printable(path)}: not in tree {root}")
    return entry


def find(store: Store, root: TreeHash, path: bytes) -> Entry | None:
    """As `resolve`, but returns None for a path that the tree does not have."""
    # Not by `resolve`: it is asked for thousands of paths, and an exception costs as much.
    entry: Entry | None = None
    tree_hash = root
    with suppress(NotFound):
        for part in split_path(path):
            if entry is not None:
                if not isinstance(entry, Subdirectory):
                    return None
                tree_hash = entry.digest.hash
            entry = load(store, tree_hash).get(part)
            if entry is None:
                return None
        return entry
    return None


class PathFinder:
    """Finds many paths of one tree, as `find`, and TOP: each directory is looked up once."""

    def __init__(self, store: Store, root: TreeHash) -> None:
        self._store = store
        self._root = root
        self._directories: dict[bytes, Entries] = {b"": load(store, root)}

    def find(self, path: bytes) -> Entry | None:
        if path == TOP:
            return top(self._root)
        above, _, name = path.rpartition(b"/")
        return self._entries(above).get(name)

    def _entries(self, path: bytes) -> Entries:
        entries = self._directories.get(path)
        if entries is None:
            below = subtree(self.find(path))
            entries = {} if below is None else load(self._store, below)
            self._directories[path] = entries
        return entries


def walk(store: Store, root: TreeHash, below: bytes = b"") -> Iterator[PathEntry]:
    """Yields every entry with its path, in name order, a directory before its entries."""
    # A stack, since generators inside generators pass each entry up through every level.
    top = load(store, root).values()
    stack = [(below, iter(top))]
    while stack:
        prefix, entries = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        path = prefix + entry.name
        yield path, entry
        if isinstance(entry, Subdirectory):
            inner = load(store, entry.digest.hash).values()
            stack.append((path + b"/", iter(inner)))


def below(store: Store, root: TreeHash, path: bytes) -> Iterator[PathEntry]:
    """Yields every entry below a directory of a tree, as `walk`; nothing where it has none."""
    entry = find(store, root, path)
    if isinstance(entry, Subdirectory):
        yield from walk(store, entry.digest.hash, path + b"/")


def is_purged(store: Store, root: TreeHash, path: bytes) -> bool:
    """Whether a tree had a file at a path whose content was purged without a substitute."""
    if not store.purged.replaced():
        return False
    above, _, name = path.rpartition(b"/")
    parent = find(store, root, above) if above else top(root)
    return isinstance(parent, Subdirectory) and any(
        file.name == name for file in loaded(store, parent.digest.hash).purged
    )


def missing(store: Store, root: TreeHash, below: bytes = b"") -> Iterator[tuple[bytes, Tombstone]]:
    """Yields the path and the tombstone of each file whose content was purged, also of those that
    have a substitute; cheap where the store has no tombstones."""
    if not store.purged.replaced():
        return
    for file in loaded(store, root).purged:
        tombstone = tombstones.get(store, file.digest.hash)
        # Another process may have allowed the content again since the directory was loaded.
        if tombstone is not None:
            yield below + file.name, tombstone
    for entry in load(store, root).values():
        if isinstance(entry, Subdirectory):
            yield from missing(store, entry.digest.hash, below + entry.name + b"/")


def changes(
    store: Store, old: TreeHash | None, new: TreeHash | None, paths: Sequence[bytes] = ()
) -> Iterator[Change]:
    """Yields the differences as a person reads them: `diff` without added and deleted directories,
    whose entries are changes too, unless they are empty."""
    for change in diff(store, old, new=new, paths=paths):
        entry = change.new or change.old
        one_sided = change.old is None or change.new is None
        if one_sided and isinstance(entry, Subdirectory) and load(store, entry.digest.hash):
            continue
        yield change


def diff(
    store: Store, old: TreeHash | None, new: TreeHash | None, paths: Sequence[bytes] = ()
) -> Iterator[Change]:
    """Yields the differences in path order, a directory before its entries. None: an empty tree. An
    added or deleted directory is a change, followed by those of its entries. A directory on both
    sides is a change only if its mode differs; the root is then yielded as `.`. `paths`: only
    these, and what is below them."""
    wanted = [b"/".join(parts) for parts in map(split_path, paths)]
    is_whole = not wanted or b"" in wanted
    if is_whole and old is not None and new is not None and _differ_in_mode(store, old, new):
        yield Change(TOP, top(old), top(new))
    yield from _diff(store, old, new=new, prefix=b"", paths=[] if is_whole else wanted)


def top(root: TreeHash) -> Subdirectory:
    # No directory has an entry for the root, and so nothing says its size.
    return Subdirectory(TOP, TreeDigest(root, 0))


def _diff(
    store: Store, old: TreeHash | None, new: TreeHash | None, prefix: bytes, paths: list[bytes]
) -> Iterator[Change]:
    if old == new:
        return
    before = load(store, old) if old else {}
    after = load(store, new) if new else {}
    for name in sorted(before.keys() | after.keys()):
        old_entry = before.get(name)
        new_entry = after.get(name)
        # Equal subtrees have equal hashes: nothing below is read.
        if old_entry == new_entry:
            continue
        path = prefix + name
        below = [wanted_path for wanted_path in paths if wanted_path.startswith(path + b"/")]
        is_wanted = not paths or path in paths
        old_tree = subtree(old_entry)
        new_tree = subtree(new_entry)
        if is_wanted:
            # Two directories differ in what is below them, which is no change of their own.
            are_directories = old_tree is not None and new_tree is not None
            if not are_directories or _differ_in_mode(store, old_tree, new_tree):
                yield Change(path, old_entry, new_entry)
        # One tree is enough: where a file became a directory, its entries were added.
        if (is_wanted or below) and (old_tree or new_tree):
            inner_paths = [] if is_wanted else below
            inner_prefix = path + b"/"
            yield from _diff(store, old_tree, new=new_tree, prefix=inner_prefix, paths=inner_paths)


def _differ_in_mode(store: Store, old: TreeHash | None, new: TreeHash | None) -> bool:
    """Compares two directories, where both are there."""
    if old is None or new is None or old == new:
        return False
    return directory_mode(store, old) != directory_mode(store, new)


def is_leaf(store: Store, entry: Entry) -> bool:
    """Whether an entry is a file, a link or an empty directory."""
    return not isinstance(entry, Subdirectory) or not load(store, entry.digest.hash)


def is_same(store: Store, entry: Entry | None, other: Entry | None) -> bool:
    """Compares kind, content and mode of two entries, but neither times nor what is in
    directories."""
    if isinstance(entry, File) and isinstance(other, File):
        is_equal: bool = entry.digest.hash == other.digest.hash
        return is_equal and has_same_mode(store, entry, other)
    if isinstance(entry, Symlink) and isinstance(other, Symlink):
        return entry.target == other.target
    if isinstance(entry, Subdirectory) and isinstance(other, Subdirectory):
        return has_same_mode(store, entry, other)
    return entry is None and other is None


def has_same_mode(store: Store, entry: File | Subdirectory, other: File | Subdirectory) -> bool:
    first, second = (
        file_mode(side) if isinstance(side, File) else directory_mode(store, side.digest.hash)
        for side in (entry, other)
    )
    return (first ^ second) & COMPARED_BITS == 0


def file_mode(entry: File) -> int:
    """Returns the permissions of a file."""
    own = entry.properties
    return _default_file_mode(entry) if own is None or own.unix_mode is None else own.unix_mode


def with_mode_of(file: File, other: File) -> File:
    """Returns a file with the permissions of another one."""
    mtime = None if file.properties is None else file.properties.mtime
    mode = None if other.properties is None else other.properties.unix_mode
    kept = None if mtime is None and mode is None else Properties(mtime, mode)
    return file._replace(executable=other.executable, properties=kept)


def directory_mode(store: Store, hash: TreeHash) -> int:
    """Returns the permissions of the directory itself."""
    own = directory_properties(store, hash)
    return DIRECTORY_MODE if own is None or own.unix_mode is None else own.unix_mode


def modes(store: Store, change: Change) -> tuple[int, int] | None:
    """Returns the permissions of both sides; None for a one-sided change, and where neither side
    has preserved any. Symlinks have none."""
    old_mode = _preserved_mode(store, change.old)
    new_mode = _preserved_mode(store, change.new)
    if old_mode is None and new_mode is None:
        return None
    # An ordinary mode is in no tree, so a change from or to one has a mode on one side only.
    if old_mode is None:
        old_mode = _default_mode(change.old)
    if new_mode is None:
        new_mode = _default_mode(change.new)
    if old_mode is None or new_mode is None:
        return None
    return old_mode, new_mode


def changed_modes(store: Store, change: Change) -> tuple[int, int] | None:
    """Returns as `modes`, where the two differ."""
    mode_pair = modes(store, change)
    return None if mode_pair is None or mode_pair[0] == mode_pair[1] else mode_pair


def _preserved_mode(store: Store, entry: Entry | None) -> int | None:
    if entry is None or isinstance(entry, Symlink):
        return None
    if isinstance(entry, File):
        kept = entry.properties
    else:
        kept = directory_properties(store, entry.digest.hash)
    return None if kept is None else kept.unix_mode


def _default_mode(entry: Entry | None) -> int | None:
    if isinstance(entry, File):
        return _default_file_mode(entry)
    return DIRECTORY_MODE if isinstance(entry, Subdirectory) else None


def _default_file_mode(entry: File) -> int:
    return 0o755 if entry.executable else 0o644


def subtree(entry: Entry | None) -> TreeHash | None:
    """Returns the hash of a subdirectory's node; None for any other entry."""
    return entry.digest.hash if isinstance(entry, Subdirectory) else None


def entry_json(path: bytes, entry: Entry) -> dict[str, Any]:
    """Returns an entry and its path as JSON."""
    names = {"name": os.fsdecode(entry.name), "path": os.fsdecode(path)}
    if isinstance(entry, Symlink):
        return {**names, "kind": "symlink", "target": os.fsdecode(entry.target)}
    common = {**names, "hash": entry.digest.hash}
    if isinstance(entry, File):
        size = entry.digest.size_bytes
        return {**common, "kind": "file", "sizeBytes": size, "executable": entry.executable}
    return {**common, "kind": "directory"}
