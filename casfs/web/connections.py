"""The connections of the web server: HTTP/1.1 only, few and for a short time until one has shown a
key, so that a program without it cannot keep others out.

All connections have half of the process's descriptors at most; the store's files have the rest.
Where one more shows the key, the one that has been idle for longest is closed, and no live stream.

What waits to be accepted is taken at once, and most of it is closed unless its first bytes have the
key: a request with it never waits for thousands of others. So hypercorn's own loop, which accepts
one at a time, is not used. What is relied on of hypercorn's inside is `TCPServer` with `run`,
`_read_data`, `protocol_send` and `protocol`; `tests/web/test_connections.py` pins that.
"""

from __future__ import annotations

import re
import resource
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from math import inf
from typing import Any, cast

import trio
from hypercorn.events import Closed, Event, Updated
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError
from hypercorn.trio.tcp_server import TCPServer

MAX_CONNECTIONS = 1024
MAX_WITHOUT_KEY = 64  # all come from this machine: they are one peer
WITHOUT_KEY_S = 10.0
MAX_PEEKED = 16 << 10
MAX_ACCEPTED = 512  # before other tasks run
RETRY_S = 0.1  # where descriptors are short all the same
_WORD = re.compile(rb"[\w-]{32,}")
_secrets: set[bytes] = set()
_without_key: dict[Connection, None] = {}  # the oldest first
_with_key: dict[Connection, None] = {}  # those that are idle: the one idle for longest first
_connection: ContextVar[Connection] = ContextVar("connection")


class Connection(TCPServer):
    """`served`: the arguments of TCPServer before its stream."""

    def __init__(self, client: socket.socket, *served: Any) -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
        arguments: list[Any] = [*served, stream]
        super().__init__(*arguments)
        self.scope = trio.CancelScope(deadline=trio.current_time() + WITHOUT_KEY_S)
        self.idle = True  # no request is under way
        if _shows_key(client):
            self.keep()
            return
        _without_key[self] = None
        if len(_without_key) > _max_without_key():
            next(iter(_without_key)).drop()

    async def run(self) -> None:
        _connection.set(self)
        try:
            with self.scope, suppress(OSError):
                await trio.lowlevel.checkpoint_if_cancelled()  # its socket is closed
                await super().run()
        finally:
            self.drop()

    def keep(self) -> None:
        """Keeps it open from now on: it has shown the key."""
        _without_key.pop(self, None)
        self.scope.deadline = inf
        _with_key[self] = None
        if len(_with_key) > _max_connections() - 2 * _max_without_key():  # accepted, and started
            next((kept for kept in _with_key if kept.idle), self).drop()

    def drop(self) -> None:
        _without_key.pop(self, None)
        _with_key.pop(self, None)
        self.scope.cancel()
        # Cancelling is not enough: hypercorn shields a task that sends, also to a client which
        # never reads.
        self.stream.socket.close()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            self.idle = event.idle
            if self in _with_key:
                _with_key[self] = _with_key.pop(self)  # to the end
        await super().protocol_send(event)

    async def _read_data(self) -> None:
        # Without the wrapper that changes to HTTP/2, whose connections hypercorn keeps for ever.
        self.protocol = cast(Any, self.protocol).protocol
        try:
            await super()._read_data()
        except (H2ProtocolAssumedError, H2CProtocolRequiredError):
            await self.protocol.handle(Closed())


async def accept(listener: socket.socket, start: Callable[[socket.socket], None]) -> None:
    """Starts connections until it is cancelled."""
    listener.setblocking(False)
    while True:
        await trio.lowlevel.wait_readable(listener)
        pause_s = 0.0
        newest: deque[socket.socket] = deque()
        for _ in range(MAX_ACCEPTED):
            try:
                newest.append(listener.accept()[0])
            except BlockingIOError:
                break
            except OSError:
                pause_s = RETRY_S
                break
            if len(newest) > _max_without_key():
                oldest = newest.popleft()
                if _shows_key(oldest):
                    start(oldest)
                else:
                    oldest.close()
        for client in newest:
            start(client)
        await trio.sleep(pause_s)


def expect(*secrets: str) -> None:
    """Connections whose first bytes have one of these go first; what a request may is not decided
    by this."""
    _secrets.update(secret.encode() for secret in secrets)


def has_key() -> None:
    """Notes that the connection of this task has shown the key."""
    connection = _connection.get(None)
    if connection is not None:
        connection.keep()


def _shows_key(client: socket.socket) -> bool:
    try:
        peeked = client.recv(MAX_PEEKED, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return False
    return not _secrets.isdisjoint(_WORD.findall(peeked))


def _max_connections() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if descriptors < 0 else min(MAX_CONNECTIONS, descriptors // 2)


def _max_without_key() -> int:
    return min(MAX_WITHOUT_KEY, _max_connections() // 4)
