"""`.casfs/events` as a plain object."""

from __future__ import annotations

import json

import pytest

from casfs.backend.derived import newest_move
from casfs.backend.protocols import JOURNAL_MIN_MOVES
from casfs.fuse.views import events
from casfs.fuse.views.events import EventLog, EventsFile
from casfs.fuse.views.vnode import make_key
from casfs.store.store import Store
from tests.fuse.views.test_change_times import move


def file(store: Store) -> EventsFile:
    return EventsFile(make_key(b"events"), EventLog(store.backend))


def test_each_move_is_a_line(store: Store) -> None:
    move(store, "before")
    stream = file(store)
    assert stream.live
    assert stream.append_only
    assert stream.attr().size == 0
    assert stream.read(0, 100) == b""
    move(store, "threads/ü")
    with store.batch() as batch:
        batch.swap("threads/ü", store.heads.get("threads/ü"), None)
    data = stream.read(0, 1 << 62)
    lines = [json.loads(line) for line in data.splitlines()]
    newest = list(store.heads.moves(newest_move(store.heads) - 2))
    assert [tuple(line.values()) for line in lines] == [tuple(one) for one in newest]
    assert list(lines[0]) == ["seq", "name", "hash", "at"]
    assert lines[1]["hash"] is None
    assert data.endswith(b"\n")
    assert stream.attr().size == len(data)


def test_who_reads_on_sees_what_came_and_the_size_says_when(store: Store) -> None:
    stream = file(store)
    place, times = 0, {stream.attr().mtime_ns}
    for name in ("a", "b", "c"):
        assert stream.attr().size == place
        move(store, name)
        assert stream.attr().size > place
        data = stream.read(place, 10_000)
        assert json.loads(data)["name"] == name
        place += len(data)
        times.add(stream.attr().mtime_ns)
    assert stream.read(place, 10) == b""
    assert len(times) == 4
    assert stream.read(3, 10) == stream.read(0, 100)[3:13]


def test_what_is_not_kept_reads_as_empty_lines(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "EVENT_LOG_BYTES", 1000)
    stream = file(store)
    whole, sizes = b"", []
    for n in range(100):
        move(store, f"name/{n}")
        whole += stream.read(len(whole), 10_000)
        sizes.append(stream.attr().size)
    assert sizes == sorted(sizes)
    assert len(whole) == sizes[-1]
    now = stream.read(0, len(whole))
    assert len(now) == len(whole)
    kept = now.lstrip(b"\n")
    assert whole.endswith(kept)
    assert 1000 <= len(kept) <= 2300
    assert [json.loads(line)["name"] for line in kept.splitlines()][-1] == "name/99"
    for offset in (0, 5, len(whole) - len(kept) - 2, len(whole) - 7):
        assert stream.read(offset, 20) == now[offset : offset + 20]


def test_lost_moves_show_in_the_numbers(store: Store) -> None:
    stream = file(store)
    move(store, "a")
    first = json.loads(stream.read(0, 1000))["seq"]
    size = stream.attr().size
    move(store, "b", JOURNAL_MIN_MOVES + 2000)
    second = json.loads(stream.read(size, 1 << 30).splitlines()[0])["seq"]
    assert second > first + 1
