"""A link: a TCP proxy to one server that can be cut as a network is: nothing is refused, nothing is
answered, and what was under way arrives when it is healed.

    with Link("127.0.0.1", server.port) as link:  # link.host:link.port in place of the server
        link.cut()         # open connections are silent, new ones find no answer
        link.heal()
        link.reset()       # open connections end with RST, new ones are served
        link.abandon()     # the machine has gone: its open connections are silent for ever
        link.round_trips   # how often a client sent something after an answer, or at first
        link.latency_s     # added to each answer
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread

PIECE = 256 << 10
BACKLOG = 128
LINGER_NONE = struct.pack("ii", 1, 0)  # close sends RST
FILLERS = 4  # connections that fill an empty backlog


@dataclass(eq=False)
class _Connection:
    client: socket.socket
    server: socket.socket
    passes: Event = field(default_factory=Event)  # cleared: bytes wait
    abandoned: bool = False
    ended: bool = False
    answered: bool = True

    def end(self, reset: bool) -> None:
        """`shutdown`: a thread that receives would hold the socket open."""
        self.ended = True
        for one in (self.client, self.server):
            with suppress(OSError):
                if reset:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
                one.shutdown(socket.SHUT_RD)
            one.close()
        self.passes.set()


class Link:
    latency_s = 0.0

    def __init__(self, host: str, port: int, listen: str = "127.0.0.1") -> None:
        self.round_trips = 0
        self._target = (host, port)
        self._listener = socket.create_server((listen, 0), backlog=BACKLOG)
        address = self._listener.getsockname()
        self.host, self.port = str(address[0]), int(address[1])
        self._connections: set[_Connection] = set()
        self._fillers: dict[object, socket.socket] = {}
        self._healed = Event()
        self._healed.set()

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def is_cut(self) -> bool:
        return not self._healed.is_set()

    def cut(self) -> None:
        """With a full backlog the kernel drops what asks for a connection."""
        if self.is_cut:
            return
        self._healed.clear()
        for one in list(self._connections):
            one.passes.clear()
        self._listener.listen(0)
        for _ in range(FILLERS):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((self.host, self.port))
            self._fillers[filler.getsockname()] = filler

    def heal(self) -> None:
        if not self.is_cut:
            return
        self._listener.listen(BACKLOG)
        self._healed.set()
        for one in list(self._connections):
            if not one.abandoned:
                one.passes.set()
        for filler in self._fillers.values():
            filler.close()

    def abandon(self) -> None:
        for one in list(self._connections):
            one.abandoned = True
            one.passes.clear()

    def reset(self) -> None:
        for one in list(self._connections):
            self._end(one, reset=True)

    def __enter__(self) -> Link:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._healed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        for filler in self._fillers.values():
            filler.close()
        self.reset()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, peer = self._listener.accept()
                self._healed.wait()
                if peer in self._fillers:
                    client.close()
                else:
                    self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, timeout=10)
        except OSError:  # it is down
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
            client.close()
            return
        connection = _Connection(client, server)
        for one in (client, server):
            one.settimeout(None)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(connection)
        if not self.is_cut:
            connection.passes.set()
        for source in (client, server):
            Thread(target=self._pump, args=(connection, source), daemon=True).start()

    def _pump(self, connection: _Connection, source: socket.socket) -> None:
        """Passes on what one side sends, until either ends."""
        asks = source is connection.client
        sink = connection.server if asks else connection.client
        with suppress(OSError):
            while data := source.recv(PIECE):
                connection.passes.wait()
                self._count(connection, asks)
                sink.sendall(data)
            connection.passes.wait()
            if connection.ended:
                return
            sink.shutdown(socket.SHUT_WR)
            if asks:
                return  # it may still read
        self._end(connection)

    def _count(self, connection: _Connection, asks: bool) -> None:
        if asks and connection.answered:
            self.round_trips += 1
        connection.answered = not asks
        if not asks and self.latency_s:
            time.sleep(self.latency_s)

    def _end(self, connection: _Connection, reset: bool = False) -> None:
        self._connections.discard(connection)
        connection.end(reset)
