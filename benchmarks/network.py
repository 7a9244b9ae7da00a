"""A TCP proxy in a process of its own that delays what passes and counts the requests of HTTP.

Half of the added round trip is spent in each direction. Bandwidth is not limited.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
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

    def __init__(self, port: int, counts: Any, delay: Synchronized[float]) -> None:
        self.port, self._counts, self._delay = port, counts, delay

    def passed(self) -> Passed:
        return Passed(*self._counts)

    def delay(self, seconds: float) -> None:
        """Add this to each round trip from now on."""
        self._delay.value = seconds


@contextmanager
def network(server_port: int, delay: float = 0.0) -> Iterator[Network]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    context = multiprocessing.get_context("fork")
    counts, shared = context.Array("q", 3, lock=False), context.Value("d", delay)
    worker = context.Process(
        target=_serve, args=(listener, server_port, counts, shared), daemon=True
    )
    worker.start()
    port = listener.getsockname()[1]
    listener.close()
    try:
        yield Network(port, counts, shared)
    finally:
        worker.kill()
        worker.join()


def _serve(listener: socket.socket, port: int, counts: Any, delay: Synchronized[float]) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        for one in (writer, back):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(
            _carry(reader, back, counts, 1, delay), _carry(there, writer, counts, 2, delay)
        )

    async def serve() -> None:
        server = await asyncio.start_server(connected, sock=listener)
        await server.serve_forever()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    counts: Any,
    direction: int,
    delay: Synchronized[float],
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
            under_way.append((time.monotonic() + delay.value / 2, piece))
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
