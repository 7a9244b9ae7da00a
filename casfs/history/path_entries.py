"""What many trees have at one path: only the nodes of directories on the path are read, each once,
a level at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from casfs.digest import TreeDigest, TreeHash
from casfs.errors import Corrupt
from casfs.store.nodes import directory, node
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.system import interruption
from casfs.trees import tree
from casfs.trees.directory_cache import as_read


def content(entry: Entry | None) -> object:
    """Returns a value that is equal where two files, or symlinks, have the same content."""
    if isinstance(entry, File):
        return entry.digest.hash
    return entry.target if isinstance(entry, Symlink) else None


def entries_of(store: Store, roots: Sequence[TreeHash | None], path: bytes) -> list[Entry | None]:
    """Returns what each of the trees has at a path."""
    entries: dict[TreeHash | None, Entry | None] = {}
    for root in roots:
        if root:
            entries[root] = Subdirectory(b".", TreeDigest(root, 0))
    for name in tree.split_path(path):
        interruption.check()
        subtrees = {root: tree.subtree(entry) for root, entry in entries.items()}
        wanted = dict.fromkeys(subtree for subtree in subtrees.values() if subtree)
        # Not by `tree.load`: it decodes whole directories, and of each one entry is needed.
        directories = zip(wanted, payloads(store, wanted, "directory"), strict=True)
        below = {hash: directory.find(payload, name) for hash, payload in directories}
        for root, subtree in subtrees.items():
            entries[root] = below.get(subtree) if subtree else None
    stored = [entries.get(root) for root in roots]
    # A stored payload still names what was purged since; readers see its substitute, or nothing.
    return [as_read(store, entry) for entry in stored]


def payloads(store: Store, hashes: Collection[str], type: str) -> Iterator[Any]:
    """Yields the payloads of nodes of a type, read together. Raises Corrupt, NotFound."""
    for hash, data in zip(hashes, store.blobs.get_many(hashes), strict=True):
        # None stands for a blob that is too large to be read with others.
        type_hash, payload = node.decode(hash, store.get(hash) if data is None else data)
        if store.registry.compiled(type_hash)[0] != type:
            raise Corrupt(f"{hash} is not a {type}")
        yield payload
