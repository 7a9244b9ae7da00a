"""What is reviewed: how the files of a thread were at one of its prompts, and how they are now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casfs.checkpoints import revisions
from casfs.digest import TreeHash
from casfs.errors import NotFound
from casfs.review.comments import Comment
from casfs.sessions import session_steps
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.threads.threads import SUSPENDED, Thread


@dataclass(frozen=True)
class Subject:
    """`since`: number of the last step whose changes are not reviewed, 0: all are; `old`, `new`:
    the work, without private files."""

    thread: Thread
    since: int
    old: TreeHash
    new: TreeHash

    def tree_of(self, comment: Comment) -> TreeHash:
        """Returns the state in which the lines of a comment are looked for."""
        return self.old if comment.is_old else self.new


def of_thread(store: Store, thread: Thread, since: int = 0) -> Subject:
    """Raises NotFound where a step is not there, or no tree of it was kept."""
    length = threads.length(store, thread)
    if not 0 <= since <= length:
        raise NotFound(f"thread {thread.id} has {length} steps, not {since}")
    old = revisions.step_state(store, thread, since).tree
    return Subject(thread, since, old=old, new=newest_tree(store, thread))


def newest_tree(store: Store, thread: Thread) -> TreeHash:
    """Returns the work of a thread as it was recorded last, also in its pending step. Raises
    NotFound."""
    if thread.pending is not None:
        newest = _newest_of_pending(store, thread)
        if newest is not None:
            return newest
    return revisions.step_state(store, thread, None).tree


def _newest_of_pending(store: Store, thread: Thread) -> TreeHash | None:
    if sessions.is_session(thread):
        state = session_steps.newest_state(session_steps.load(store, thread))
        return None if state is None else state.tree
    fields: Mapping[str, Any] = thread.intent
    # While it asks a person: recorded after all of its turns.
    if thread.status == SUSPENDED and "tree" in fields:
        return TreeHash(fields["tree"])
    for turn in reversed(threads.turns(store, thread.intent)):
        tree = store.node(turn).payload.get("workspace")
        if tree is not None:
            return TreeHash(tree)
    return TreeHash(fields["tree"]) if "tree" in fields else None
