"""A tree of the store as the writer of images wants it: whole, or what it has otherwise than
another.

A file that has a file in `objects/` is a size with the two attributes that make overlayfs
take its data from there; all others are their content. overlayfs looks for such a path,
`/ab/cdef…`, in the images before it looks at the objects. So a tree that has one itself, with
another content than its name says, has no image.

What differs is a layer to be put above the image of the other tree: what has gone is a
whiteout, and a directory that both have holds only what is not the same in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from casfs.backend.protocols import INLINE_MAX_BYTES
from casfs.digest import is_hash
from casfs.errors import Corrupt, Invalid, NotFound
from casfs.native import verity
from casfs.native.erofs.model import Attr, Directory, File, Node, Symlink, Whiteout
from casfs.nodes import directory
from casfs.nodes.directory import Entry, Properties, Subdirectory
from casfs.store import Store
from casfs.trees import tree
from casfs.trees.tree import Entries

SHARD = 2  # characters of a hash that are the name of a directory in `objects/`
YEAR_2000 = 946_684_800  # mtime of what was not preserved, as in the mount
METACOPY = (b"trusted.overlay.metacopy", b"")
REDIRECT = b"trusted.overlay.redirect"


class ImageTree:
    """A tree of the store as the writer wants it; a directory is read when it gets its place."""

    def __init__(self, store: Store, owner: tuple[int, int]) -> None:
        self._store = store
        self._owner = owner
        self._plain = Attr(0o644, *owner, YEAR_2000)
        self._executable = Attr(0o755, *owner, YEAR_2000)
        self._link = Attr(0o777, *owner, YEAR_2000)
        assert store.root is not None
        self._seal = verity.Seal(store.root / "objects")

    def root(self, hash: str) -> Directory:
        """Raises Invalid for a tree that no image can show."""
        for name, entry in tree.load(self._store, hash).items():
            if len(name) == SHARD and isinstance(entry, Subdirectory):
                self._check_paths(name, entry.digest.hash)
        return self.directory(hash)

    def changes(self, old: str, new: str) -> Directory:
        """What the tree `new` has otherwise than `old`."""
        own = tree.preserved(self._store, new)
        return Directory(self._kept(self._executable, own), self._changed(old, new))

    def _changed(self, old: str, new: str) -> Iterator[tuple[bytes, Node]]:
        before, after = tree.load(self._store, old), tree.load(self._store, new)
        for name in before.keys() - after.keys():
            yield name, Whiteout(self._plain)
        differing = {name: one for name, one in after.items() if before.get(name) != one}
        plain = {}
        for name, entry in differing.items():
            last = before.get(name)
            if isinstance(entry, Subdirectory) and isinstance(last, Subdirectory):
                yield name, self.changes(last.digest.hash, entry.digest.hash)
            else:
                plain[name] = entry
        yield from self._nodes(plain)

    def directory(self, hash: str) -> Directory:
        own = tree.preserved(self._store, hash)
        return Directory(self._kept(self._executable, own), self._entries(hash))

    def _entries(self, hash: str) -> Iterator[tuple[bytes, Node]]:
        yield from self._nodes(tree.load(self._store, hash))

    def _nodes(self, entries: Entries) -> Iterator[tuple[bytes, Node]]:
        large = self._large(entries.values())
        for name, entry in entries.items():
            if isinstance(entry, directory.File):
                attr = self._executable if entry.executable else self._plain
                file, size = entry.digest.hash, entry.digest.size_bytes
                attr = self._kept(attr, entry.properties)
                if file in large:
                    target = f"/{file[:2]}/{file[2:]}".encode()
                    yield name, File(attr, size, None, (METACOPY, (REDIRECT, target)))
                else:
                    yield name, File(attr, size, file)
            elif isinstance(entry, directory.Symlink):
                kept = entry.properties and replace(entry.properties, unix_mode=None)
                yield name, Symlink(self._kept(self._link, kept), entry.target)
            else:
                yield name, self.directory(entry.digest.hash)

    def _check_paths(self, shard: bytes, hash: str) -> None:
        for name, entry in tree.load(self._store, hash).items():
            path = (shard + name).decode("ascii", "replace")
            if is_hash(path) and not _is_file_of(entry, path):
                raise Invalid(
                    f"the tree's {path[:SHARD]}/{path[SHARD:]} has the name of another content"
                    " in objects/, so no image can show it"
                )

    def _large(self, entries: Iterable[Entry]) -> set[str]:
        """The hashes of what has a file in `objects/`. Raises NotFound, Corrupt."""
        asked = {
            entry.digest.hash: entry.digest.size_bytes
            for entry in entries
            if isinstance(entry, directory.File) and entry.digest.size_bytes > INLINE_MAX_BYTES
        }
        found = self._store.blobs.info(asked) if asked else {}
        for hash, size in asked.items():
            if hash not in found:
                raise NotFound(f"no blob {hash} in this store, and a tree has it; run `casfs fsck`")
            if found[hash].size != size:
                raise Corrupt(f"blob {hash} has {found[hash].size} bytes, its tree says {size}")
        large = {hash for hash, info in found.items() if info.type is None}
        for hash in large:
            self._seal(hash)
        return large

    def _kept(self, attr: Attr, own: Properties | None) -> Attr:
        """The attributes with what was preserved in place of the usual."""
        if own is None:
            return attr
        mode = attr.mode if own.unix_mode is None else own.unix_mode & 0o7777
        seconds, nanos = own.mtime or (YEAR_2000, 0)
        return Attr(mode, *self._owner, seconds, nanos)


def _is_file_of(entry: Entry, hash: str) -> bool:
    return isinstance(entry, directory.File) and entry.digest.hash == hash
