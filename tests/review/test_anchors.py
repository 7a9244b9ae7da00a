"""A comment stays with its lines over later changes, or is outdated."""

from __future__ import annotations

import random
from typing import Any

import pytest

from casfs.digest import TreeHash
from casfs.errors import Invalid, NotFound
from casfs.review.anchors import Position, check_lines, moved_line, place
from casfs.review.comments import Comment
from casfs.store.store import Store
from tests.support.helpers import put_tree

LINES = [f"line {number}\n" for number in range(1, 31)]
TEXT = "".join(LINES).encode()


def comment(tree: TreeHash, line: int = 10, count: int = 2, path: bytes = b"a") -> Comment:
    return Comment(1, tree, path, line, count=count, text="Why?")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (LINES, 10),
        (["new\n", "new\n", *LINES], 12),
        (LINES[3:], 7),
        ([*LINES[:9], "new\n", *LINES[9:]], 11),  # just before it
        ([*LINES[:11], "new\n", *LINES[11:]], 10),  # just after it
        ([*LINES[:10], "new\n", *LINES[10:]], None),  # between its lines
        ([*LINES[:9], "other\n", *LINES[10:]], None),
        ([*LINES[:10], *LINES[11:]], None),
        ([], None),
    ],
)
def test_lines_move(store: Store, changed: list[str], line: int | None) -> None:
    old = put_tree(store, {"a": TEXT})
    new = put_tree(store, {"a": "".join(changed).encode()})
    expected = None if line is None else Position(b"a", line)
    assert place(store, comment(old), new) == expected


def test_a_renamed_file_is_followed(store: Store) -> None:
    old = put_tree(store, {"a": TEXT, "b": b"b"})
    new = put_tree(store, {"d": {"c": b"new\n" + TEXT}, "b": b"b"})
    assert place(store, comment(old), new) == Position(b"d/c", 11)
    assert place(store, comment(old, line=0, count=0), new) == Position(b"d/c", 0)


@pytest.mark.parametrize("new", [{}, {"a": {"b": b""}}, {"a": b"\0binary"}])
def test_what_has_no_lines_any_more(store: Store, new: dict[str, object]) -> None:
    old = put_tree(store, {"a": TEXT})
    assert place(store, comment(old), put_tree(store, new)) is None


@pytest.mark.parametrize("seed", range(500))
def test_random_changes(seed: int) -> None:
    """The oracle knows each line's origin, as a perfect blame would."""
    chance = random.Random(seed)
    texts = [chance.choice((f"{n}\n", "}\n", "\n")) for n in range(chance.randrange(2, 60))]
    line = chance.randrange(1, len(texts) + 1)
    count = chance.randrange(1, min(4, len(texts) - line + 1) + 1)
    current = list(enumerate(texts))  # (origin, text); None: written later
    changed: list[tuple[int | None, str]] = list(current)
    for _ in range(chance.randrange(1, 8)):
        at = chance.randrange(len(changed) + 1)
        match chance.choice(("insert", "delete", "replace")):
            case "insert":
                changed[at:at] = [(None, chance.choice(("new\n", "}\n")))] * chance.randrange(1, 4)
            case "delete":
                del changed[at : at + chance.randrange(1, 4)]
            case "replace" if at < len(changed):
                changed[at] = (None, f"other {chance.random()}\n")
    old = [text.encode() for text in texts]
    new = [text.encode() for _, text in changed]
    moved = moved_line(old, new, line, count)
    if moved is None:
        return
    assert new[moved - 1 : moved - 1 + count] == old[line - 1 : line - 1 + count]
    # Equal lines cannot be told apart by content: of others the origin is the same.
    for index in range(count):
        origin, text = changed[moved - 1 + index]
        if new.count(text.encode()) == old.count(text.encode()) == 1:
            assert origin == line - 1 + index


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"line": 31, "count": 1}, Invalid, "a has 30 lines, not 31"),
        ({"line": 30, "count": 2}, Invalid, "a has 30 lines, not 31"),
        ({"line": 3, "count": 0}, Invalid, "a has 30 lines"),
        ({"path": b"nosuch"}, NotFound, "nosuch is not in the tree"),
        ({"path": b"bin"}, Invalid, "bin has no lines: binary"),
    ],
)
def test_lines_that_are_not_there(
    store: Store, wrong: dict[str, Any], error: type[Exception], says: str
) -> None:
    tree = put_tree(store, {"a": TEXT, "bin": b"\0\1"})
    with pytest.raises(error, match=says):
        check_lines(store, comment(tree, **wrong))
