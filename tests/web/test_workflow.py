"""Workflows in the browser: their definition, and what their threads made of them."""

from __future__ import annotations

import pytest

from casfs.store.store import Store
from casfs.system.lru_cache import LruCache
from casfs.threads import threads
from casfs.web import workflow as workflows
from casfs.web.thread_table import ThreadTable
from casfs.web.workflow import Path, Paths, listing, paths
from engine.workflow import registry
from tests.support.engine import ONE
from tests.support.thread_example import make_thread
from tests.support.web import Web, visible


def ids(count: int) -> list[str]:
    return [f"01JD00000000000000000000{n:02}" for n in range(count)]


def paths_of(store: Store, known: LruCache | None = None) -> Paths:
    known = LruCache(1000) if known is None else known
    return paths(store, ThreadTable(store).rows(), known)


def test_paths_are_counted_with_the_share_of_failures(store: Store) -> None:
    good, bad, going, cancelled = (make_thread(store, id) for id in ids(4))
    for thread in (good, bad, going, cancelled):
        thread.step("planner", "text")
    good.end()
    bad.step("coder", "text")
    bad.move(bad.end(), status="ended", returnCode=1)
    cancelled.move(cancelled.end(), status="cancelled", returnCode=130)
    found = paths_of(store)
    assert found.read == 4
    assert set(found.every) == {
        Path("__start__", "planner", 4, 4, 3, 1),
        Path("planner", "coder", 1, 1, 1, 1),
        Path("planner", "__end__", 1, 1, 1, 0),
    }


def test_a_path_that_was_read_is_not_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [make_thread(store, id) for id in ids(3)]
    for thread in made:
        thread.step("planner", "text")
    known = LruCache(1000)
    assert paths_of(store, known).read == 3
    monkeypatch.setattr(workflows, "LIMIT_S", -1.0)
    assert paths_of(store, known).read == 3
    made[0].step("planner", "again")  # the oldest
    assert paths_of(store, known).read == 2
    monkeypatch.undo()
    found = paths_of(store, known)
    assert {(one.origin, one.to): one.times for one in found.every} == {
        ("__start__", "planner"): 3,
        ("planner", "planner"): 1,
    }


def test_damage_counts_nothing(store: Store) -> None:
    thread = make_thread(store)
    thread.step("planner", "text")
    rows = ThreadTable(store).rows()
    with store.batch() as batch:
        batch.swap(threads.head_name(rows[0].id), thread.head, None)
    assert paths(store, rows, LruCache(10)).every == []


def test_workflows_without_a_name_or_threads_are_listed(store: Store) -> None:
    registry.add(store, ONE)
    make_thread(store)
    name = registry.head_name("demo")
    with store.batch() as batch:
        batch.swap(name, store.heads.get(name), None)
    found = listing(store, ThreadTable(store).rows())
    assert [(one.name, one.hash is None, one.threads) for one in found] == [
        ("demo", True, 1),
        (ONE["name"], False, 0),
    ]


# -- pages ------------------------------------------------------------------------------------


def test_a_page(web: Web, disk_store: Store) -> None:
    registry.add(disk_store, ONE)
    html = web.get(f"/workflows/{ONE['name']}").text
    assert "<svg" in html
    for role in ONE["roles"]:
        assert f"<b>{role}</b>" in html
    assert "No thread took one yet." in visible(html)
    thread = make_thread(disk_store)
    thread.step("planner", "text")
    name = thread.head.record["workflow"]
    shown = visible(web.get(f"/workflows/{name}").text)
    assert "__start__ planner 1 1 –" in shown
    assert "Of all 1 threads." in shown
    shown = visible(web.get("/workflows").text)
    assert ONE["name"] in shown
    assert "no workflow" in web.get("/workflows/none", 404).text
    assert "no workflow" in web.get("/workflows/a/b%0a", 404).text
