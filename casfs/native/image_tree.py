"""Converts a tree of the store to the input of the EROFS writer: the whole tree, or its
differences from another.

A file that has a file in `objects/` is a size with the two attributes that make overlayfs
take its data from there; one in a hot pack is an extent of that pack, a mapped one has extents of
packs and objects; one in a remote has the
attributes, too, and its data in a layer below the objects; the others have their content inline.
overlayfs looks for such a path, `/ab/cdef…`, in the images before it looks at the objects. So a
tree that has such a path itself, with another content than its name says, cannot be an image.

The differences are a layer above the image of the other tree: a deleted name is a whiteout,
and a directory on both sides has only its changed entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeAlias

from casfs.backend.block_maps import MIN_BYTES, BlockMap
from casfs.backend.capabilities import IN_REMOTE, Following, Packed, PackPlace, StagingChanges
from casfs.backend.protocols import INLINE_MAX_BYTES, BlobInfo
from casfs.digest import Digest, TreeHash, hash_bytes, is_hash
from casfs.errors import Corrupt, Invalid, NotFound, Refused
from casfs.native import object_protection
from casfs.native.erofs import devices
from casfs.native.erofs.model import (
    BLOCK,
    Attr,
    Chunks,
    Directory,
    Extent,
    File,
    Node,
    Symlink,
    Whiteout,
)
from casfs.packs.layout import BLOCK_BYTES
from casfs.store.nodes import directory
from casfs.store.nodes.directory import NANOS_PER_S, Entry, Properties, Subdirectory
from casfs.store.store import Store
from casfs.trees import dated, tree
from casfs.trees.dated import DatedTree

SHARD_LENGTH = 2  # characters of a hash that name a directory in `objects/`
YEAR_2000 = 946_684_800  # default mtime in s, as in the mount
METACOPY = (b"trusted.overlay.metacopy", b"")
REDIRECT = b"trusted.overlay.redirect"
EMPTY = hash_bytes(b"")
MAX_LOCATED = 100_000
Content: TypeAlias = bytes | str | Extent | Chunks | None  # as in `casfs.native.erofs.model.File`


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
        self._located: dict[str, tuple[int | None, Content]] = {}  # sizes and contents, by hash
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
        return Directory(self._directory_attr(new), self._changed(old, new))

    def _look(self, root: TreeHash) -> None:
        if self._is_cached and isinstance(self._store.blobs, Packed):
            entries = (entry for _, entry in tree.walk(self._store, root))
            files = {entry.digest.hash for entry in entries if isinstance(entry, directory.File)}
            self._store.blobs.places(files)  # brings them at once
            self._infos = self._store.blobs.info(files)

    def _changed(self, old: DatedTree, new: DatedTree) -> Iterator[tuple[bytes, Node]]:
        old_directory = dated.load(self._store, old)
        new_directory = dated.load(self._store, new)
        for name in old_directory.entries.keys() - new_directory.entries.keys():
            yield name, Whiteout(self._regular)
        changed = []
        for name, entry in new_directory.entries.items():
            last = old_directory.entries.get(name)
            if isinstance(entry, Subdirectory) and isinstance(last, Subdirectory):
                before = old_directory.subtree(last)
                after = new_directory.subtree(entry)
                if before != after:
                    yield name, self.changes(before, after)
            elif entry != last:
                changed.append(name)
        yield from self._nodes(new, changed)

    def directory(self, root: DatedTree) -> Directory:
        return Directory(self._directory_attr(root), self._entries(root))

    def _directory_attr(self, root: DatedTree) -> Attr:
        recorded = dated.load_times(self._store, root)
        own = tree.directory_properties(self._store, root.tree)
        return self._attr(self._executable, own, recorded.own)

    def _entries(self, root: DatedTree) -> Iterator[tuple[bytes, Node]]:
        # Of all that is directly below this one, so that a look-up is for some hundred files.
        below = dated.preload_below(self._store, root)
        loaded = (tree.load(self._store, directory.tree).values() for directory in below)
        self._locate(chain.from_iterable(loaded))
        yield from self._nodes(root, tree.load(self._store, root.tree))

    def _nodes(self, root: DatedTree, names: Iterable[bytes]) -> Iterator[tuple[bytes, Node]]:
        entries = tree.load(self._store, root.tree)
        recorded = dated.load_times(self._store, root)
        self._locate([entries[name] for name in names])
        for name in names:
            entry = entries[name]
            modified = recorded.entries.get(name)
            if isinstance(entry, directory.File):
                base = self._executable if entry.executable else self._regular
                yield name, self._file(entry.digest, self._attr(base, entry.properties, modified))
            elif isinstance(entry, directory.Symlink):
                kept = entry.properties and entry.properties._replace(unix_mode=None)
                yield name, Symlink(self._attr(self._link, kept, modified), entry.target)
            else:
                below = DatedTree(entry.digest.hash, recorded.below.get(name))
                yield name, self.directory(below)

    def _file(self, digest: Digest, attr: Attr) -> File:
        hash, size = digest
        stored_size, content = self._located[hash]
        # Of what is inline the writer sees the bytes.
        if stored_size is not None and stored_size != size:
            raise _wrong_size(hash, stored_size, size)
        if content is not None:
            return File(attr, size, content)
        target = f"/{hash[:2]}/{hash[2:]}".encode()
        return File(attr, size, content=None, xattrs=(METACOPY, (REDIRECT, target)))

    def _check_paths(self, shard: bytes, hash: TreeHash) -> None:
        for name, entry in tree.load(self._store, hash).items():
            path = (shard + name).decode("ascii", "replace")
            if is_hash(path) and not _is_file_of(entry, path):
                raise Invalid(
                    f"the tree's {path[:2]}/{path[2:]} has the name of another content in objects/,"
                    " so it cannot be an image"
                )

    def _locate(self, entries: Iterable[Entry]) -> None:
        """Notes where the contents of files are, of those that are not known yet, by one look-up.
        Raises NotFound, Corrupt, Cold."""
        if len(self._located) > MAX_LOCATED:
            self._located.clear()
        files: dict[str, int] = {
            entry.digest.hash: entry.digest.size_bytes
            for entry in entries
            if isinstance(entry, directory.File) and entry.digest.hash not in self._located
        }
        if not files:
            return
        locations = {}
        if isinstance(self._store.blobs, Packed):
            locations = self._store.blobs.places(files)
        objects = {}
        for hash, size in files.items():
            location = locations.get(hash)
            if size <= INLINE_MAX_BYTES and (location is None or location.offset != IN_REMOTE):
                self._located[hash] = None, hash
            elif location is None:
                objects[hash] = size
            else:
                self._located[hash] = location.blob_bytes, self._packed(hash, location)
        if objects:
            self._locate_objects(objects)

    def _packed(self, hash: str, location: PackPlace) -> Content:
        """Returns the content of a file in a pack; None in a remote. Raises Cold, Corrupt."""
        if location.is_node:
            return hash
        if location.offset is None:
            raise Cold(f"blob {hash} is in a cold pack")
        if location.offset == IN_REMOTE:
            self.remote |= hash != EMPTY
            return b"" if hash == EMPTY else None
        if self._content:
            self._store.blobs.open(hash).close()
        return devices.extent(location.pack, location.pack_bytes, location.offset)

    def _locate_objects(self, files: dict[str, int]) -> None:
        """Notes files that have one in `objects/`; a node is inline. Raises as `_locate`."""
        infos = self._infos or self._store.blobs.info(files)
        block_maps = self._block_maps([hash for hash, size in files.items() if size >= MIN_BYTES])
        for hash, size in files.items():
            info = infos.get(hash)
            if info is None:
                raise NotFound(f"no blob {hash} in this store, and a tree has it; run `casfs fsck`")
            if info.type is not None:
                self._located[hash] = info.size, hash
                continue
            if info.size != size:
                raise _wrong_size(hash, info.size, size)
            if hash in block_maps:
                self._located[hash] = size, self._mapped(hash, size, block_maps[hash])
                continue
            self._protector.protect(hash, size)
            self.remote |= self._is_cached  # it may be evicted
            if self._content:
                self._store.blobs.open(hash).close()
            self._located[hash] = size, None

    def _block_maps(self, hashes: list[str]) -> dict[str, BlockMap]:
        blobs = self._store.blobs
        if not hashes or not isinstance(blobs, StagingChanges):
            return {}
        return blobs.block_maps(hashes)

    def _mapped(self, hash: str, size: int, block_map: BlockMap) -> Content:
        """Returns where the blocks of a mapped file are. Raises as `_locate`."""
        if self._content:
            self._store.blobs.open(hash).close()
        sources = [self._source(source) for source in block_map.sources]
        blocks = BLOCK_BYTES // BLOCK
        chunks = []
        for run in block_map.runs:
            device, block = sources[run.source]
            for number in range(run.first, run.first + run.blocks):
                chunks.append(Extent(device, block + number * blocks))
        return Chunks(blocks, tuple(chunks))

    def _source(self, hash: str) -> Extent:
        blobs = self._store.whole.blobs  # a patch is hidden
        assert isinstance(blobs, Packed)
        location = blobs.places([hash]).get(hash)
        if location is not None:
            content = self._packed(hash, location)
            if not isinstance(content, Extent):
                raise Corrupt(f"blob {hash}, of which a file has blocks, is in a remote only")
            return content
        info = blobs.info([hash]).get(hash)
        if info is None:
            raise NotFound(f"blob {hash}: a file has blocks of it, and it is missing")
        self._protector.protect(hash, info.size)
        return devices.extent(hash, info.size, 0)

    def _attr(self, base: Attr, own: Properties | None, modified_ns: int | None) -> Attr:
        """Returns the attributes of an entry: what was preserved of it, else the time that was
        recorded beside it, else the defaults."""
        mode = base.mode
        if own is not None and own.unix_mode is not None:
            mode = own.unix_mode & 0o7777
        elif modified_ns is None and own is None:
            return base
        if own is not None and own.mtime is not None:
            return Attr(mode, *self._owner, *own.mtime)
        if modified_ns is None:
            return Attr(mode, *self._owner, YEAR_2000)
        return Attr(mode, *self._owner, *divmod(modified_ns, NANOS_PER_S))


def _wrong_size(hash: str, stored: int, stated: int) -> Corrupt:
    return Corrupt(f"blob {hash} has {stored} bytes, its tree says {stated}")


def _is_file_of(entry: Entry, hash: str) -> bool:
    return isinstance(entry, directory.File) and entry.digest.hash == hash
