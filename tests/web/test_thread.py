"""The page of a thread: its header and forms, any window of its steps, its children."""

from __future__ import annotations

import pytest

from casfs.backend.protocols import Head, HeadName, Swap
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ThreadId
from casfs.web.thread import MAX_WINDOW, WINDOW, Page, page
from casfs.web.thread_table import ThreadTable
from tests.support.thread_example import Example, make_thread
from tests.support.web import Web, visible

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&lt;\x1b[2J"
INTENT = {"role": "planner", "index": 2, "attempt": 1, "since": 1, "turns": [], "turnCount": 3}


def shown(store: Store, thread: Example, first: int | None = None, count: int = WINDOW) -> Page:
    found = threads.get(store, ThreadId(thread.id))
    return page(store, ThreadTable(store), found, first, count)


@pytest.mark.parametrize(
    ("first", "count", "indices"),
    [
        (None, 50, (4951, 5000)),
        (1, 50, (1, 50)),
        (2, 1, (2, 2)),
        (2345, 50, (2345, 2394)),
        (4990, 50, (4990, 5000)),
        (10**12, 50, (5000, 5000)),
    ],
)
def test_any_window_costs_a_few_reads_beside_its_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch, first: int | None, count: int, indices: object
) -> None:
    thread = make_thread(store)
    thread.steps_at_once(5000)
    read: list[str] = []
    node = Store.node

    def counting(self: Store, hash: str, type: str | None = None) -> object:
        read.append(hash)
        return node(self, hash, type)

    monkeypatch.setattr(Store, "node", counting)
    found = shown(store, thread, first, count)
    assert (found.lines[0].index, found.lines[-1].index, found.total) == (*indices, 5000)  # type: ignore[misc]
    assert found.graph is not None
    steps = [hash for hash in read if hash in set(thread.steps)]
    assert len(steps) <= count + 40


def test_a_window_begins_with_the_edge_that_led_to_it(store: Store) -> None:
    thread = make_thread(store)
    for role in ("planner", "coder", "planner"):
        thread.step(role, "Said.")
    flow = shown(store, thread, 2, 2)
    assert [line.role for line in flow.lines] == ["coder", "planner"]
    assert shown(store, thread).rules[0].taken == 1
    assert flow.rules[0].taken == 0, "the start is before the window"
    thread.end()
    assert shown(store, thread, 2, 2).rules[1].taken == 0, "its record has no return code 0"


def test_the_rail_says_how_each_step_went(web: Web, disk_store: Store) -> None:
    store, thread = disk_store, make_thread(disk_store, name="night run")
    failed = store.put_node("content", {"text": "it broke", "artifacts": []}).hash
    thread.step("planner", "\n# First\nrest", attempts=[failed, failed])
    child = make_thread(store, "01JD0000000000000000000001", parent=thread.id)
    thread.move(thread.steps[0], intent={**INTENT, "calls": [child.id]}, attempts=[failed])
    model = shown(store, thread)
    (line,) = model.lines
    assert (line.said, line.duration_ms, line.attempts, line.origin) == ("# First", 1000, 2, "run")
    assert [row.id for row in model.calls] == [child.id]
    assert model.names == [f"threads/{thread.id}", f"threads/{child.id}"]
    html = web.get(f"/threads/{thread.id}").text
    text = visible(html)
    for part in ("night run", "Fix the parser. It drops", "attempt 2", "Failed attempts (1)"):
        assert part in text
    assert "attempt 1, 3 turns" in text
    assert f'data-live="threads/{thread.id} threads/{child.id}"' in html
    assert f'href="/threads/{thread.id}/steps/1/trace?attempt=2"' in html
    part = web.get(f"/threads/{thread.id}?fragment=thread&count=50").text
    assert part.lstrip().startswith('<div id="thread"')


