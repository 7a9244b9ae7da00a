"""Local trees: whole directories, private and derived files included, that stay in this store.

A node refers to the tree of the work alone. Where its directory had more files, the head
`local/<hash of the node>` leads to the root of the whole directory, and its record has the times of
that. So nothing that follows references from a node reaches a private file, or learns its hash. gc
deletes the head of a node that it has deleted. It may delete the local tree of a turn before the
turn; the head stays, and tells that there was one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from casfs.backend.protocols import Head, HeadName, targets
from casfs.digest import TimesHash, TreeHash
from casfs.store.nodes import head_kinds
from casfs.store.store import Store

if TYPE_CHECKING:
    from casfs.store.write_batch import Batch

HEADS = "local/"
# of nodes that record a directory, or the transcript of an outside agent
TYPES = frozenset(
    {
        "checkpoint",
        "thread-start",
        "thread-step",
        "react-turn",
        "react-session",
        "action-result",
    }
)


class LocalTree(NamedTuple):
    """The root of a whole directory, and its times, None where they are not known."""

    root: TreeHash
    times: TimesHash | None = None

    @property
    def refs(self) -> list[str]:
        return [self.root] if self.times is None else [self.root, self.times]

    @property
    def head(self) -> Head:
        return Head(self.root, {} if self.times is None else {"times": self.times})


def head_name(node: str) -> HeadName:
    """Returns the name under which the local tree of a node is kept."""
    return HeadName(HEADS + node)


def node_of(name: HeadName) -> str:
    """The inverse of `head_name`."""
    return name.removeprefix(HEADS)


def put(batch: Batch, node: str, local: LocalTree) -> None:
    """Keeps the local tree of a node, once the batch is committed. Equal nodes share one: the
    newest is kept."""
    name = head_name(node)
    batch.swap(name, batch.head(name), local.head)  # an equal one, too: gc may be deleting it


def owners(store: Store) -> dict[str, list[str]]:
    """Returns what the local trees lead to, and of which nodes each is."""
    nodes: dict[str, list[str]] = {}
    for name, head in head_kinds.sound(store.heads, HEADS):
        for target in targets(head):
            nodes.setdefault(target, []).append(node_of(name))
    return nodes


def get(store: Store, node: str) -> LocalTree | None:
    """Returns the local tree of a node; None where it has none, or this store lacks it, as while a
    gc deletes the node."""
    name = head_name(node)
    head = store.heads.get(name)
    if head is None or head_kinds.fault(name, head):
        return None
    stored = store.blobs.info(targets(head))
    if head.hash not in stored:
        return None
    times = head.record.get("times")
    return LocalTree(TreeHash(head.hash), times if times in stored else None)


def is_lost(store: Store, node: str) -> bool:
    """Returns whether a node has a local tree that is not stored any more: that of a turn, whose
    trees gc may delete before it."""
    name = head_name(node)
    head = store.heads.get(name)
    # One that is only hidden from a reader is not lost.
    return head is not None and not head_kinds.fault(name, head) and get(store.whole, node) is None
