"""What became of the lines of a comment: which call of the agent changed them."""

from __future__ import annotations

from casfs.errors import CasfsError
from casfs.review.anchors import place
from casfs.review.comments import Comment, Review
from casfs.sessions.session_steps import CallRecord, StepRecord
from casfs.store.store import Store
from casfs.trees import tree


def changed_by(
    store: Store, review: Review, comment: Comment, steps: list[StepRecord]
) -> CallRecord | None:
    """Returns the first call after a comment was sent that changed its lines; None where none has,
    or its trees are not kept."""
    if comment.round is None or comment.is_old:
        return None
    sent_at = review.rounds[comment.round - 1].sent_at
    for step in steps:
        for call in step.calls:
            if call.reported_ms >= sent_at and _changes(store, comment, call):
                return call
    return None


def _changes(store: Store, comment: Comment, call: CallRecord) -> bool:
    if call.before is None or call.after is None or call.before.tree == call.after.tree:
        return False
    try:
        states = [call.before.tree, call.after.tree]
        entries = [tree.find(store, root, comment.path) for root in states]
        if entries[0] == entries[1] and entries[0] is not None:
            return False
        position = place(store, comment, call.before.tree)
        if position is None:
            return False
        sides = [tree.find(store, state.tree, position.path) for state in (call.before, call.after)]
    except CasfsError:
        return False
    return sides[0] != sides[1] and place(store, comment, call.after.tree) is None
