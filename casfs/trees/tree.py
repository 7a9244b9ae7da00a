"""Merkle trees of `directory` nodes: load, resolve, walk, diff. No host file system here.

Equal subtrees have equal hashes, so comparing two trees costs what differs between them
(seed 004, SPEC-08.13), and a loaded directory stays valid for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from casfs.errors import Corrupt, Invalid, NotFound
from casfs.nodes import directory
from casfs.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store import Store
from casfs.system.paths import printable

Entries = dict[bytes, Entry]


@dataclass(frozen=True, slots=True)
class Change:
    """One path of a diff. `old` is None where it was added, `new` where it was deleted."""

    path: bytes
    old: Entry | None
    new: Entry | None

    @property
    def letter(self) -> str:
        """A added, D deleted, M content, T type, target, mode or mtime."""
        if self.old is None:
            return "A"
        if self.new is None:
            return "D"
        if isinstance(self.old, File) and isinstance(self.new, File):
            return "M" if self.old.digest != self.new.digest else "T"
        return "T"


def load(store: Store, hash: str) -> Entries:
    """The entries of a directory node, by name in byte order; shared, not to be changed.

    Raises NotFound where `hash` is no directory, Corrupt where its names are not safe.
    """
    found: tuple[Entries, Properties | None] | None = store.cache.get(hash)
    return (found or _load(store, hash))[0]


def preserved(store: Store, hash: str) -> Properties | None:
    """What `--preserve` kept of the directory itself."""
    found: tuple[Entries, Properties | None] | None = store.cache.get(hash)
    return (found or _load(store, hash))[1]


def _load(store: Store, hash: str) -> tuple[Entries, Properties | None]:
    payload = store.node(hash, "directory").payload
    try:
        found = directory.decode(payload), directory.properties(payload)
    except (Invalid, KeyError, TypeError) as error:
        raise Corrupt(f"directory {hash}: {error}") from None
    store.cache.put(hash, found, len(found[0]) + 1)
    return found


def split(path: bytes) -> list[bytes]:
    """The components of a path below a root. Raises Invalid for `..`."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise Invalid(f"{path.decode('utf-8', 'replace')}: a path in a tree has no ..")
    return parts


def resolve(store: Store, root: str, path: bytes) -> Entry | None:
    """The entry at `path`, None for the root itself. Symlinks are not followed.

    Raises NotFound.
    """
    entry: Entry | None = None
    at = root
    for part in split(path):
        if entry is not None:
            if not isinstance(entry, Subdirectory):
                raise NotFound(f"{printable(path)}: {printable(entry.name)} is not a directory")
            at = entry.digest.hash
        entry = load(store, at).get(part)
        if entry is None:
            raise NotFound(f"{printable(path)}: not in tree {root}")
    return entry


def walk(store: Store, root: str, below: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
    """Every entry with its path, a directory before what is in it, in name order."""
    stack = [(below, iter(load(store, root).values()))]
    while stack:
        prefix, entries = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        path = prefix + entry.name
        yield path, entry
        if isinstance(entry, Subdirectory):
            stack.append((path + b"/", iter(load(store, entry.digest.hash).values())))


def diff(store: Store, old: str | None, new: str | None) -> Iterator[Change]:
    """What differs, in path order, a directory before what is in it. None: no tree at all.

    Directories that were added or deleted stand there too, each followed by its content;
    a directory on both sides only leads to its content.
    """
    yield from _diff(store, old, new, b"")


def _diff(store: Store, old: str | None, new: str | None, prefix: bytes) -> Iterator[Change]:
    if old == new:
        return
    before = load(store, old) if old else {}
    after = load(store, new) if new else {}
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a == b:
            continue
        path = prefix + name
        inside_a, inside_b = _inside(a), _inside(b)
        if inside_a is None or inside_b is None:
            yield Change(path, a, b)
        if inside_a or inside_b:
            yield from _diff(store, inside_a, inside_b, path + b"/")


def _inside(entry: Entry | None) -> str | None:
    return entry.digest.hash if isinstance(entry, Subdirectory) else None


def shown(store: Store, changes: Iterator[Change]) -> Iterator[Change]:
    """The changes that a person wants to see: an added or deleted directory speaks through
    its content, and stands for itself only when it is empty."""
    for change in changes:
        entry = change.new or change.old
        whole = change.old is None or change.new is None
        if whole and isinstance(entry, Subdirectory) and load(store, entry.digest.hash):
            continue
        yield change


__all__ = [
    "Change",
    "Entries",
    "File",
    "Subdirectory",
    "Symlink",
    "diff",
    "load",
    "preserved",
    "resolve",
    "shown",
    "split",
    "walk",
]
