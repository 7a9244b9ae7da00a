"""Every content that a path ever had, in all checkpoints and steps of a store."""

from __future__ import annotations

from casfs.backend.derived import count_by_type, of_types
from casfs.digest import TreeHash
from casfs.errors import CasfsError
from casfs.store import local_trees
from casfs.store.nodes import head_kinds
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree

HOLDERS = {  # types of nodes, and the fields that lead to a tree
    "checkpoint": ("root",),
    "thread-start": ("workspace",),
    "thread-step": ("workspace",),
    "react-turn": ("workspace", "before"),
    "react-tool-call": ("workspace",),
}


def contents_of(store: Store, path: bytes) -> list[str]:
    """Returns the hashes of the files that were at this path, each once: not of empty ones, nor of
    purged ones, but of what a purge of a text has left of one."""
    hashes: dict[str, None] = {}
    for root in dict.fromkeys(_roots(store)):
        try:
            entry = tree.find(store, root, path)
        except CasfsError:  # a damaged directory
            continue
        if isinstance(entry, File) and entry.digest.size_bytes:
            hashes[entry.digest.hash] = None
    return list(hashes)


def _roots(store: Store) -> list[TreeHash]:
    roots = [TreeHash(head.hash) for _, head in head_kinds.sound(store.heads, local_trees.HEADS)]
    stored = count_by_type(store.blobs)
    for name, fields in HOLDERS.items():
        types = {type_hash for type_hash in stored if store.registry.name(type_hash) == name}
        for hash, _ in of_types(store.blobs, types) if types else ():
            payload = store.node(hash).payload
            roots += [payload[field] for field in fields if payload.get(field) is not None]
    return roots
