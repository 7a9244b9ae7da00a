"""The view `nodes/<hash>/referrers/`: the nodes that refer to a node, as links into `nodes/`.

A listing has everything that was put before it: the index of the store catches up first
(`casfs.store.referrers`), which takes seconds after many new nodes, so a transport does that
outside its serving loop (`Directory.prepare`). A lookup of a name reads the two nodes and needs no
index.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from casfs.backend.derived import version_of
from casfs.fuse.views.directories import StoreDirectory, parse_hash
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import READ_DIRECTORY, Attr, Link, Vnode, child_key
from casfs.store.referrers import Referrers
from casfs.store.store import Store


class ReferrerIndex:
    """The index of a mount's store, opened when it is used first. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version_of_store = version_of(store.backend)
        self._version: int | None = None
        self._changed_ns = 0
        self._index: Referrers | None = None
        self._lock = threading.Lock()

    def current(self) -> Referrers:
        """Returns the index; a new one where the file of the last one was deleted."""
        with self._lock:
            if self._index is None or not self._index.is_current():
                self._index = Referrers(self._store)
            return self._index

    def changed_ns(self) -> int:
        """Returns the time (ns) at which a change of the store was noticed last. Called by one
        thread at a time; it does not wait for the others."""
        version = self._version_of_store()
        if version != self._version:
            self._version = version
            self._changed_ns = time.time_ns()
        return self._changed_ns


class ReferrersDirectory(StoreDirectory):
    """The referrers of `hash`. `to_nodes`: the path of `nodes/` from here."""

    __slots__ = ("_hash", "_index")
    ready = False
    to_nodes = b"../../"

    def __init__(self, key: bytes, reader: StoreReader, index: ReferrerIndex, hash: str) -> None:
        super().__init__(key, reader)
        self._index = index
        self._hash = hash

    def attr(self) -> Attr:
        return Attr(READ_DIRECTORY, 0, self._index.changed_ns())

    def prepare(self, wanted: Callable[[], bool] = lambda: True) -> None:
        self._index.current().catch_up(wanted)

    def lookup(self, name: bytes) -> Vnode | None:
        hash = parse_hash(name)
        info = hash and self._reader.info([hash]).get(hash)
        if not hash or not info or info.type is None:
            return None
        node = self._reader.node(hash)
        refs = self._reader.refs(node, local_too=True)
        return self._link(name) if self._hash in (*refs, info.type) else None

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for hash in self._index.current().iterate(self._hash):
            name = hash.encode("ascii")
            yield name, self._link(name)

    def _link(self, name: bytes) -> Link:
        return Link(child_key(self.key, name), self.to_nodes + name)
