"""How a person, or the agent, changes a review: one request each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_to_bytes

from casfs.checkpoints import revisions
from casfs.digest import ThreadId
from casfs.errors import Invalid
from casfs.review import anchors, comments
from casfs.review.comments import Comment, Review
from casfs.store.store import Store
from casfs.store.write_batch import Batch


def change(store: Store, id: ThreadId, action: str, fields: Mapping[str, Any]) -> Review:
    """Raises Invalid for another form, NotFound, Refused."""
    if action == "add":
        draft = _comment(store, fields)
        anchors.check_lines(store, draft)

    def make(review: Review, batch: Batch) -> Review:
        match action:
            case "add":
                return comments.add(review, draft)
            case "edit":
                return comments.edit(
                    review, fields["number"], fields.get("text", ""), fields.get("suggestion")
                )
            case "remove":
                return comments.remove(review, fields["number"])
            case "done":
                return comments.handle(review, fields["number"], fields.get("text", ""))
            case "view":
                path = unquote_to_bytes(fields["file"])
                viewed = {old: mark for old, mark in review.viewed.items() if old != path}
                if "viewed" in fields:
                    viewed[path] = str(fields["viewed"])
                return replace(review, viewed=viewed)
        raise Invalid(f"a review has no action {action!r}")

    return comments.change(store, id, make)


def _comment(store: Store, fields: Mapping[str, Any]) -> Comment:
    line = fields.get("line", 0)
    return Comment(
        0,
        revisions.resolve_tree(store, fields["tree"]),
        unquote_to_bytes(fields["file"]),
        line,
        count=fields.get("count", 1) if line else 0,
        text=fields.get("text", ""),
        is_old=fields.get("side") == "old",
        suggestion=fields.get("suggestion"),
    )
