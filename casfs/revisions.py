"""Revisions: the texts by which a person names a tree. One grammar, resolved here only.

    HASH        a directory node; or a checkpoint or thread-step node: the tree it refers to
    PREFIX      8 or more characters of such a hash, unique in the store
    NAME        the newest checkpoint of that name
    NAME@ID     one checkpoint; ID is a unique prefix of its id, or `latest`

A whole hash is never a name (`checkpoint.check_name`), also where a head has such a name; a name
wins over a prefix of a hash.
"""

from __future__ import annotations

from casfs.checkpoints import checkpoint
from casfs.digest import TreeHash
from casfs.errors import Invalid, NotFound
from casfs.store import Store

TREE_FIELDS = {"checkpoint": "root", "thread-step": "workspace"}  # node type: ref to its tree


def resolve_tree(store: Store, revision: str) -> TreeHash:
    """Returns the hash of the directory node that `revision` names. Raises NotFound (also for a
    node without a tree), Conflict (an ambiguous prefix)."""
    found = checkpoint.find_if_named(store, revision)
    if found is not None:
        return found.root
    try:
        node = store.node(store.expand(revision))
    except Invalid:
        raise NotFound(f"{revision!r} is neither a hash nor a checkpoint name") from None
    if node.type == "directory":
        return TreeHash(node.hash)
    if node.type not in TREE_FIELDS:
        raise NotFound(f"{revision} is a {node.type}, not a tree")
    root = node.payload[TREE_FIELDS[node.type]]
    if root is None:
        raise NotFound(f"{revision}: that step has no workspace")
    return TreeHash(root)
