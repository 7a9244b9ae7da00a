"""`threads/<ULID>/running/` as plain objects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from casfs.errors import NotFound
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory, File
from casfs.store.store import Store
from tests.support.fuse import at, content, missing, names, read
from tests.support.thread_example import STARTED, Example


def intent(**more: Any) -> dict[str, Any]:
    return {"role": "planner", "index": 1, "attempt": 2, "since": STARTED + 7, "run": "ab" * 16,
            "pid": None, "pidStart": None, **more}  # fmt: skip


def put_turn(store: Store, said: str) -> str:
    text = store.put_node("content", {"text": said, "artifacts": []}).hash
    payload = {"input": text, "output": text, "toolCalls": [],
               "tokens": {"input": 1, "output": 1}, "latencyMs": 5}  # fmt: skip
    return store.put_node("react-turn", payload).hash


def test_it_is_there_as_long_as_the_intent(store: Store, thread: Example) -> None:
    top = root(StoreReader(store), Stats())
    directory = at(store, f"threads/{thread.id}", top)
    assert isinstance(directory, Directory)
    assert not directory.binds(b"running"), "the kernel must ask again"
    assert directory.lookup(b"running") is None
    thread.move(thread.start, intent=intent())
    running = directory.lookup(b"running")
    assert isinstance(running, Directory)
    assert running.live
    assert b"running" in dict(directory.entries())
    assert [name for name, _ in running.entries()] == [
        b"role",
        b"attempt",
        b"since",
        b"prompt.md",
    ]
    role = running.lookup(b"role")
    assert isinstance(role, File)
    assert content(role) == b"planner\n"
    assert content(running.lookup(b"attempt")) == b"2\n"  # type: ignore[arg-type]
    assert json.loads(content(running.lookup(b"since"))) == STARTED + 7  # type: ignore[arg-type]
    before = role.attr().mtime_ns, running.attr().mtime_ns
    thread.move(thread.start, intent=intent(role="coder", attempt=1))
    assert content(role) == b"coder\n"
    assert role.attr().mtime_ns > before[0]
    assert running.attr().mtime_ns > before[1]
    thread.step("coder", "text")
    thread.move(thread.steps[-1], intent=None)
    assert directory.lookup(b"running") is None
    assert b"running" not in dict(directory.entries())
    assert list(running.entries()) == []
    with pytest.raises(NotFound):
        role.read(0, 10)


def test_turns_are_shown_as_nodes_are(store: Store, thread: Example) -> None:
    where = f"threads/{thread.id}/running"
    thread.move(thread.start, intent=intent())
    assert missing(store, f"{where}/turns")
    thread.move(thread.start, intent=intent(turns=[]))
    assert names(store, f"{where}/turns") == []
    one, two = put_turn(store, "needle one\n"), put_turn(store, "needle two\n")
    thread.move(thread.start, intent=intent(turns=[one]))
    assert names(store, f"{where}/turns") == ["0000"]
    thread.move(thread.start, intent=intent(turns=[one, two]))
    assert names(store, f"{where}/turns") == ["0000", "0001"]
    assert read(store, f"{where}/turns/0001/input/text") == b"needle two\n"
    assert at(store, f"{where}/turns/0001").digest == two
    assert not at(store, f"{where}/turns/0001").live


def test_turns_that_the_record_has_no_room_for(store: Store, thread: Example) -> None:
    where = f"threads/{thread.id}/running/turns"
    turns = [put_turn(store, f"turn {n}\n") for n in range(5)]
    first = store.put_node("content", {"text": "", "artifacts": turns[:2]}).hash
    second = store.put_node("content", {"text": "", "artifacts": [first, *turns[2:4]]}).hash
    thread.move(thread.start, intent=intent(turns=turns[4:], turnCount=5, earlier=second))
    assert names(store, where) == ["0000", "0001", "0002", "0003", "0004"]
    for n in range(5):
        assert read(store, f"{where}/000{n}/input/text") == f"turn {n}\n".encode()


def test_another_steps_turn_is_another_directory(store: Store, thread: Example) -> None:
    path = f"threads/{thread.id}/running/turns/0000"
    thread.move(thread.start, intent=intent(turns=[put_turn(store, "one")]))
    turns = at(store, path.rpartition("/")[0])
    assert isinstance(turns, Directory)
    assert not turns.binds(b"0000")
    first = at(store, path)
    times = [turns.attr().mtime_ns]
    thread.move(thread.start, intent=intent(turns=[put_turn(store, "two")]))
    assert at(store, path).key != first.key
    assert read(store, f"{path}/input/text") == b"two"
    assert turns.attr().mtime_ns > times[0]
    same = dict(turns.entries())[b"0000"]
    assert same.key == at(store, path).key
