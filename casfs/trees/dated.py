"""Trees with their times: what a directory node and the times node beside it say together.

Restores, images and workspaces read a tree here, so that files get the mtimes that they were
recorded with. A mtime that the tree itself has (`--preserve`) stands above these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from casfs.digest import TimesHash, TreeHash
from casfs.errors import CasfsError, Corrupt, NotFound
from casfs.store.nodes import times
from casfs.store.nodes.directory import NANOS_PER_S, Entry, Properties, Subdirectory
from casfs.store.nodes.times import UNKNOWN, Names, Times, TimesRef
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.paths import printable
from casfs.trees.directory_cache import keep, loaded
from casfs.trees.tree import split_path

TIMES_MARK = "@"
MAX_PRELOADED_BYTES = 1 << 22  # of directory nodes; so many surely stay in the cache


class DatedTree(NamedTuple):
    """A tree and its times; None where none were recorded."""

    tree: TreeHash
    times: TimesHash | None = None

    @property
    def name(self) -> str:
        """Its name under `trees/` of a mount, and of its native image."""
        return self.tree if self.times is None else f"{self.tree}{TIMES_MARK}{self.times}"


class DatedDirectory(NamedTuple):
    """`entries`: with the mtimes in their properties; `own`: those of the directory itself;
    `below`: the times of its subdirectories, by name."""

    entries: Mapping[bytes, Entry]
    own: Properties | None
    below: Mapping[bytes, TimesHash]

    def subtree(self, entry: Subdirectory) -> DatedTree:
        return DatedTree(entry.digest.hash, self.below.get(entry.name))


def load(store: Store, root: DatedTree) -> DatedDirectory:
    """Raises NotFound, Corrupt."""
    directory = loaded(store, root.tree)
    if root.times is None:
        return DatedDirectory(directory.entries, directory.properties, {})
    recorded = load_times(store, root)
    entries = {
        name: _dated(entry, recorded.entries.get(name)) for name, entry in directory.entries.items()
    }
    return DatedDirectory(entries, _with_mtime(directory.properties, recorded.own), recorded.below)


def load_times(store: Store, root: DatedTree) -> Times:
    """Raises NotFound, and Corrupt where the times are those of another directory."""
    if root.times is None:
        return UNKNOWN
    key = root.tree + root.times
    directory_times: Times | None = store.cache.get(key)
    if directory_times is not None:
        return directory_times
    generation = store.cache.generation
    return _keep_times(store, root, store.node(root.times, "times").payload, generation)


def _keep_times(
    store: Store, root: DatedTree, payload: Mapping[str, Any], generation: int
) -> Times:
    """Decodes and caches the times of a directory that were read. `generation`: of the cache before
    that. Raises NotFound, Corrupt."""
    try:
        directory_times = times.decode(_names(store, root.tree), payload)
    except ValueError:
        raise Corrupt(f"times {root.times}: not of directory {root.tree}") from None
    key = f"{root.tree}{root.times}"
    store.cache.put(
        key,
        directory_times,
        len(directory_times.entries) + len(directory_times.below) + 1,
        generation,
    )
    return directory_times


def preload_below(store: Store, root: DatedTree) -> list[DatedTree]:
    """Reads the directories directly below one, and their times, by one look-up for all; returns
    those that are cached now. What cannot be read is left to who loads it. Raises NotFound,
    Corrupt for `root` itself."""
    recorded = load_times(store, root)
    below: list[DatedTree] = []
    size_bytes = 0
    for entry in loaded(store, root.tree).entries.values():
        if isinstance(entry, Subdirectory) and size_bytes < MAX_PRELOADED_BYTES:
            size_bytes += entry.digest.size_bytes
            below.append(DatedTree(entry.digest.hash, recorded.below.get(entry.name)))
    generation = store.cache.generation
    hashes = {directory.tree for directory in below if store.cache.get(directory.tree) is None}
    dates = {
        directory.times
        for directory in below
        if directory.times and store.cache.get(directory.tree + directory.times) is None
    }
    nodes = store.readable_nodes([*hashes, *dates])
    payloads = {(node.type, str(node.hash)): node.payload for node in nodes}
    for directory in below:
        with suppress(CasfsError):
            if payload := payloads.get(("directory", directory.tree)):
                keep(store, directory.tree, payload, generation)
            if payload := payloads.get(("times", str(directory.times))):
                _keep_times(store, directory, payload, generation)
    return [directory for directory in below if store.cache.get(directory.tree) is not None]


def subtree(store: Store, root: DatedTree, path: bytes) -> DatedTree:
    """Returns the directory at `path`, with its times. Raises NotFound."""
    for name in split_path(path):
        entry = loaded(store, root.tree).entries.get(name)
        if not isinstance(entry, Subdirectory):
            raise NotFound(f"{printable(path)}: no directory in tree {root.tree}")
        root = DatedTree(entry.digest.hash, load_times(store, root).below.get(name))
    return root


def put(batch: Batch, entries: Iterable[Entry], directory_times: Times) -> TimesRef:
    """Stores the times of a directory with these entries."""
    node = batch.put_times(times.encode(times.names_by_list(entries), directory_times))
    return TimesRef(node, directory_times.newest)


def walk_newer(
    store: Store, root: DatedTree, moment: int, above: bytes = b""
) -> Iterator[tuple[bytes, Entry, int]]:
    """Yields the path, entry and time of each file and link that was recorded as newer than
    `moment`, in ns; directories that have none are not read."""
    recorded = load_times(store, root)
    if recorded.newest is None or recorded.newest <= moment:
        return
    for name, entry in loaded(store, root.tree).entries.items():
        if isinstance(entry, Subdirectory):
            below = DatedTree(entry.digest.hash, recorded.below.get(name))
            yield from walk_newer(store, below, moment=moment, above=above + name + b"/")
        elif recorded.entries.get(name, moment) > moment:
            yield above + name, entry, recorded.entries[name]


def times_for(
    store: Store,
    batch: Batch,
    tree: TreeHash,
    source: DatedTree,
    has: Callable[[TimesHash], bool] = lambda times: True,
) -> TimesHash | None:
    """Returns the times that the paths of a stored tree have in `source`, where they are as there;
    None where nothing is known. What is equal is not read, but where the store of the batch does
    not have its times: `store` may be a view of that."""
    if source.times is None or (tree == source.tree and has(source.times)):
        return source.times
    recorded = load_times(store, source)
    theirs = loaded(store, source.tree).entries
    modified: dict[bytes, int] = {}
    below: dict[bytes, TimesHash] = {}
    for name, entry in loaded(store, tree).entries.items():
        their = theirs.get(name)
        if isinstance(entry, Subdirectory) and isinstance(their, Subdirectory):
            inner = DatedTree(their.digest.hash, recorded.below.get(name))
            times_hash = times_for(store, batch, entry.digest.hash, source=inner, has=has)
            if times_hash is not None:
                below[name] = times_hash
        elif entry == their and name in recorded.entries:
            modified[name] = recorded.entries[name]
    # An upper bound is enough: what it counts too much is only looked at in vain.
    directory_times = Times(recorded.own, recorded.newest, entries=modified, below=below)
    return batch.put_times(times.encode(_names(store, tree), directory_times))


def _names(store: Store, root: TreeHash) -> Names:
    """Returns the names in each list of the node, those of purged files included."""
    directory = loaded(store, root)
    entries = {entry.name: entry for entry in directory.purged} | directory.entries
    return times.names_by_list(entries.values())


def _dated(entry: Entry, mtime: int | None) -> Entry:
    if isinstance(entry, Subdirectory):
        return entry
    return entry._replace(properties=_with_mtime(entry.properties, mtime))


def _with_mtime(own: Properties | None, mtime: int | None) -> Properties | None:
    if mtime is None or (own is not None and own.mtime is not None):
        return own
    return (own or Properties())._replace(mtime=divmod(mtime, NANOS_PER_S))
