"""Converts a tree of the store to the input of the EROFS writer: the whole tree, or its
differences from another.

A file that has a file in `objects/` is a size with the two attributes that make overlayfs
take its data from there; one in a hot pack is an extent of that pack; one in a remote has the
attributes, too, and its data in a layer below the objects; the others have their content inline.
overlayfs looks for such a path, `/ab/cdef…`, in the images before it looks at the objects. So a
tree that has such a path itself, with another content than its name says, cannot be an image.

The differences are a layer above the image of the other tree: a deleted name is a whiteout,
and a directory on both sides has only its changed entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from casfs.backend.capabilities import IN_REMOTE, Following, Packed
from casfs.backend.protocols import INLINE_MAX_BYTES, BlobInfo
from casfs.digest import TreeHash, hash_bytes, is_hash
from casfs.errors import Corrupt, Invalid, NotFound, Refused
from casfs.native import object_protection
from casfs.native.erofs import devices
from casfs.native.erofs.model import Attr, Directory, Extent, File, Node, Symlink, Whiteout
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, Properties, Subdirectory
from casfs.store.store import Store
from casfs.trees import dated, tree
from casfs.trees.dated import DatedDirectory, DatedTree

SHARD_LENGTH = 2  # characters of a hash that name a directory in `objects/`
YEAR_2000 = 946_684_800  # default mtime in s, as in the mount
METACOPY = (b"trusted.overlay.metacopy", b"")
REDIRECT = b"trusted.overlay.redirect"
EMPTY = hash_bytes(b"")


class Cold(Refused):
    """A file is in a cold pack, of which the kernel cannot read."""


class ImageTree:
    """Directories are read lazily, when the writer places them; that raises Cold as well, and sets
    `remote` where a file is in a remote only."""

    def __init__(self, store: Store, owner: tuple[int, int], *, content: bool = False) -> None:
        """`content`: the objects are read and hashed."""
        self.remote = False
        self._store = store
        self._content = content
        self._owner = owner
        self._regular = Attr(0o644, *owner, YEAR_2000)
        self._executable = Attr(0o755, *owner, YEAR_2000)
        self._link = Attr(0o777, *owner, YEAR_2000)
        self._is_cached = isinstance(store.backend, Following)
        self._infos: dict[str, BlobInfo] = {}  # of the whole tree, where a look at each is dear
        self._protector = object_protection.ObjectProtector(store.root / "objects")

    def root(self, root: DatedTree) -> Directory:
        """Raises Invalid for a tree that cannot be an image."""
        self._look(root.tree)
        for name, entry in tree.load(self._store, root.tree).items():
            if len(name) == SHARD_LENGTH and isinstance(entry, Subdirectory):
                self._check_paths(name, entry.digest.hash)
        return self.directory(root)

    def changes(self, old: DatedTree, new: DatedTree) -> Directory:
        """Returns the layer of the differences of the tree `new` from `old`, in times as well."""
        if not self._infos:
            self._look(new.tree)
        after = dated.load(self._store, new)
        attr = self._with_properties(self._executable, after.own)
        return Directory(attr, self._changed(dated.load(self._store, old), after))

    def _look(self, root: TreeHash) -> None:
        if self._is_cached and isinstance(self._store.blobs, Packed):
            entries = (entry for _, entry in tree.walk(self._store, root))
            files = {entry.digest.hash for entry in entries if isinstance(entry, directory.File)}
            self._store.blobs.places(files)  # brings them at once
            self._infos = self._store.blobs.info(files)

    def _changed(self, old: DatedDirectory, new: DatedDirectory) -> Iterator[tuple[bytes, Node]]:
        for name in old.entries.keys() - new.entries.keys():
            yield name, Whiteout(self._regular)
        plain = {}
        for name, entry in new.entries.items():
            last = old.entries.get(name)
            if isinstance(entry, Subdirectory) and isinstance(last, Subdirectory):
                before = old.subtree(last)
                after = new.subtree(entry)
                if before != after:
                    yield name, self.changes(before, after)
            elif entry != last:
                plain[name] = entry
        yield from self._nodes(new, plain)

    def directory(self, root: DatedTree) -> Directory:
        own = dated.load(self._store, root).own
        return Directory(self._with_properties(self._executable, own), self._entries(root))

    def _entries(self, root: DatedTree) -> Iterator[tuple[bytes, Node]]:
        directory = dated.load(self._store, root)
        yield from self._nodes(directory, directory.entries)

    def _nodes(
        self, within: DatedDirectory, entries: Mapping[bytes, Entry]
    ) -> Iterator[tuple[bytes, Node]]:
        large = self._large(entries.values())
        for name, entry in entries.items():
            if isinstance(entry, directory.File):
                attr = self._executable if entry.executable else self._regular
                file = entry.digest.hash
                size = entry.digest.size_bytes
                attr = self._with_properties(attr, entry.properties)
                if extent := large.get(file):
                    yield name, File(attr, size, extent)
                elif file in large and file == EMPTY:
                    yield name, File(attr, size, b"")
                elif file in large:
                    target = f"/{file[:2]}/{file[2:]}".encode()
                    yield (
                        name,
                        File(attr, size, content=None, xattrs=(METACOPY, (REDIRECT, target))),
                    )
                else:
                    yield name, File(attr, size, file)
            elif isinstance(entry, directory.Symlink):
                kept = entry.properties and entry.properties._replace(unix_mode=None)
                yield name, Symlink(self._with_properties(self._link, kept), entry.target)
            else:
                yield name, self.directory(within.subtree(entry))

    def _check_paths(self, shard: bytes, hash: TreeHash) -> None:
        for name, entry in tree.load(self._store, hash).items():
            path = (shard + name).decode("ascii", "replace")
            if is_hash(path) and not _is_file_of(entry, path):
                raise Invalid(
                    f"the tree's {path[:2]}/{path[2:]} has the name of another content in objects/,"
                    " so it cannot be an image"
                )

    def _large(self, entries: Iterable[Entry]) -> dict[str, Extent | None]:
        """Returns the hashes of entries with an extent in a pack, or (None) a file in `objects/` or
        a place in a remote. Raises NotFound, Corrupt, Cold."""
        files: dict[str, int] = {
            entry.digest.hash: entry.digest.size_bytes
            for entry in entries
            if isinstance(entry, directory.File)
        }
        places = {}
        if files and isinstance(self._store.blobs, Packed):
            places = self._store.blobs.places(files)
        remote = {hash for hash, (_, _, offset) in places.items() if offset == IN_REMOTE}
        candidate_sizes = {
            hash: size for hash, size in files.items() if size > INLINE_MAX_BYTES or hash in remote
        }
        known = self._infos or (self._store.blobs.info(candidate_sizes) if candidate_sizes else {})
        infos = {hash: known[hash] for hash in candidate_sizes if hash in known}
        for hash, size in candidate_sizes.items():
            if hash not in infos:
                raise NotFound(f"no blob {hash} in this store, and a tree has it; run `casfs fsck`")
            if infos[hash].size != size:
                raise Corrupt(f"blob {hash} has {infos[hash].size} bytes, its tree says {size}")
        large: dict[str, Extent | None] = {hash: None for hash in infos if infos[hash].type is None}
        for hash in large:
            if hash in remote:
                self.remote |= hash != EMPTY
                continue
            if hash in places:
                pack, whole, offset = places[hash]
                if offset is None:
                    raise Cold(f"blob {hash} is in a cold pack")
                large[hash] = devices.extent(pack, whole, offset)
            else:
                self._protector.protect(hash, candidate_sizes[hash])
                self.remote |= self._is_cached  # it may be evicted
            if self._content:
                self._store.blobs.open(hash).close()
        return large

    def _with_properties(self, attr: Attr, own: Properties | None) -> Attr:
        if own is None:
            return attr
        mode = attr.mode if own.unix_mode is None else own.unix_mode & 0o7777
        seconds, nanos = own.mtime or (YEAR_2000, 0)
        return Attr(mode, *self._owner, seconds, nanos)


def _is_file_of(entry: Entry, hash: str) -> bool:
    return isinstance(entry, directory.File) and entry.digest.hash == hash
