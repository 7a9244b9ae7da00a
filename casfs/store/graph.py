"""Reachability over refs, for nodes of any type.

What is local belongs to the store that recorded it: a local ref (`cas_local` in a schema) and the
local tree of a node (`casfs.store.local_trees`) are left out unless `with_local`, and then followed
where they are stored. So is a weak ref (`cas_weak`), always: gc may have deleted what it leads to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from casfs.backend.protocols import META
from casfs.store import local_trees
from casfs.store.store import Store

NO_SUBSTITUTES: Mapping[str, str | None] = {}


def walk(store: Store, roots: Iterable[str], *, with_local: bool = False) -> Iterator[str]:
    """Yields every hash reachable from `roots` (nodes and blobs, types included), each once. Depth
    first, a node before its refs. Raises NotFound at a dangling reference."""
    stack = list(dict.fromkeys(roots))[::-1]
    seen = set(stack)
    while stack:
        hash = stack.pop()
        yield hash
        for ref in reversed(refs(store, hash, with_local=with_local)):
            if ref not in seen:
                seen.add(ref)
                stack.append(ref)


def post_order(
    store: Store,
    roots: Iterable[str],
    *,
    with_local: bool = False,
    substitutes: Mapping[str, str | None] = NO_SUBSTITUTES,
) -> Iterator[str]:
    """Yields the same hashes, each after all its references; the roots determine the order. What
    was purged comes after its substitute."""
    seen: set[str] = set()

    def below_of(hash: str) -> Iterator[str]:
        if hash in substitutes:
            return filter(None, [substitutes[hash]])
        return iter(refs(store, hash, with_local=with_local))

    for root in roots:
        trail = [] if root in seen else [(root, below_of(root))]
        seen.add(root)
        while trail:
            hash, below = trail[-1]
            for ref in below:
                if ref not in seen:
                    seen.add(ref)
                    trail.append((ref, below_of(ref)))
                    break
            else:
                trail.pop()
                yield hash


def refs(store: Store, hash: str, *, with_local: bool = False) -> list[str]:
    """Returns the distinct hashes that a blob refers to, its type last; none for plain bytes."""
    info = store.blobs.info([hash]).get(hash)
    if info is not None and info.type is None:
        return []
    return node_refs(store, hash, with_local=with_local)


def node_refs(
    store: Store, hash: str, *, with_local: bool = False, with_weak: bool = True
) -> list[str]:
    """As `refs`, for a hash that is known to be a node."""
    node = store.node(hash)
    refs = store.refs(node)
    followed = {ref.hash for ref in refs if not ref.may_dangle}
    uncertain = {
        ref.hash for ref in refs if (ref.is_local and with_local) or (ref.is_weak and with_weak)
    }
    if uncertain := uncertain - followed:
        stored = store.blobs.info(uncertain).keys()
        # What gc has deleted may be here again, as a private file is.
        followed |= stored if with_local else stored - store.blobs.local_among(stored)
    hashes = [hash for hash in dict.fromkeys(ref.hash for ref in refs) if hash in followed - {META}]
    if with_local and node.type in local_trees.TYPES and (tree := local_trees.get(store, hash)):
        hashes[:0] = tree.refs  # the type stays last
    return hashes
