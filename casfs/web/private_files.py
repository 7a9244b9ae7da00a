"""The names of private files of a recorded directory: their contents are not shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from casfs.checkpoints.revisions import TREE_FIELDS
from casfs.errors import CasfsError
from casfs.store.nodes.node import Node
from casfs.store.store import Store
from casfs.trees import recorded_state

MAX_NAMES = 100


def names(store: Store, node: Node[Any]) -> Sequence[bytes]:
    """Returns the first names of the private files beside the work of a node; none where it is
    damaged, or is of another type."""
    whole = store.whole
    if node.type not in TREE_FIELDS:
        return []
    try:
        state = recorded_state.of_node(
            whole, node.hash, payload=node.payload, field=TREE_FIELDS[node.type]
        )
        if state is None or state.local is None:
            return []
        private = recorded_state.private_files(whole, state)
    except CasfsError:
        return []
    return list(islice(private, MAX_NAMES))
