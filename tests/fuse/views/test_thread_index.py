"""`threads.json` and `history/` as plain objects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from casfs.backend.protocols import Head
from casfs.fuse.views import thread_index
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory, File
from casfs.store.store import Store
from tests.support.fuse import at, content, load, missing, names, read
from tests.support.helpers import set_head
from tests.support.thread_example import Example

DAY = 86_400_000
NOON = 1_700_049_600_000  # 2023-11-15T12:00Z
TODAY = "history/2023-11-15.jsonl"


def ulid(n: int) -> str:
    return f"01JD{n:022}"


def put(store: Store, thread: Example, id: str, status: str, at_ms: int, **more: Any) -> None:
    """Make or move the head of a thread."""
    record = {**thread.head.record, "status": status, "updatedAt": at_ms, **more}
    name = f"threads/{id}"
    with store.batch() as batch:
        batch.swap(name, store.heads.get(name), Head(thread.start, record))


def lines(store: Store, path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read(store, path).splitlines()]


def test_the_formats(store: Store, thread: Example) -> None:
    head = thread.step("planner", "text")
    about = {"head": head, "start": thread.start, "updatedAt": thread.head.record["updatedAt"]}
    assert load(store, "threads.json") == {thread.id: about}
    assert names(store, "history") == []
    end = thread.end()
    assert load(store, "threads.json") == {}
    (day,) = names(store, "history")
    assert day == "2023-11-14.jsonl"
    assert (
        read(store, f"history/{day}")
        == (
            f'{{"threadId":"{thread.id}","head":"{end}","start":"{thread.start}",'
            f'"completedAt":{thread.head.record["updatedAt"]}}}\n'
        ).encode()
    )
    assert missing(store, "history/2023-11-13.jsonl")


def test_what_is_active_and_what_has_ended(store: Store, thread: Example) -> None:
    put(store, thread, ulid(1), "running", NOON)
    put(store, thread, ulid(2), "suspended", NOON)
    put(store, thread, ulid(3), "ended", NOON + 5)
    put(store, thread, ulid(4), "cancelled", NOON)
    put(store, thread, ulid(5), "ended", NOON - NOON % DAY)
    put(store, thread, ulid(6), "ended", NOON - NOON % DAY - 1)
    assert list(load(store, "threads.json")) == [thread.id, ulid(1), ulid(2)]
    assert names(store, "history") == ["2023-11-14.jsonl", "2023-11-15.jsonl"]
    order = [ulid(5), ulid(4), ulid(3)]
    assert [line["threadId"] for line in lines(store, TODAY)] == order, "by their ends"


def test_damaged_records_are_in_neither(store: Store, thread: Example) -> None:
    damaged: list[tuple[str, Any]] = [
        ("status", "odd"), ("updatedAt", None), ("updatedAt", 5), ("start", "none"), ("start", 1),
    ]  # fmt: skip
    for n, (field, value) in enumerate(damaged):
        record = {**thread.head.record, field: value}
        set_head(store, f"threads/{ulid(n + 1)}", thread.start, **record)
    for name in ("", "short", "é" * 26):
        set_head(store, f"threads/{name}", thread.start, **thread.head.record)
    assert list(load(store, "threads.json")) == [thread.id]
    assert names(store, "history") == []


@pytest.mark.parametrize("many", [0, 1000], ids=["read again", "followed"])
def test_objects_that_exist_follow_the_heads(
    store: Store, thread: Example, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_index, "RELOAD_MOVES", many)
    top = root(StoreReader(store), Stats())
    active, history = at(store, "threads.json", top), at(store, "history", top)
    assert isinstance(history, Directory)

    def now() -> tuple[list[str], dict[str, list[str]]]:
        days = {}
        for name, day in history.entries():
            found = content(day).splitlines()
            days[name.decode()] = [json.loads(line)["threadId"] for line in found]
        return list(json.loads(content(active))), days

    assert now() == ([thread.id], {})
    put(store, thread, ulid(2), "ended", NOON)
    put(store, thread, ulid(1), "running", NOON)
    assert now() == ([thread.id, ulid(1)], {"2023-11-15.jsonl": [ulid(2)]})
    put(store, thread, ulid(1), "ended", NOON)
    put(store, thread, ulid(3), "ended", NOON - 1)
    assert now() == ([thread.id], {"2023-11-15.jsonl": [ulid(3), ulid(1), ulid(2)]})
    with store.batch() as batch:  # as `thread rm`
        for id in (ulid(1), thread.id):
            batch.swap(f"threads/{id}", store.heads.get(f"threads/{id}"), None)
    assert now() == ([], {"2023-11-15.jsonl": [ulid(3), ulid(2)]})
    put(store, thread, ulid(2), "running", NOON)
    put(store, thread, ulid(3), "running", NOON)
    assert now() == ([ulid(2), ulid(3)], {})
    assert content(at(store, "threads.json", top)) == read(store, "threads.json")


def test_a_day_is_read_at_any_offset(store: Store, thread: Example) -> None:
    for n in range(7):
        put(store, thread, ulid(n + 1), "ended", NOON + n)
    day = at(store, TODAY)
    assert isinstance(day, File)
    assert day.live
    whole = content(day)
    width = len(whole) // 7
    assert whole.count(b"\n") == 7
    for offset in (0, 1, width - 1, width, 3 * width + 5, len(whole) - 1, len(whole), 10**6):
        for size in (1, width, 2 * width + 1, 1 << 62):
            assert day.read(offset, size) == whole[offset : offset + size]
    assert day.attr().size == len(whole)
    put(store, thread, ulid(8), "ended", NOON + 8)
    assert day.attr().size > len(whole)
    assert json.loads(day.read(len(whole), 1 << 20))["threadId"] == ulid(8)


def test_sizes_are_true_without_reading(store: Store, thread: Example) -> None:
    for n in range(4):
        vnode = at(store, "threads.json")
        assert vnode.attr().size == len(content(vnode))
        put(store, thread, ulid(n + 1), "running", NOON)
    with store.batch() as batch:
        for name, head in list(store.heads.list("threads/")):
            batch.swap(name, head, None)
    assert read(store, "threads.json") == b"{}\n"


def test_the_mtime_of_a_day_moves_with_it(store: Store, thread: Example) -> None:
    put(store, thread, ulid(1), "ended", NOON)
    top = root(StoreReader(store), Stats())
    day = at(store, TODAY, top)
    before = day.attr()
    assert day.attr() == before
    put(store, thread, ulid(2), "ended", NOON)
    assert day.attr().mtime_ns > before.mtime_ns
