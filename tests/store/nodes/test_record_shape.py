"""What `record_shape` takes for a sound record is one to the library, whatever is in it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.errors import Invalid
from casfs.store.nodes import head_kinds
from casfs.store.nodes.head_kinds import KINDS
from casfs.store.nodes.record_shape import shape_of
from casfs.store.nodes.schema import Schema

HASH, ID = "ab" * 32, "01JD0000000000000000000000"
LEAVES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1.0, 1.5, 10**15, "", "a", "a b",
    HASH, HASH + "\n", ID, ID + "\n",
    "running", "copy", [], [HASH], [1], {}, {"role": "a", "index": 1}, {"tokens": 0, "wallMs": 0},
    {"thread": ID, "step": 0},
]  # fmt: skip
THREAD = {
    "status": "running",
    "start": HASH,
    "workflow": "develop",
    "updatedAt": 1,
    "intent": {"role": "coder", "index": 3, "attempt": 1, "since": 5, "run": None, "turns": [HASH]},
    "children": [ID],
    "reason": None,
}


def is_valid(document: dict[str, Any], record: Any) -> bool:
    try:
        Schema(document).check(record)
    except Invalid:
        return False
    return True


def record_of(document: dict[str, Any], draw: st.DataObject) -> dict[str, Any]:
    """A record with some of the members that a kind knows, and one that it does not."""
    names = sorted(document["properties"])
    kept = draw.draw(st.sets(st.sampled_from(names))) if names else set()
    members = {*document["required"], *kept, "more"}
    if members and draw.draw(st.booleans()):
        members.discard(draw.draw(st.sampled_from(sorted(members))))
    return {name: draw.draw(st.sampled_from(LEAVES)) for name in sorted(members)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prefix)
@given(st.data())
def test_what_fits_is_valid(kind: head_kinds.HeadKind, draw: st.DataObject) -> None:
    record = record_of(kind.document, draw)
    assert not shape_of(kind.document)(record) or is_valid(kind.document, record)


@given(st.sampled_from(sorted(head_kinds.THREAD["properties"])), st.sampled_from(LEAVES))
def test_a_changed_record_of_a_thread(name: str, value: Any) -> None:
    """Of the values here both say the same, but for a whole number that is written 1.0."""
    assert shape_of(head_kinds.THREAD)(THREAD)
    changed = {**copy.deepcopy(THREAD), name: value}
    if not isinstance(value, float):
        assert shape_of(head_kinds.THREAD)(changed) == is_valid(head_kinds.THREAD, changed)


def test_an_unknown_keyword_is_left_to_the_library() -> None:
    assert not shape_of({"type": "string", "maxLength": 3})("ab")
