"""Live events: the journal of heads, told to everyone who looks."""

from __future__ import annotations

import json
import os
import signal

import pytest
import trio

from casfs.backend.derived import newest_move
from casfs.backend.protocols import JOURNAL_MIN_MOVES, HeadName, Move
from casfs.store.store import Store
from casfs.web import access, events, server
from casfs.web.events import Follower, Viewer
from casfs.web.site import Site
from tests.support.engine import daemon, kill
from tests.support.helpers import move
from tests.support.web import Web, names


def test_a_move_is_told_with_its_number(web: Web, disk_store: Store) -> None:
    with web.events() as stream, web.events() as other:
        for one in (stream, other):
            assert (names(next(one))) == []
        move(disk_store, "threads/A")
        for one in (stream, other):
            event = next(one)
            assert names(event) == ["threads/A"]
            assert event["id"] == str(newest_move(disk_store.heads))
        move(disk_store, "checkpoints/b/1")
        assert names(next(stream)) == ["checkpoints/b/1"]


def test_a_reconnect_loses_nothing(web: Web, disk_store: Store) -> None:
    move(disk_store, "threads/A")
    after = newest_move(disk_store.heads)
    move(disk_store, "threads/B", 2500)
    move(disk_store, "threads/C")
    with web.events(f"?after={after}") as stream:
        event = next(stream)
        assert names(event) == ["threads/B", "threads/C"], "each head once"
        assert event["id"] == str(after + 2501)
        move(disk_store, "threads/D")
        assert names(next(stream)) == ["threads/D"]
    with web.events("?after=1", Last_Event_ID=str(after + 2501)) as stream:
        assert names(next(stream)) == ["threads/D"]


@pytest.mark.parametrize("after", ["0", "99999999"], ids=["pruned", "of another store"])
def test_a_number_that_the_journal_has_not_reloads(web: Web, disk_store: Store, after: str) -> None:
    move(disk_store, "threads/A", JOURNAL_MIN_MOVES + 2000)
    with web.events(f"?after={after}") as stream:
        event = next(stream)
        assert (event["event"], event["id"]) == ("reload", str(newest_move(disk_store.heads)))
        move(disk_store, "threads/B")
        assert names(next(stream)) == ["threads/B"]


@pytest.mark.parametrize("after", ["", "x", "-1", "1e3", "9" * 40, "٣"])
def test_no_number_begins_now(disk_store: Store, web: Web, after: str) -> None:
    with web.events("", Last_Event_ID=after.encode().decode("latin-1")) as stream:
        assert names(next(stream)) == []
        move(disk_store, "threads/A")
        assert names(next(stream)) == ["threads/A"]


async def test_a_viewer_that_takes_nothing_costs_bounded_memory() -> None:
    viewer = Viewer()
    for seq in range(10_000):
        viewer.push(b"id: %d\n\n" % seq, b"reload\n\n")
        assert len(viewer._queue) <= events.MAX_QUEUED
    taken = await viewer.take()
    assert taken.startswith(b"reload\n\nid: ")
    assert taken.endswith(b"id: 9999\n\n")


async def test_a_silent_stream_has_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.01)
    assert await Viewer().take() == b": \n\n"


def test_very_many_heads_at_once_are_a_reload() -> None:
    moves = [Move(seq, HeadName(f"threads/{seq}"), None, 0) for seq in range(events.MAX_NAMES + 1)]
    assert b"event: reload" not in events.encode(1, False, moves[:-1])
    assert events.encode(1, False, moves) == events.encode(1, False, None)


def test_an_event_says_when_a_daemon_comes_and_goes(web: Web, disk_store: Store) -> None:
    with web.events() as stream:
        assert json.loads(next(stream)["data"])["daemon"] is False
        assert 'class="notice" role="status">No daemon' in web.get("/").text
        with daemon(disk_store.root) as pid:
            assert json.loads(next(stream)["data"])["daemon"] is True
            assert 'class="notice" role="status" hidden>No daemon' in web.get("/").text
            kill(pid)
            assert json.loads(next(stream)["data"])["daemon"] is False


async def test_the_journal_is_read_while_somebody_looks(disk_store: Store) -> None:
    follower = Follower(disk_store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.run)
        for name in ("threads/A", "threads/B"):
            async with follower.watching() as viewer:
                move(disk_store, name)
                assert f'["{name}"]'.encode() in await viewer.take()
            move(disk_store, "threads/unseen")
            await trio.sleep(events.TICK_S * 3)
            assert follower._journal.seq < newest_move(disk_store.heads)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("path", ["/events", "/blobs/HASH"])
async def test_a_server_stops_at_once(
    path: str, disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait, as for answers under way, for streams and for connections in no use."""
    monkeypatch.setattr(server, "GRACE_S", 1e9)
    key, hash = access.Key("x" * 43), disk_store.put(b"1").hash
    lines = f"GET {path}", f"Host: localhost\r\nCookie: {key.cookie}={key.session}\r\n\r\n"
    with server.listen(0, 0) as listener:
        port, ready = listener.getsockname()[1], trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server._run, Site(disk_store), key, listener, ready.set)
            await ready.wait()
            async with await trio.open_tcp_stream(server.HOST, port) as stream:
                await stream.send_all(" HTTP/1.1\r\n".join(lines).replace("HASH", hash).encode())
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
                await trio.sleep(0.1)
                os.kill(os.getpid(), signal.SIGTERM)
                async for _ in stream:
                    pass
