"""Live events: one task follows the journal of heads and tells every viewer.

`GET /events` is a stream of server-sent events. `?after=N` or `Last-Event-ID: N` resumes after
the journal's move N and loses nothing. Its first event comes at once.

    id: 1207
    data: {"daemon": true, "names": ["threads/01K…"]}     heads moved since the event before

    id: 1207
    event: reload                                    moves are lost: fetch everything again
    data: {"daemon": true}

`daemon` says whether one runs; an event comes when that changes, too.
Moves within TICK_S, or VIEWER_S for each viewer where that is longer, become one event that names
each head once. A viewer that does not take its events gets `reload` in place of them, so what is
kept for it is bounded. A comment every HEARTBEAT_S shows that the server lives. While nobody looks,
nothing is polled.

`request.is_disconnected()` never turns true under Hypercorn; a stream ends by `receive` and by
cancellation.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from casfs.backend.derived import newest_move
from casfs.backend.journal import JournalReader
from casfs.backend.protocols import Move
from casfs.errors import CasfsError
from casfs.store import local_trees
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.web.site import Site, is_number

POLL_S = 0.025  # reading the store's version takes microseconds
TICK_S = 0.05
VIEWER_S = 0.01
HEARTBEAT_S = 15.0
RETRY_S = 1.0
DAEMON_S = 0.5  # between two checks of whether a daemon runs
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

    def push(self, event: bytes, reload: bytes) -> None:
        """Queues an event; where too many wait, `reload` in place of all."""
        if len(self._queue) >= MAX_QUEUED:
            self._queue.clear()
            event = reload
        self._queue.append(event)
        self._wake.set()

    def end(self) -> None:
        self.ended = True
        self._wake.set()

    async def take(self) -> bytes:
        """Waits for events and returns all that wait; a heartbeat after HEARTBEAT_S."""
        with trio.move_on_after(HEARTBEAT_S):
            await self._wake.wait()
        events = b"".join(self._queue)
        self._queue.clear()
        if not self.ended:
            self._wake = trio.Event()
        return events or HEARTBEAT


class Follower:
    """Follows the journal while anybody looks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._viewers: set[Viewer] = set()
        self._watched = trio.Event()
        self._following = trio.Event()
        self._unwatched = threading.Event()
        self._journal = JournalReader(store.backend, after=0)
        self._daemon = False
        self._daemon_checked = -math.inf

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._watched.wait()
            await trio.to_thread.run_sync(self._begin)
            self._following.set()
            while self._viewers:
                try:
                    event = await trio.to_thread.run_sync(self._next_event)
                except CasfsError:  # the store cannot be read now; nothing was taken
                    await trio.sleep(RETRY_S)
                    continue
                for viewer in self._viewers if event else ():
                    viewer.push(event, self._reload())
                await trio.sleep(max(TICK_S, VIEWER_S * len(self._viewers)))
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

    def past(self, after: int | None) -> bytes:
        """Returns the event of the moves after a number. In a worker thread."""
        heads = self._store.heads
        newest = newest_move(heads)
        seq = after = newest if after is None else after
        past_moves: list[Move] = []
        while seq < newest and (moves := heads.moves(seq)) and moves[0].seq == seq + 1:
            past_moves += moves
            seq = moves[-1].seq
        if seq < newest or after > newest:  # moves are lost; or a number of another store
            return encode(newest, self._daemon, moves=None)
        return encode(seq, self._daemon, _shown(past_moves))

    def _begin(self) -> None:
        self._journal = JournalReader(self._store.backend)
        self._daemon = self._daemon_runs()

    def _next_event(self) -> bytes:
        """Waits for the next event; empty when nobody looks any more. In a worker thread."""
        while not self._unwatched.is_set():
            trio.from_thread.check_cancelled()
            moves = self._journal.new_moves()
            known = self._daemon
            self._daemon = self._daemon_runs()
            if moves or known != self._daemon:
                return self._reload() if self._journal.lost else self._event(moves)
            self._unwatched.wait(POLL_S)
        return b""

    def _event(self, moves: Sequence[Move]) -> bytes:
        return encode(self._journal.seq, self._daemon, _shown(moves))

    def _reload(self) -> bytes:
        return encode(self._journal.seq, self._daemon, moves=None)

    def _daemon_runs(self) -> bool:
        """Returns whether a daemon runs, as it was DAEMON_S ago at most."""
        root = self._store.root
        now_s = time.monotonic()
        if now_s < self._daemon_checked + DAEMON_S:
            return self._daemon
        self._daemon_checked = now_s
        return daemon_socket.runs(root)


def _shown(moves: Sequence[Move]) -> list[Move]:
    return [move for move in moves if not move.name.startswith(local_trees.HEADS)]


def encode(seq: int, daemon: bool, moves: Iterable[Move] | None) -> bytes:
    """Returns an event: `reload` for None, and for more heads than MAX_NAMES."""
    fields: dict[str, Any] = {"daemon": daemon}
    names = None if moves is None else list(dict.fromkeys(move.name for move in moves))
    kind = "event: reload\n"
    if names is not None and len(names) <= MAX_NAMES:
        kind = ""
        fields["names"] = names
    return f"id: {seq}\n{kind}data: {json.dumps(fields)}\n\n".encode()


class EventStream(Response):
    """The answer to `GET /events`."""

    def __init__(self, site: Site, follower: Follower, after: int | None) -> None:
        self._site = site
        self._follower = follower
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._follower.watching() as viewer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_disconnect, receive, nursery.cancel_scope)
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                await _send(send, HEARTBEAT + await self._missed())
                while not viewer.ended:
                    await _send(send, await viewer.take())
                nursery.cancel_scope.cancel()
            if viewer.ended:  # Hypercorn lets go of the connection here: not cancelled
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _missed(self) -> bytes:
        past = self._follower.past
        limiter = self._site.limiter
        return await trio.to_thread.run_sync(past, self._after, limiter=limiter)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def until_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancels `scope` when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def endpoint(site: Site, follower: Follower) -> Callable[[Request], Awaitable[Response]]:
    async def events(request: Request) -> Response:
        if request.method == "HEAD":
            return Response()
        text = request.headers.get("last-event-id") or request.query_params.get("after", "")
        after = int(text) if is_number(text) else None
        return EventStream(site, follower, after)

    return events
