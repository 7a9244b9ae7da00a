"""Which files git tracked in a recorded directory: read from the index files in its tree.

What an agent adds to the index of its workspace does not make it work: of a thread the index at its
start decides, and of that no path that was not work then, as the thread may begin with what another
one left.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from casfs.digest import TreeHash
from casfs.errors import CasfsError, NotFound
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.git import index
from casfs.trees.git.index import GIT, MAX_INDEX_BYTES, TrackedFiles
from casfs.trees.recorded_state import RecordedState


class RecordedTrackedFiles(TrackedFiles):
    """As TrackedFiles, of a recorded directory."""

    def __init__(self, store: Store, state: RecordedState) -> None:
        super().__init__(Path(), above=False)
        self._store = store
        self._state = state

    def has(self, path: bytes) -> bool | None:
        is_tracked = super().has(path)
        return is_tracked and tree.find(self._store, self._state.tree, path) is not None

    def _read_names(self, directory: bytes) -> frozenset[bytes] | None:
        git = (directory + b"/" if directory else b"") + os.fsencode(GIT)
        if tree.find(self._store, self._state.full, git + b"/HEAD") is None:
            return None
        return frozenset(_index_names(self._store, self._state.full, git))


def _index_names(store: Store, root: TreeHash, git: bytes) -> Iterable[bytes]:
    """Returns the paths in the index of the recorded repository `git`; none where it has no index
    that can be read: then nothing there counts as tracked."""

    def read(name: str) -> bytes:
        entry = tree.find(store, root, git + b"/" + os.fsencode(name))
        if not isinstance(entry, File) or entry.digest.size_bytes > MAX_INDEX_BYTES:
            raise NotFound(f"no file {name}")
        return store.get(entry.digest.hash)

    try:
        return index.entries(read("index"), "", read)
    except CasfsError:
        return ()
