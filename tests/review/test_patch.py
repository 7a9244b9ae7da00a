"""Comments are written into the diff as a text, and read from it."""

from __future__ import annotations

import pytest

from casfs.digest import ThreadId
from casfs.errors import Invalid
from casfs.review import anchors, comments, patch
from casfs.review.comments import Comment, Review
from casfs.review.subject import Subject
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import Thread
from tests.support.helpers import put_tree
from tests.support.thread_example import make_thread

OLD = {"a": b"1\n2\n3\n", "gone": b"gone\n", "bin": b"\0"}
NEW = {"a": b"1\ntwo\n3\n", "new": b"# no comment\n", "bin": b"\0\1"}


def thread_of(store: Store) -> Thread:
    return threads.get(store, ThreadId(make_thread(store).id))


@pytest.fixture
def reviewed(store: Store) -> Subject:
    old, new = (put_tree(store, tree) for tree in (OLD, NEW))
    return Subject(thread_of(store), 0, old=old, new=new)


def text_of(store: Store, reviewed: Subject, review: Review | None = None) -> str:
    return patch.compose(store, review or Review(ThreadId("0" * 26)), reviewed)


def written(store: Store, reviewed: Subject, below: str, *lines: str) -> list[Comment]:
    """The comments read from the text, in which lines were written below another."""
    text = text_of(store, reviewed)
    assert text.count(f"{below}\n") == 1
    return patch.parse(store, reviewed, text.replace(f"{below}\n", "\n".join([below, *lines, ""])))


def test_nothing_written(store: Store, reviewed: Subject) -> None:
    assert patch.parse(store, reviewed, text_of(store, reviewed)) == []


def test_on_lines_of_both_sides(store: Store, reviewed: Subject) -> None:
    (comment,) = written(store, reviewed, "+two", "# Why?", "#", "# Really.")
    assert (comment.path, comment.line, comment.is_old) == (b"a", 2, False)
    assert comment.text == "Why?\n\nReally."
    assert comment.tree == reviewed.new
    (comment,) = written(store, reviewed, "-2", "# It was right.")
    assert (comment.path, comment.line, comment.is_old) == (b"a", 2, True)
    assert comment.tree == reviewed.old


def test_on_files(store: Store, reviewed: Subject) -> None:
    for name, is_old in (("bin", False), ("gone", True)):
        (comment,) = written(store, reviewed, f"=== {name}", "# Why?")
        assert (comment.path, comment.line, comment.is_old) == (name.encode(), 0, is_old)


def test_a_line_of_a_file_is_no_comment(store: Store, reviewed: Subject) -> None:
    assert "+# no comment\n" in text_of(store, reviewed)
    (comment,) = written(store, reviewed, "+# no comment", "# One.")
    assert (comment.path, comment.line, comment.text) == (b"new", 1, "One.")


def test_comments_that_there_are(store: Store, reviewed: Subject) -> None:
    draft = Comment(0, reviewed.new, b"a", 2, count=1, text="Why?\nWhat for?")
    review = comments.add(Review(ThreadId("0" * 26)), draft)
    text = text_of(store, reviewed, review)
    assert "+two\n#: 00000000.1 draft: Why?\\nWhat for?\n 3\n" in text
    assert patch.parse(store, reviewed, text) == []


def test_a_deleted_line_of_a_renamed_file(store: Store) -> None:
    before = b"".join(b"%d\n" % number for number in range(9))
    old, new = (
        put_tree(store, tree) for tree in ({"a": before}, {"b": before.replace(b"4\n", b"")})
    )
    reviewed = Subject(thread_of(store), 0, old=old, new=new)
    (comment,) = written(store, reviewed, "-4", "# It was right.")
    assert (comment.path, comment.line, comment.is_old) == (b"a", 5, True)
    anchors.check_lines(store, comment)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("+two\n", "+2\n", "is not as it was"),
        ("+two\n", "", "is not as it was"),
        ("=== a\n", "# Why?\n=== a\n", "stands below the line"),
        (" 3\n", " 3\n another\n", "is not as it was"),
    ],
)
def test_other_changes_are_refused(
    store: Store, reviewed: Subject, old: str, new: str, says: str
) -> None:
    text = text_of(store, reviewed).replace(old, new, 1)
    with pytest.raises(Invalid, match=says):
        patch.parse(store, reviewed, text)


def test_spaces_at_the_ends_may_go(store: Store) -> None:
    old, new = (put_tree(store, {"a": text}) for text in (b"x\n\n1  \n", b"x\n\n2  \n"))
    reviewed = Subject(thread_of(store), 0, old=old, new=new)
    text = "\n".join(line.rstrip() for line in text_of(store, reviewed).splitlines())
    assert patch.parse(store, reviewed, text) == []
