"""The LRU of decoded directories: a directory node is parsed and checked once per process.

The cache is the store's own (`Store.cache`), bounded by entries; a node never changes. A file that
was purged since has the size and the hash of its substitute, or is left out. So
every reader of a tree sees the size of what it will read. `PurgedContents` clears the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from casfs.digest import TreeHash
from casfs.errors import Corrupt, Invalid
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Properties
from casfs.store.store import Store

Entries = dict[bytes, Entry]


class Loaded(NamedTuple):
    """`entries`: as readers see them; `purged`: the entries as the node has them, of those files
    whose content was purged."""

    entries: Entries
    properties: Properties | None
    purged: tuple[File, ...] = ()


def load(store: Store, hash: TreeHash) -> Entries:
    """Returns the entries of a directory node, by name in byte order; shared, not to be changed.
    Raises NotFound where `hash` is not a directory node, Corrupt where its names are not safe."""
    return loaded(store, hash).entries


def directory_properties(store: Store, hash: TreeHash) -> Properties | None:
    """Returns the mtime and mode that `--preserve` kept of the directory itself."""
    return loaded(store, hash).properties


def loaded(store: Store, hash: TreeHash) -> Loaded:
    """Raises as `load`."""
    store.purged.replaced()  # first: it may clear the cache
    generation = store.cache.generation
    loaded_directory: Loaded | None = store.cache.get(hash)
    if loaded_directory is not None:
        return loaded_directory
    return keep(store, hash, store.node(hash, "directory").payload, generation)


def keep(store: Store, hash: str, payload: Mapping[str, Any], generation: int) -> Loaded:
    """Decodes and caches a directory node that was read. `generation`: of the cache before that.
    Raises Corrupt."""
    try:
        entries = directory.decode(payload)
        loaded_directory = Loaded(entries, directory.properties(payload))
    except (Invalid, KeyError, TypeError) as error:
        raise Corrupt(f"directory {hash}: {error}") from None
    if store.purged.replaced():
        loaded_directory = _without_purged(store, loaded_directory)
    store.cache.put(hash, loaded_directory, len(loaded_directory.entries) + 1, generation)
    return loaded_directory


def as_read(store: Store, entry: Entry | None) -> Entry | None:
    """Returns what readers see of an entry as a node has it; None where it was purged."""
    replaced = store.purged.replaced()
    if not isinstance(entry, File) or entry.digest.hash not in replaced:
        return entry
    substitute = replaced[entry.digest.hash]
    return None if substitute is None else entry._replace(digest=substitute)


def _without_purged(store: Store, loaded_directory: Loaded) -> Loaded:
    entries: Entries = {}
    purged = []
    for name, entry in loaded_directory.entries.items():
        seen = as_read(store, entry)
        if seen is not None:
            entries[name] = seen
        if seen is not entry and isinstance(entry, File):
            purged.append(entry)
    return loaded_directory._replace(entries=entries, purged=tuple(purged))
