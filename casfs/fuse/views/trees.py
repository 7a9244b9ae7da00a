"""The view `trees/`: checkpoints, plugins and single trees as plain directories.

    trees/<hash>/…                 a tree by its root; found by name only
    trees/<name>/<checkpoint-id>/  every checkpoint of a name
    trees/<name>/latest            → the newest of them
    trees/plugins/<name>/<version>/  every plugin; present if there is at least one

The key of a file or link of a tree is made of its path in the tree, its content, mode and
mtime. So an unchanged path has one inode, and one page cache, in all checkpoints, while
no two paths of one tree share any (an overlay on top would take them for one file). The key of
a directory is made of its full path in the mount: each lists its own children.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from itertools import islice
from typing import cast

from casfs.backend.protocols import Head, HeadName
from casfs.checkpoints import checkpoint
from casfs.digest import TreeHash
from casfs.errors import CasfsError
from casfs.fuse.views.blobs import BlobFile
from casfs.fuse.views.directories import StoreDirectory, parse_hash
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import (
    LINK,
    READ_DIRECTORY,
    Y2000_NS,
    Attr,
    Directory,
    Link,
    Vnode,
    child_key,
    make_key,
)
from casfs.nodes import head_kinds
from casfs.nodes.directory import Entry, File, Properties, Symlink
from casfs.plugins import registry

FILE_MODE = stat.S_IFREG | 0o644
EXECUTABLE_MODE = stat.S_IFREG | 0o755
DIRECTORY_MODE = stat.S_IFDIR | 0o755
SECOND_NS = 1_000_000_000
ROOT_KEY = make_key(b"the root of a tree")
LATEST = b"latest"
PLUGINS = b"plugins"


class TreeDirectory(Directory):
    """A directory of a tree. `inner` is the key of its path from the tree's root."""

    __slots__ = ("_hash", "_inner", "_reader")

    def __init__(
        self, key: bytes, reader: StoreReader, hash: TreeHash, inner: bytes = ROOT_KEY
    ) -> None:
        super().__init__(key)
        self._reader = reader
        self._hash = hash
        self._inner = inner

    @property
    def digest(self) -> str:
        return self._hash

    def attr(self) -> Attr:
        try:
            own = self._reader.preserved(self._hash)
        except CasfsError:  # its own listing fails; the parent's need not
            own = None
        mode, mtime_ns = _preserved(DIRECTORY_MODE, own)
        return Attr(mode, 0, mtime_ns)

    def lookup(self, name: bytes) -> Vnode | None:
        entry = self._reader.entries(self._hash).get(name)
        return None if entry is None else self._vnode(entry)

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        return self.entries_after(0)

    def entries_after(self, count: int) -> Iterable[tuple[bytes, Vnode]]:
        """Makes no vnodes for the skipped entries: a large directory may be listed by several
        processes at once."""
        for name, entry in islice(self._reader.entries(self._hash).items(), count, None):
            yield name, self._vnode(entry)

    def _vnode(self, entry: Entry) -> Vnode:
        if isinstance(entry, File):
            hash, size = entry.digest.hash, entry.digest.size_bytes
            mode, mtime_ns = _preserved(
                EXECUTABLE_MODE if entry.executable else FILE_MODE, entry.properties
            )
            key = self._key(entry.name, hash.encode(), mode, mtime_ns)
            return BlobFile(key, self._reader.blobs, hash, size, mode, mtime_ns)
        if isinstance(entry, Symlink):
            _, mtime_ns = _preserved(LINK, entry.properties)
            return Link(self._key(entry.name, entry.target, LINK, mtime_ns), entry.target, mtime_ns)
        inner = child_key(self._inner, entry.name)
        return TreeDirectory(
            child_key(self.key, entry.name), self._reader, entry.digest.hash, inner
        )

    def _key(self, name: bytes, content: bytes, mode: int, mtime_ns: int) -> bytes:
        return make_key(b"%b%b/%b/%o/%d" % (self._inner, name, content, mode, mtime_ns))


def _preserved(mode: int, properties: Properties | None) -> tuple[int, int]:
    """Returns the mode and mtime (ns) of an entry: the defaults, unless others were preserved."""
    mtime_ns = Y2000_NS
    if properties is not None:
        if properties.unix_mode is not None:
            mode = stat.S_IFMT(mode) | stat.S_IMODE(properties.unix_mode)
        if properties.mtime is not None:
            mtime_ns = properties.mtime[0] * SECOND_NS + properties.mtime[1]
    return mode, mtime_ns


