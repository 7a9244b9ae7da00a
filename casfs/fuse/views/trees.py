"""The view `trees/`: checkpoints, plugins and single trees as plain directories.

    trees/<hash>/…                 a tree by its root, all of it with one time; found by name only
    trees/<hash>@<times>/…         the same with its times, by their node; found by name only
    trees/<ULID>@<step>/…          what a thread had after a step, or before 1; found by name only
    trees/<name>/<checkpoint-id>/  every checkpoint of a name
    trees/<name>/latest            → the newest of them
    trees/plugins/<name>/<version>/  every plugin; present if there is at least one

The key of a file or link of a tree is made of its path in the tree, its content, mode and
mtime. So an unchanged path has one inode, and one page cache, in all checkpoints, while
no two paths of one tree share any (an overlay on top would take them for one file). The key of
a directory is made of its full path in the mount: each lists its own children.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import cast

from casfs.backend.protocols import Head, HeadName
from casfs.checkpoints import checkpoint
from casfs.digest import TimesHash, TreeHash
from casfs.errors import CasfsError
from casfs.fuse.views.blobs import READ_WHOLE_BYTES, BlobFile
from casfs.fuse.views.directories import StoreDirectory, parse_hash
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import (
    LINK,
    READ_DIRECTORY,
    Y2000_NS,
    Attr,
    Directory,
    Link,
    PlainEntry,
    ShownTree,
    Vnode,
    child_key,
    make_key,
)
from casfs.plugins import registry
from casfs.store.nodes import head_kinds
from casfs.store.nodes.directory import Entry, File, Properties, Symlink
from casfs.store.nodes.times import Times
from casfs.threads.threads import ThreadId
from casfs.trees.dated import TIMES_MARK, DatedTree

FILE_MODE = stat.S_IFREG | 0o644
EXECUTABLE_MODE = stat.S_IFREG | 0o755
DIRECTORY_MODE = stat.S_IFDIR | 0o755
SECOND_NS = 1_000_000_000
ROOT_KEY = make_key(b"the root of a tree")
LATEST = b"latest"
MARK = TIMES_MARK.encode()
STEP = re.compile(rb"0|[1-9][0-9]{0,8}")
PLUGINS = b"plugins"


class TreeDirectory(Directory):
    """A directory of a tree. `inner` is the key of its path from the tree's root; `tree`: that one,
    by default the directory itself."""

    __slots__ = ("_inner", "_reader", "_root", "tree")

    def __init__(
        self,
        key: bytes,
        reader: StoreReader,
        root: DatedTree,
        inner: bytes = ROOT_KEY,
        tree: ShownTree | None = None,
    ) -> None:
        super().__init__(key)
        self._reader = reader
        self._root = root
        self._inner = inner
        self.tree = ShownTree(key, root) if tree is None else tree

    @property
    def digest(self) -> str:
        return self._root.tree

    def attr(self) -> Attr:
        own = None
        mtime_ns = None
        with suppress(CasfsError):  # its own listing fails; the parent's need not
            own = self._reader.preserved(self._root.tree)
            mtime_ns = self._reader.times(self._root).own
        mode, mtime_ns = _attributes(DIRECTORY_MODE, own, mtime_ns)
        return Attr(mode, 0, mtime_ns)

    def lookup(self, name: bytes) -> Vnode | None:
        entry = self._reader.entries(self._root.tree).get(name)
        return None if entry is None else self._vnode(entry, self._reader.times(self._root))

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        return self.entries_after(0)

    def entries_after(self, count: int) -> Iterable[tuple[bytes, Vnode]]:
        """Makes no vnodes for the skipped entries: a large directory may be listed by several
        processes at once."""
        recorded = self._reader.times(self._root)
        for name, entry in islice(self._reader.entries(self._root.tree).items(), count, None):
            yield name, self._vnode(entry, recorded)

    def plain_entries_after(self, count: int) -> Iterable[PlainEntry]:
        recorded = self._reader.times(self._root)
        if count == 0:
            # The listing shows the time of each directory below, which is in its own nodes.
            self._reader.preload_below(self._root)
        for name, entry in islice(self._reader.entries(self._root.tree).items(), count, None):
            if isinstance(entry, File):
                yield self._plain_file(entry, recorded.entries.get(name))
            else:
                vnode = self._vnode(entry, recorded)
                yield PlainEntry(name, vnode.key, vnode.attr(), directory=self, source=vnode)

    def vnode_of(self, entry: PlainEntry) -> Vnode:
        source = entry.source
        if isinstance(source, Vnode):
            return source
        return BlobFile(
            entry.key,
            self._reader.blobs,
            hash=source.digest.hash,
            attr=entry.attr,
            directory=self,
        )

    def small_files(self) -> dict[str, int]:
        """Returns the hashes and sizes of the files that may be read ahead. Raises Corrupt."""
        return {
            entry.digest.hash: entry.digest.size_bytes
            for entry in self._reader.entries(self._root.tree).values()
            if isinstance(entry, File) and 0 < entry.digest.size_bytes <= READ_WHOLE_BYTES
        }

    def _plain_file(self, file: File, modified_ns: int | None) -> PlainEntry:
        name, (hash, size), executable, properties = file
        mode, mtime_ns = _attributes(
            EXECUTABLE_MODE if executable else FILE_MODE, properties, modified_ns
        )
        key = self._key(name, hash.encode(), mode=mode, mtime_ns=mtime_ns)
        return PlainEntry(name, key, Attr(mode, size, mtime_ns), directory=self, source=file)

    def _vnode(self, entry: Entry, recorded: Times) -> Vnode:
        modified = recorded.entries.get(entry.name)
        if isinstance(entry, File):
            return self.vnode_of(self._plain_file(entry, modified))
        if isinstance(entry, Symlink):
            _, mtime_ns = _attributes(LINK, entry.properties, modified)
            return Link(
                self._key(entry.name, entry.target, mode=LINK, mtime_ns=mtime_ns),
                entry.target,
                mtime_ns,
            )
        inner = child_key(self._inner, entry.name)
        below = DatedTree(entry.digest.hash, recorded.below.get(entry.name))
        key = child_key(self.key, entry.name)
        return TreeDirectory(key, self._reader, root=below, inner=inner, tree=self.tree)

    def _key(self, name: bytes, content: bytes, mode: int, mtime_ns: int) -> bytes:
        return make_key(b"%b%b/%b/%o/%d" % (self._inner, name, content, mode, mtime_ns))


def _attributes(
    mode: int, properties: Properties | None, recorded_ns: int | None
) -> tuple[int, int]:
    """Returns the mode and mtime (ns) of an entry: what was preserved of it, else the time that
    was recorded beside it, else the defaults."""
    mtime_ns = Y2000_NS if recorded_ns is None else recorded_ns
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

    def binds(self, name: bytes) -> bool:
        return MARK not in name  # a thread can be removed

    def lookup(self, name: bytes) -> Vnode | None:
        key = child_key(self.key, name)
        if name == PLUGINS:
            return Plugins(key, self._reader) if _plugin_names(self._reader) else None
        if MARK in name or parse_hash(name) is not None:
            root = self._named(name)
            return None if root is None else TreeDirectory(key, self._reader, root)
        checkpoints = Checkpoints(key, self._reader, name.decode("ascii", "replace"))
        return checkpoints if checkpoints.exists() else None

    def _named(self, name: bytes) -> DatedTree | None:
        first, mark, second = name.partition(MARK)
        tree = parse_hash(first)
        if tree is None:
            is_step = STEP.fullmatch(second) is not None
            id = ThreadId(first.decode("ascii", "replace"))
            return self._reader.step_tree(id, int(second)) if is_step else None
        if self._type(tree) != "directory":
            return None
        times = parse_hash(second)
        if mark and (times is None or self._type(times) != "times"):
            return None
        return DatedTree(cast(TreeHash, tree), cast("TimesHash | None", times))

    def _type(self, hash: str) -> str | None:
        info = self._reader.info([hash]).get(hash)
        return info and info.type and self._reader.store.registry.name(info.type)

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

    def _shown(self, head: Head) -> DatedTree:
        work = DatedTree(TreeHash(head.record["root"]), head.record.get("times"))
        if not self._reader.with_local:
            return work  # the node need not be loaded
        node = self._reader.node(head.hash, "checkpoint")
        return self._reader.shown_tree(node, "root") or work

    def _tree(self, name: bytes, root: DatedTree) -> TreeDirectory:
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
        return {plugin.name.encode("ascii"): None for plugin in registry.listing(reader.store)}

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
        for plugin in registry.listing(self._reader.store, self._name):
            name = plugin.version.encode("ascii")
            yield name, self._tree(name, plugin.root)

    def _tree(self, name: bytes, root: TreeHash) -> TreeDirectory:
        return TreeDirectory(
            child_key(self.key, name + b"/" + root.encode()), self._reader, DatedTree(root)
        )
