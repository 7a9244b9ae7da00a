"""Live events: one task follows the journal of heads and tells every viewer.

`GET /events` is a stream of server-sent events. `?after=N` or `Last-Event-ID: N` resumes after
the journal's move N and loses nothing.

    id: 1207
    data: {"names": ["threads/01K…", "checkpoints/app/…"]}     moved since the event before

    id: 1207
    event: reload                                    moves are lost: fetch everything again
    data: {}

Moves within TICK_S become one event that names each head once. A viewer that does not take its
events gets `reload` in place of them, so what is kept for it is bounded. A comment every
HEARTBEAT_S shows that the server lives. While nobody looks, nothing is polled.

`request.is_disconnected()` never turns true under Hypercorn; a stream ends by `receive` and by
cancellation.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from casfs.backend.derived import newest_move
from casfs.backend.journal import JournalReader
from casfs.backend.protocols import HeadName, Move
from casfs.store import Store
from casfs.web.site import Site

POLL_S = 0.025  # reading the store's version takes microseconds
TICK_S = 0.05
HEARTBEAT_S = 15.0
MAX_QUEUED = 64  # events that wait for a viewer
MAX_NAMES = 1000  # of one event
HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
HEARTBEAT = b": \n\n"


class Viewer:
    """The events that wait for one stream."""

    def __init__(self) -> None:
        self.ended = False
        self._queue: deque[bytes] = deque()
        self._wake = trio.Event()

    def push(self, event: bytes, seq: int) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self._queue.clear()
            event = reload_event(seq)
        self._queue.append(event)
        self._wake.set()

    def end(self) -> None:
        self.ended = True
        self._wake.set()

    async def take(self) -> bytes:
        """Waits for events and returns all that wait; a heartbeat after HEARTBEAT_S."""
        with trio.move_on_after(HEARTBEAT_S):
            await self._wake.wait()
        found = b"".join(self._queue)
        self._queue.clear()
        if not self.ended:
            self._wake = trio.Event()
        return found or HEARTBEAT


class Follower:
    """Follows the journal while anybody looks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._viewers: set[Viewer] = set()
        self._watched = trio.Event()
        self._following = trio.Event()
        self._unwatched = threading.Event()
        self._journal = JournalReader(store.backend)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._watched.wait()
            await trio.to_thread.run_sync(self._begin)
            self._following.set()
            while self._viewers:
                self._tell(await trio.to_thread.run_sync(self._next_moves))
                await trio.sleep(TICK_S)
            self._following = trio.Event()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Viewer]:
        """Yields a viewer, which is told all moves from then on."""
        viewer = Viewer()
        self._viewers.add(viewer)
        self._unwatched.clear()
        self._watched.set()
        try:
            await self._following.wait()
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                self._watched = trio.Event()
                self._unwatched.set()

    def end(self) -> None:
        """Ends all streams."""
        for viewer in self._viewers:
            viewer.end()

    def past(self, after: int) -> bytes:
        """Returns the event of the moves after a number, empty where there are none. In a worker
        thread."""
        heads, at = self._store.heads, after
        newest = newest_move(heads)
        found: list[Move] = []
        while at < newest and (moves := heads.moves(at)) and moves[0].seq == at + 1:
            found += moves
            at = moves[-1].seq
        if at < newest or after > newest:  # moves are lost; or a number of another store
            return reload_event(newest)
        return moves_event(found) if found else b""

    def _begin(self) -> None:
        self._journal = JournalReader(self._store.backend, newest_move(self._store.heads))

    def _next_moves(self) -> list[Move]:
        """Waits for moves; returns none when nobody looks any more. In a worker thread."""
        while not self._unwatched.is_set():
            trio.from_thread.check_cancelled()
            if moves := self._journal.new_moves():
                return moves
            self._unwatched.wait(POLL_S)
        return []

    def _tell(self, moves: list[Move]) -> None:
        if not moves:
            return
        seq = moves[-1].seq
        event = reload_event(seq) if self._journal.lost else moves_event(moves)
        for viewer in self._viewers:
            viewer.push(event, seq)


def moves_event(moves: Iterable[Move]) -> bytes:
    names: dict[HeadName, None] = {}
    seq = 0
    for move in moves:
        names[move.name], seq = None, move.seq
    if len(names) > MAX_NAMES:
        return reload_event(seq)
    return b"id: %d\ndata: %b\n\n" % (seq, json.dumps({"names": list(names)}).encode())


def reload_event(seq: int) -> bytes:
    return b"id: %d\nevent: reload\ndata: {}\n\n" % seq


class EventStream(Response):
    """The answer to `GET /events`."""

    def __init__(self, site: Site, follower: Follower, after: int | None) -> None:
        self._site = site
        self._follower = follower
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._follower.watching() as viewer, trio.open_nursery() as nursery:
            nursery.start_soon(_until_disconnect, receive, nursery.cancel_scope)
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await _send(send, HEARTBEAT + await self._missed())
            while not viewer.ended:
                await _send(send, await viewer.take())
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()

    async def _missed(self) -> bytes:
        if self._after is None:
            return b""
        past, limiter = self._follower.past, self._site.limiter
        return await trio.to_thread.run_sync(past, self._after, limiter=limiter)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _until_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def endpoint(site: Site, follower: Follower) -> Callable[[Request], Awaitable[Response]]:
    async def events(request: Request) -> Response:
        if request.method == "HEAD":
            return Response()
        text = request.headers.get("last-event-id") or request.query_params.get("after", "")
        after = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None
        return EventStream(site, follower, after)

    return events
