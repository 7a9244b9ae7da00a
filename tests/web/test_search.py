"""Search in the browser."""

from __future__ import annotations

from functools import partial

import pytest

from casfs.digest import BlobHash, NodeHash, ThreadId, TreeHash
from casfs.errors import Refused
from casfs.review import comments
from casfs.review.comments import Comment, Review
from casfs.store.store import Store
from casfs.threads import threads
from casfs.web import search as searches
from casfs.web.search import search
from tests.support.thread_example import make_thread
from tests.support.web import Web, visible


def test_windows_are_by_index(disk_store: Store) -> None:
    for number in range(60):
        disk_store.put_node("content", {"text": f"common word {number}", "artifacts": []})
    found = [search(disk_store, "common", first=first) for first in (0, 25, 50, 75)]
    assert [(len(one.hits), one.has_more) for one in found] == [
        (25, True), (25, True), (10, False), (0, False),
    ]  # fmt: skip
    assert len({hit.hash for one in found for hit in one.hits}) == 60
    assert len(search(disk_store, "common 7").hits) == 1
    assert search(disk_store, "common", type="role").hits == []


def test_an_index_that_takes_long_is_said(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "LIMIT_S", -1.0)
    with pytest.raises(Refused, match="load this page again"):
        search(disk_store, "word")


def test_a_hit_leads_to_its_step(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store, project="/src/app")
    thread.step("planner", "the <b>needle</b> here")
    disk_store.put_node("content", {"text": "a needle elsewhere", "artifacts": []})
    html = web.get("/search?q=needle").text
    assert f'<a href="/threads/{thread.id}">Fix the parser.</a></b> <a class="project"' in html
    assert f'<a href="/threads/{thread.id}/steps/1">' in html
    assert "the &lt;b&gt;needle&lt;/b&gt; here" in html
    assert visible(html).count("needle") == 2
    assert visible(web.get(f"/search?q=needle&thread={thread.id[:20]}").text).count("needle") == 1
    assert "Nothing has all of these words" in web.get("/search?q=needle+nothing").text
    assert "Nothing has" in web.get("/search?q=%22*").text
    assert "no thread" in web.get("/search?q=needle&thread=unknown", 404).text
    assert "Nothing" not in web.get("/search").text


def test_a_step_is_listed_once(web: Web, disk_store: Store) -> None:
    """Its output, its detail and its prompt may all have the word."""
    thread = make_thread(disk_store)
    thread.step("planner", "the needle", detail=disk_store.put_node(
        "content", {"text": "a needle in its detail", "artifacts": []}
    ).hash)  # fmt: skip
    assert len(search(disk_store, "needle").hits) == 1


def added(comment: Comment, review: Review, _: object) -> Review:
    return comments.add(review, comment)


def test_a_comment_leads_to_its_review(web: Web, disk_store: Store) -> None:
    """Earlier versions of the review are no hits."""
    thread = make_thread(disk_store)
    id = ThreadId(thread.id)
    tree = threads.start(disk_store, threads.get(disk_store, id)).payload["workspace"]
    assert tree is not None
    for text in ("a needle", "another needle"):
        draft = Comment(0, TreeHash(NodeHash(BlobHash(tree))), b"hello.txt", 0, count=0, text=text)
        comments.change(disk_store, id, partial(added, draft))
    (hit,) = search(disk_store, "needle").hits
    assert (hit.type, hit.thread) == ("review", thread.id)
    assert f'<a href="/threads/{thread.id}/review">review</a>' in web.get("/search?q=needle").text