def test_a_step_names_the_threads_that_it_called(store: Store) -> None:
    thread = make_thread(store)
    child = make_thread(store, "01JD0000000000000000000001", parent=thread.id)
    end = child.end()
    thread.step("planner", "Called.", children=[end])
    (line,) = shown(store, thread).lines
    assert [(row.id, row.state) for row in line.children] == [(child.id, "succeeded")]
    assert line.removed == []


def test_a_child_that_was_removed_is_said_to_be(web: Web, disk_store: Store) -> None:
    store, ids = disk_store, [f"01JD000000000000000000000{n}" for n in (1, 2, 3)]
    thread = make_thread(store)
    ended, kept, asked = (make_thread(store, id, parent=thread.id) for id in ids)
    end = ended.end()
    thread.step("planner", "Called.", children=[end])
    thread.move(thread.steps[-1], intent={**INTENT, "calls": [asked.id, kept.id]})
    path = f"/threads/{thread.id}"
    assert "removed" not in visible(web.get(path).text)
    for gone in (ended, asked):
        with store.batch() as batch:
            batch.swap(gone.name, store.heads.get(HeadName(gone.name)), None)
    html = web.get(path).text
    assert f"removed its end {end[:12]}" in visible(html)
    assert f"removed {asked.id}" in visible(html)
    assert f'href="/threads/{kept.id}"' in html
    assert f'href="/threads/{asked.id}"' not in html
    assert f"removed its end {end[:12]}" in visible(web.get(f"{path}/steps/1").text)
    with store.batch() as batch:
        batch.swap(thread.name, thread.head, None)
    html = web.get(f"/threads/{kept.id}").text
    assert f"called by {thread.id[-8:]} removed" in visible(html)
    assert f'href="{path}"' not in html


def test_windows_are_asked_for_by_index(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store)
    thread.steps_at_once(120)
    path = f"/threads/{thread.id}"
    newest = web.get(path).text
    assert "71–120 of 120" in visible(newest)
    assert f'href="{path}?from=21&amp;count=50" rel="prev"' in newest
    assert 'data-fragment="' + path + '?fragment=thread&amp;count=50"' in newest
    first = web.get(f"{path}?from=1&count=10").text
    assert f'href="{path}?from=11&amp;count=10" rel="next"' in first
    assert len(shown(disk_store, thread, 1, MAX_WINDOW).lines) == 120
    assert web.get(f"{path}?from=x", 400).status == 400
    assert web.get("/threads/NO", 404).status == 404
    web.get(f"/threads/{thread.id[:20].lower()}")


def test_what_people_and_agents_wrote_is_text(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store, name=HOSTILE, reason=HOSTILE, status="suspended")
    thread.step(HOSTILE, HOSTILE)
    thread.move(thread.steps[0], intent={**INTENT, "role": HOSTILE})
    html = web.get(f"/threads/{thread.id}").text
    assert html.count("<script") == 1
    assert "<img" not in html
    assert "\x1b" not in html


def test_a_damaged_record_is_a_page_with_its_fault(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store)
    damaged = Head(thread.head.hash, {**thread.head.record, "intent": {"role": 1}})
    disk_store.backend.publish([], [Swap(HeadName(thread.name), thread.head, damaged)])
    assert "its record is damaged" in visible(web.get(f"/threads/{thread.id}").text)


@pytest.mark.parametrize(
    ("record", "forms"),
    [
        ({"status": "running"}, {"cancel", "compact", "fork"}),
        ({"status": "suspended", "intent": INTENT}, {"resume", "cancel", "compact", "fork"}),
        ({"status": "ended", "returnCode": 0}, {"fork"}),
    ],
)
def test_the_forms_fit_the_state(
    web: Web, disk_store: Store, record: dict[str, object], forms: set[str]
) -> None:
    thread = make_thread(disk_store, **record)
    html = web.get(f"/threads/{thread.id}").text
    actions = {"resume", "cancel", "compact", "fork"}
    assert {one for one in actions if f'action="/threads/{thread.id}/{one}"' in html} == forms
