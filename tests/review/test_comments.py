"""A review is stored as one node: drafts, rounds, what two reviewers do at once."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from casfs.digest import ThreadId
from casfs.errors import Refused
from casfs.maintenance import gc
from casfs.review import comments, message, subject
from casfs.review.comments import DRAFT, HANDLED, SENT, Comment, Review
from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.threads import threads
from engine.sessions import session_fork
from engine.threads import lifecycle
from tests.support.attached_agent import AttachedAgent
from tests.support.following import OwnSessionDirectory
from tests.support.helpers import put_tree
from tests.support.thread_example import make_thread

TREE = {"a": b"1\n2\n3\n", "\xff.py": b"x\n"}


@pytest.fixture
def thread(disk_store: Store) -> threads.Thread:
    return threads.get(disk_store, ThreadId(make_thread(disk_store).id))


def draft(store: Store, text: str = "Why?", path: bytes = b"a") -> Comment:
    return Comment(0, put_tree(store, TREE), path, 2, count=1, text=text)


def add(store: Store, id: ThreadId, comment: Comment) -> Review:
    return comments.change(store, id, lambda old, _: comments.add(old, comment))


def test_from_draft_to_handled(disk_store: Store, thread: threads.Thread) -> None:
    id = thread.id
    review = add(disk_store, id, draft(disk_store))
    assert comments.load(disk_store, id) == review
    assert review.state(review.comments[0]) == DRAFT
    review = message.send(disk_store, thread)
    assert review.state(review.comments[0]) == SENT
    assert list(comments.unheard(disk_store)) == [id]
    review = comments.change(disk_store, id, lambda old, _: comments.handle(old, 1, "Mended."))
    assert review.state(review.comments[0]) == HANDLED
    assert comments.load(disk_store, id).comments[0].answer == "Mended."


def test_rounds_are_numbered(disk_store: Store, thread: threads.Thread) -> None:
    for text in ("first", "second"):
        add(disk_store, thread.id, draft(disk_store, text))
        message.send(disk_store, thread)
    review = comments.load(disk_store, thread.id)
    texts = [disk_store.node(sent.message).payload["text"] for sent in review.rounds]
    assert [comment.round for comment in review.comments] == [1, 2]
    assert message.mark(thread.id, 2) in texts[1]
    assert "first" not in texts[1]


def test_what_the_agent_is_told(disk_store: Store, thread: threads.Thread) -> None:
    tree = subject.newest_tree(disk_store, thread)
    add(disk_store, thread.id, Comment(0, tree, b"hello.txt", 1, count=1, text="Why?"))
    review = message.send(disk_store, thread)
    text = disk_store.node(review.rounds[0].message).payload["text"]
    label = f"{thread.id[-8:]}.1"
    assert text.startswith(f"[casfs review {thread.id[-8:]} round 1]")
    assert f"{label}: hello.txt, line 1\n> 1 | hello\nWhy?" in text
    assert f"casfs review done {label}" in text


@pytest.mark.parametrize(
    ("newest", "says"),
    [
        ({"a": b"0\n1\n2\n3\n"}, ": a, line 3\n  1 | 0\n  2 | 1\n> 3 | 2\n  4 | 3\nWhy?"),
        ({"b": b"1\n2\n3\n"}, ": b, line 2\n"),
        (
            {"a": b"1\ntwo\n3\n"},
            ": a, line 2, which have changed since; they were\n  1 | 1\n> 2 | 2",
        ),
        ({}, ": a, line 2, which have changed since; they were\n  1 | 1\n> 2 | 2"),
    ],
)
def test_lines_are_named_as_they_are_now(store: Store, newest: dict[str, bytes], says: str) -> None:
    review = comments.add(Review(ThreadId("0" * 26)), draft(store))
    sent = review.with_comment(replace(review.comments[0], round=1))
    assert says in message.compose(store, sent, 1, put_tree(store, newest))


def test_sent_comments_stay(disk_store: Store, thread: threads.Thread) -> None:
    add(disk_store, thread.id, draft(disk_store))
    message.send(disk_store, thread)
    review = comments.load(disk_store, thread.id)
    with pytest.raises(Refused, match="was sent in round 1"):
        comments.remove(review, 1)
    with pytest.raises(Refused, match="was sent in round 1"):
        comments.edit(review, 1, "Other")
    with pytest.raises(Refused, match="nothing to send"):
        message.send(disk_store, thread)


def test_reviewers_at_once_lose_nothing(disk_store: Store, thread: threads.Thread) -> None:
    def write(name: str) -> None:
        with Store.open(disk_store.root) as own:
            for number in range(8):
                add(own, thread.id, draft(own, f"{name} {number}"))

    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    review = comments.load(disk_store, thread.id)
    assert sorted(comment.number for comment in review.comments) == list(range(1, 17))
    assert {comment.text for comment in review.comments} == {
        f"{name} {number}" for name in "ab" for number in range(8)
    }


def test_it_is_kept_and_goes_with_its_thread(
    disk_store: Store,
    thread: threads.Thread,
) -> None:
    add(disk_store, thread.id, draft(disk_store, path=b"\xff.py"))
    review = message.send(disk_store, thread)
    gc.collect(disk_store, grace=0)
    assert comments.load(disk_store, thread.id) == review
    cancelled = make_thread(disk_store, "01JD0000000000000000000001", status="cancelled")
    add(disk_store, ThreadId(cancelled.id), draft(disk_store))
    lifecycle.remove(disk_store, threads.get(disk_store, ThreadId(cancelled.id)))
    assert disk_store.heads.get(comments.head_name(ThreadId(cancelled.id))) is None


def test_drafts_go_with_a_session_that_is_cut(disk_store: Store, tmp_path: Path) -> None:
    """What was sent stays with the session that heard it."""
    with closing(OwnSessionDirectory(disk_store, tmp_path, None)) as followed:
        agent = AttachedAgent(disk_store, tmp_path, followed)
        agent.prompt("Change it")
        agent.write("a", "1\n2\n")
        agent.stop()
    thread = agent.thread
    add(disk_store, thread.id, draft(disk_store, "sent"))
    message.send(disk_store, thread)
    add(disk_store, thread.id, draft(disk_store, "not sent"))
    forked = session_fork.fork(disk_store, thread, Point(1), "other", None)
    review = comments.load(disk_store, forked.id)
    assert [(each.number, each.text) for each in review.drafts] == [(1, "not sent")]
    (kept,) = comments.load(disk_store, thread.id).comments
    assert (kept.text, kept.round) == ("sent", 1)
