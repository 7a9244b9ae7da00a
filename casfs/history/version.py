"""A version: a tree that was recorded, and what recorded it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from casfs.checkpoints import revisions
from casfs.digest import NodeHash, TimesHash, TreeHash
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.trees.dated import DatedTree

PERSON = "person"


@dataclass(frozen=True, slots=True)
class Version:
    """A tree, and what recorded it: a step, a thread-start (index 0), a checkpoint (index None).
    `recorded_at`: ms since 1970 UTC; `called`: the ends of the threads that the step called, or the
    steps that were applied before a checkpoint, None where its node has them; `call`: turn and tool
    that left the tree, within a step. What a person has changed in a session's directory has the
    role PERSON."""

    root: TreeHash | None
    hash: NodeHash
    recorded_at: int
    revision: str
    index: int | None = None
    role: str = ""
    agent: NodeHash | None = None
    detail: NodeHash | None = None
    called: Sequence[NodeHash] | None = ()
    message: str = ""
    call: tuple[int, str | None] | None = None
    times: TimesHash | None = None  # of the tree that a call left
    whole: TreeHash | None = None  # root of the whole directory, where it is not that of `hash`
    prompt: NodeHash | None = None  # of a session: the turn with what the person has asked for

    def dated(self, store: Store) -> DatedTree:
        """Returns its tree with the times that were recorded beside it. Raises NotFound where it
        has none."""
        if self.root is None:
            raise NotFound(f"{self.revision} has no tree")
        if self.call is not None:
            return DatedTree(self.root, self.times)
        recorded = revisions.state_of_node(store, self.hash).work
        # What a step began with has the step's hash, but another root: those times are not its own.
        return recorded if recorded.tree == self.root else DatedTree(self.root)
