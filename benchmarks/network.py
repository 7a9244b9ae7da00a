"""A TCP proxy in a process of its own that delays what passes, counts the requests of HTTP, and
damages answers.

Half of the added round trip is spent in each direction. Bandwidth is not limited.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import re
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

PIECE = 1 << 16
REQUEST = re.compile(rb"(GET|PUT|HEAD|POST|DELETE) (\S+) HTTP/1\.1\r\n")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
END = b"\r\n\r\n"
QUEUE = 4 << 20  # bytes under way in one direction


@dataclass(frozen=True)
class Passed:
    requests: int
    up: int  # bytes to the server
    down: int


class Network:
    """`port`: where the server seems to be. The delay may be changed while it works."""

    def __init__(self, port: int, counts: Any, settings: Any) -> None:
        self.port, self._counts, self._settings = port, counts, settings

    def passed(self) -> Passed:
        return Passed(*self._counts)

    def since(self, before: Passed) -> Passed:
        now = self.passed()
        return Passed(now.requests - before.requests, now.up - before.up, now.down - before.down)

    def delay(self, seconds: float) -> None:
        """Add this to each round trip from now on."""
        self._settings[0] = seconds

    def damage(self, share: float) -> None:
        """Change one byte in this share of the pieces that come from the server."""
        self._settings[1] = share


@contextmanager
def network(server_port: int, delay: float = 0.0) -> Iterator[Network]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    context = multiprocessing.get_context("fork")
    counts = context.Array("q", 3, lock=False)
    settings = context.Array("d", (delay, 0.0), lock=False)
    worker = context.Process(
        target=_serve, args=(listener, server_port, counts, settings), daemon=True
    )
    worker.start()
    port = listener.getsockname()[1]
    listener.close()
    try:
        yield Network(port, counts, settings)
    finally:
        worker.kill()
        worker.join()


def _serve(listener: socket.socket, port: int, counts: Any, settings: Any) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        for one in (writer, back):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(
            _carry(reader, back, counts, 1, settings), _carry(there, writer, counts, 2, settings)
        )

    async def serve() -> None:
        server = await asyncio.start_server(connected, sock=listener)
        await server.serve_forever()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())


def damaged(data: bytes, times: int) -> bytes:
    """The same bytes, but for some at random places."""
    changed = bytearray(data)
    for _ in range(times):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    counts: Any,
    direction: int,
    settings: Any,
) -> None:
    """Read and note when each piece is due; another task writes what is due."""
    under_way: deque[tuple[float, bytes]] = deque()
    changed = asyncio.Event()
    counter = _Requests()
    held = 0

    async def deliver() -> None:
        nonlocal held
        while True:
            while not under_way:
                changed.clear()
                await changed.wait()
            due, piece = under_way.popleft()
            held -= len(piece)
            wait = due - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            if not piece:
                with suppress(OSError, RuntimeError):
                    writer.write_eof()
                return
            writer.write(piece)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    with suppress(OSError):
        piece = b"start"
        while piece and not delivery.done():
            piece = await reader.read(PIECE)
            counts[direction] += len(piece)
            if direction == 1:
                counts[0] += counter.feed(piece)
            elif piece and random.random() < settings[1]:
                piece = damaged(piece, 1)
            under_way.append((time.monotonic() + settings[0] / 2, piece))
            held += len(piece)
            changed.set()
            while held > QUEUE and not delivery.done():
                await asyncio.sleep(0.001)
    with suppress(OSError):
        await delivery
    if direction == 2:
        writer.close()


class _Requests:
    """Counts requests in the bytes of one connection: bodies are skipped by their length."""

    def __init__(self) -> None:
        self._head, self._body = b"", 0

    def feed(self, piece: bytes) -> int:
        found = 0
        while piece:
            skipped = min(self._body, len(piece))
            piece, self._body = piece[skipped:], self._body - skipped
            self._head += piece
            head, end, piece = self._head.partition(END)
            if not end:
                return found
            self._head = b""
            found += REQUEST.match(head + END) is not None
            length = LENGTH.search(head)
            self._body = int(length[1]) if length else 0
        return found
