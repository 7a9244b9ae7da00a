"""What is reachable: over refs alone, ignorant of what the types mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .backend import META
from .store import Store


def walk(store: Store, roots: Iterable[str]) -> Iterator[str]:
    """Every hash reachable from `roots` (nodes and blobs, types included), each once.

    Depth first, a node before its refs. Raises NotFound where closure is broken.
    """
    stack = list(dict.fromkeys(roots))[::-1]
    seen = set(stack)
    while stack:
        hash = stack.pop()
        yield hash
        for ref in reversed(refs(store, hash)):
            if ref not in seen:
                seen.add(ref)
                stack.append(ref)


def refs(store: Store, hash: str) -> list[str]:
    """The distinct hashes that a blob refers to, its type last; none for plain bytes."""
    info = store.blobs.info([hash]).get(hash)
    if info is not None and info.type is None:
        return []
    found = [ref.hash for ref in store.refs(store.node(hash))]
    return [hash for hash in dict.fromkeys(found) if hash != META]
