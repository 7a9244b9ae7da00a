"""The LRU of decoded directories: a directory node is parsed and checked once per process.

The cache is the store's own (`Store.cache`), bounded by entries; a node never changes, so an
entry never goes stale.
"""

from __future__ import annotations

from casfs.digest import TreeHash
from casfs.errors import Corrupt, Invalid
from casfs.nodes import directory
from casfs.nodes.directory import Entry, Properties
from casfs.store import Store

Entries = dict[bytes, Entry]


def load(store: Store, hash: TreeHash) -> Entries:
    """Returns the entries of a directory node, by name in byte order; shared, not to be changed.
    Raises NotFound where `hash` is not a directory node, Corrupt where its names are not safe."""
    found: tuple[Entries, Properties | None] | None = store.cache.get(hash)
    return (found or _load(store, hash))[0]


def directory_properties(store: Store, hash: TreeHash) -> Properties | None:
    """Returns the mtime and mode that `--preserve` kept of the directory itself."""
    found: tuple[Entries, Properties | None] | None = store.cache.get(hash)
    return (found or _load(store, hash))[1]


def _load(store: Store, hash: TreeHash) -> tuple[Entries, Properties | None]:
    payload = store.node(hash, "directory").payload
    try:
        found = directory.decode(payload), directory.properties(payload)
    except (Invalid, KeyError, TypeError) as error:
        raise Corrupt(f"directory {hash}: {error}") from None
    store.cache.put(hash, found, len(found[0]) + 1)
    return found
