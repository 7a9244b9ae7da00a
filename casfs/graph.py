"""Reachability over refs, for nodes of any type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from casfs.backend.protocols import META
from casfs.store import Store


def walk(store: Store, roots: Iterable[str]) -> Iterator[str]:
    """Yields every hash reachable from `roots` (nodes and blobs, types included), each once. Depth
    first, a node before its refs. Raises NotFound at a dangling reference."""
    stack = list(dict.fromkeys(roots))[::-1]
    seen = set(stack)
    while stack:
        hash = stack.pop()
        yield hash
        for ref in reversed(refs(store, hash)):
            if ref not in seen:
                seen.add(ref)
                stack.append(ref)


def post_order(store: Store, roots: Iterable[str]) -> Iterator[str]:
    """Yields the same hashes, each after all its references; the roots determine the order."""
    seen: set[str] = set()
    for root in roots:
        trail = [] if root in seen else [(root, iter(refs(store, root)))]
        seen.add(root)
        while trail:
            hash, below = trail[-1]
            for ref in below:
                if ref not in seen:
                    seen.add(ref)
                    trail.append((ref, iter(refs(store, ref))))
                    break
            else:
                trail.pop()
                yield hash


def refs(store: Store, hash: str) -> list[str]:
    """Returns the distinct hashes that a blob refers to, its type last; none for plain bytes."""
    info = store.blobs.info([hash]).get(hash)
    if info is not None and info.type is None:
        return []
    return node_refs(store, hash)


def node_refs(store: Store, hash: str) -> list[str]:
    """As `refs`, for a hash that is known to be a node."""
    found = [ref.hash for ref in store.refs(store.node(hash))]
    return [hash for hash in dict.fromkeys(found) if hash != META]