class Trees(StoreDirectory):
    """`trees/`: lists the names of checkpoints and `plugins`; finds every tree by its root."""

    __slots__ = ()
    invalidated = True

    def attr(self) -> Attr:
        moved = self._reader.change_times.latest(checkpoint.HEADS, registry.HEADS)
        return Attr(READ_DIRECTORY, 0, moved.mtime_ns)

    def lookup(self, name: bytes) -> Vnode | None:
        key = child_key(self.key, name)
        if name == PLUGINS:
            return Plugins(key, self._reader) if _plugin_names(self._reader) else None
        hash = parse_hash(name)
        if hash is not None:
            info = self._reader.info([hash]).get(hash)
            if info is None or info.type is None:
                return None
            is_tree = self._reader.store.registry.name(info.type) == "directory"
            return TreeDirectory(key, self._reader, cast(TreeHash, hash)) if is_tree else None
        found = Checkpoints(key, self._reader, name.decode("ascii", "replace"))
        return found if found.exists() else None

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for name in self._names():
            yield name, Checkpoints(child_key(self.key, name), self._reader, name.decode("ascii"))
        if _plugin_names(self._reader):
            yield PLUGINS, Plugins(child_key(self.key, PLUGINS), self._reader)

    def _names(self) -> dict[bytes, None]:
        def find() -> dict[bytes, None]:
            return {name.encode("ascii"): None for name in checkpoint.names(self._reader.store)}

        return self._reader.aggregate("names of checkpoints", checkpoint.HEADS, find)


class Checkpoints(StoreDirectory):
    """`trees/<name>/`: one directory for each checkpoint of the name, oldest first."""

    __slots__ = ("_heads",)
    invalidated = True

    def __init__(self, key: bytes, reader: StoreReader, name: str) -> None:
        super().__init__(key, reader)
        self._heads = f"{checkpoint.HEADS}{name}/"

    def binds(self, name: bytes) -> bool:
        return name != LATEST

    def attr(self) -> Attr:
        moved = self._reader.change_times.latest(self._heads)
        newest = self._newest()
        changed = moved if newest is None else moved._replace(at_ms=newest[1])
        return Attr(READ_DIRECTORY, 0, changed.mtime_ns)

    def lookup(self, name: bytes) -> Vnode | None:
        if name == LATEST:
            newest = self._newest()
            return None if newest is None else self._latest(newest[0])
        key = HeadName(self._heads + name.decode("ascii", "replace"))
        head = self._reader.used_head(key)
        return None if head is None else self._tree(name, self._shown(head))

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        id = b""
        for key, head in head_kinds.sound(self._reader.store.heads, self._heads):
            id = key[len(self._heads) :].encode("ascii")
            yield id, self._tree(id, self._shown(head))
        if id:
            yield LATEST, self._latest(id)

    def _shown(self, head: Head) -> TreeHash:
        if not self._reader.with_local:
            return TreeHash(head.record["root"])  # the node need not be loaded
        payload = self._reader.node(head.hash, "checkpoint").payload
        return self._reader.shown_tree(payload, "root") or TreeHash(head.record["root"])

    def _tree(self, name: bytes, root: TreeHash) -> TreeDirectory:
        return TreeDirectory(child_key(self.key, name), self._reader, root)

    def _latest(self, id: bytes) -> Link:
        """The key depends on the target: when it changes, it is another link of the same name."""
        return Link(child_key(self.key, LATEST + b"/" + id), id)

    def exists(self) -> bool:
        return self._newest() is not None

    def _newest(self) -> tuple[bytes, int] | None:
        """Returns the id of the newest checkpoint, and its time in ms."""
        return self._reader.aggregate(f"newest of {self._heads}", self._heads, self._find_newest)

    def _find_newest(self) -> tuple[bytes, int] | None:
        for key, head in head_kinds.sound(self._reader.store.heads, self._heads, reverse=True):
            return key[len(self._heads) :].encode("ascii"), head.record["createdAt"]
        return None


def _plugin_names(reader: StoreReader) -> dict[bytes, None]:
    def find() -> dict[bytes, None]:
        return {one.name.encode("ascii"): None for one in registry.listing(reader.store)}

    return reader.aggregate("names of plugins", registry.HEADS, find)


class Plugins(StoreDirectory):
    """`trees/plugins/`: one directory for each name."""

    __slots__ = ()

    def attr(self) -> Attr:
        return Attr(READ_DIRECTORY, 0, self._reader.change_times.latest(registry.HEADS).mtime_ns)

    def lookup(self, name: bytes) -> Vnode | None:
        return self._versions(name) if name in _plugin_names(self._reader) else None

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for name in _plugin_names(self._reader):
            yield name, self._versions(name)

    def _versions(self, name: bytes) -> Versions:
        return Versions(child_key(self.key, name), self._reader, name.decode("ascii"))


class Versions(StoreDirectory):
    """`trees/plugins/<name>/`: its versions. `--refresh` may replace the tree of a version, so
    no name is bound, and a tree's key depends on its root."""

    __slots__ = ("_name",)

    def __init__(self, key: bytes, reader: StoreReader, name: str) -> None:
        super().__init__(key, reader)
        self._name = name

    def binds(self, name: bytes) -> bool:
        return False

    def attr(self) -> Attr:
        moved = self._reader.change_times.latest(f"{registry.HEADS}{self._name}/")
        return Attr(READ_DIRECTORY, 0, moved.mtime_ns)

    def lookup(self, name: bytes) -> Vnode | None:
        key = registry.head_name(self._name, name.decode("ascii", "replace"))
        head = self._reader.used_head(key)
        return None if head is None else self._tree(name, TreeHash(head.hash))

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for one in registry.listing(self._reader.store, self._name):
            name = one.version.encode("ascii")
            yield name, self._tree(name, one.root)

    def _tree(self, name: bytes, root: TreeHash) -> TreeDirectory:
        return TreeDirectory(child_key(self.key, name + b"/" + root.encode()), self._reader, root)
