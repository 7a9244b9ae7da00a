"""The history of a file over a thread's steps."""

from __future__ import annotations

import pytest

from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ThreadId
from casfs.web import file_history
from casfs.web.file_history import History, history
from tests.support.helpers import put_tree
from tests.support.thread_example import Example, make_thread
from tests.support.web import Web, visible

TREES = [
    {"dir": {"a": b"1"}, "b": b"1"},
    {"dir": {"a": b"1"}, "b": b"2"},
    {"dir": {"a": b"2"}, "b": b"2"},
    {"dir": {"a": b"2"}, "b": b"2"},
    {"b": b"2"},
    {"dir": {"a": b"3"}, "b": b"2"},
]


def with_trees(store: Store) -> Example:
    thread = make_thread(store)
    for tree in TREES:
        thread.tree = put_tree(store, tree)
        thread.step("planner", "text")
    return thread


def of(store: Store, thread: Example, path: bytes, upto: int | None = None) -> History:
    return history(store, threads.get(store, ThreadId(thread.id)), path, upto)


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        (b"dir/a", {6: "added", 5: "removed", 3: "changed", 1: "added"}),
        (b"b", {2: "changed", 1: "added"}),
        (b"dir", {6: "added", 5: "removed", 3: "changed", 1: "added"}),
        (b"none/x", {}),
        (b"b/below", {}),
    ],
)
def test_the_steps_that_changed_a_path(store: Store, path: bytes, kinds: dict[int, str]) -> None:
    found = of(store, with_trees(store), path)
    assert {one.index: one.kind for one in found.steps} == kinds


def test_without_a_path_all_steps_that_changed_anything(store: Store) -> None:
    found = of(store, with_trees(store), b"")
    assert [one.index for one in found.steps] == [6, 5, 3, 2, 1]


def test_windows_are_by_index_and_lose_no_step(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = with_trees(store)
    every = [one.index for one in of(store, thread, b"").steps]
    for size in (1, 2, 4):
        monkeypatch.setattr(file_history, "WINDOW", size)
        seen: list[int] = []
        upto: int | None = None
        while upto != 0:
            found = of(store, thread, b"", upto)
            assert found.last - found.first < size
            seen += [one.index for one in found.steps]
            upto = found.first - 1
        assert seen == every


def test_a_thread_without_steps_or_workspace(store: Store) -> None:
    thread = make_thread(store)
    assert of(store, thread, b"a").total == 0


def test_a_page(web: Web, disk_store: Store) -> None:
    thread = with_trees(disk_store)
    html = web.get(f"/threads/{thread.id}/files?path=dir//a").text
    assert f"/compare?a={thread.id}@2&amp;b={thread.id}@3&amp;view=unified&amp;path=dir/a" in html
    assert "5 planner" in visible(html)
    assert "steps 1–6 of 6" in visible(html)
    assert "All files" in web.get(f"/threads/{thread.id[-8:]}/files").text
    assert "must not contain" in web.get(f"/threads/{thread.id}/files?path=..", 400).text
    web.get("/threads/none/files", 404)


def test_the_lines_with_their_steps(web: Web, disk_store: Store) -> None:
    thread = with_trees(disk_store)
    thread.tree = put_tree(disk_store, {"b": b"2\n<b>new\n"})
    thread.step("planner", "text")
    asked = f"/threads/{thread.id}/files?path=b"
    assert f"{asked}&amp;upto=7&amp;blame=1" in web.get(asked).text
    html = web.get(f"{asked}&upto=7&blame=1").text
    assert f'<a href="/threads/{thread.id}/steps/7">{thread.id[-8:]}@7</a>' in html
    assert "&lt;b&gt;new" in html
    web.get(f"/threads/{thread.id}/files?path=none&blame=1", 404)
