"""The connections of the web server: HTTP/1.1 only, few and for a short time until one has shown a
key, so that a program without it cannot keep others out.

hypercorn has no setting for this: what is relied on of its inside is `TCPServer.run`,
`_read_data` and `protocol`, and that `hypercorn.trio.run` makes its servers by the name
`TCPServer`. `tests/web/test_connections.py` pins that.
"""

from __future__ import annotations

from contextvars import ContextVar
from math import inf
from typing import Any, cast

import trio
from hypercorn.events import Closed
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError
from hypercorn.trio import run as hypercorn_run
from hypercorn.trio.tcp_server import TCPServer

MAX_WITHOUT_KEY = 64  # all come from this machine: they are one peer
WITHOUT_KEY_S = 10.0
_without_key: dict[Connection, None] = {}  # the oldest first
_connection: ContextVar[Connection] = ContextVar("connection")


class Connection(TCPServer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        _connection.set(self)
        _without_key[self] = None
        if len(_without_key) > MAX_WITHOUT_KEY:
            oldest = next(iter(_without_key))
            del _without_key[oldest]
            oldest.scope.cancel()
        self.scope.deadline = trio.current_time() + WITHOUT_KEY_S
        try:
            with self.scope:
                await super().run()
        finally:
            _without_key.pop(self, None)
            self.stream.socket.close()  # a cancelled one closes nothing

    async def _read_data(self) -> None:
        # Without the wrapper that changes to HTTP/2, whose connections hypercorn keeps for ever.
        self.protocol = cast(Any, self.protocol).protocol
        try:
            await super()._read_data()
        except (H2ProtocolAssumedError, H2CProtocolRequiredError):
            await self.protocol.handle(Closed())


def has_key() -> None:
    """Notes that the connection of the request under way has shown the key."""
    connection = _connection.get(None)
    if connection is not None:
        _without_key.pop(connection, None)
        connection.scope.deadline = inf


def guard() -> None:
    """From here on hypercorn's servers in this process are guarded."""
    cast(Any, hypercorn_run).TCPServer = Connection
