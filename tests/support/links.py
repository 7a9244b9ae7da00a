"""A link: a TCP proxy to one server that can be cut as a network is: nothing is refused, nothing is
answered or acknowledged, and what was under way arrives when it is healed. A socket filter drops
packets, so both ends see what they see of a network: packets sent again, timeouts of the kernel.

    with Link("127.0.0.1", server.port) as link:  # link.host:link.port in place of the server
        link.cut()         # open connections are silent, new ones find no answer
        link.heal()
        link.reset()       # open connections end with RST, new ones are served
        link.lose(3)       # the third answer from now does not arrive: RST instead
        link.abandon()     # the machine has gone: its open connections are silent for ever
        link.round_trips   # how often a client sent something after an answer, or at first
        link.latency_s     # added to each answer
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread

PIECE = 256 << 10
BACKLOG = 128
LINGER_NONE = struct.pack("ii", 1, 0)  # close sends RST
DROP_ALL = struct.pack("HBBI", 6, 0, 0, 0)  # BPF: return 0
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


def deafen(one: socket.socket, deaf: bool = True) -> None:
    """Drops what arrives at a socket, or no longer."""
    program = ctypes.create_string_buffer(DROP_ALL)
    value = struct.pack("HP", 1, ctypes.addressof(program)) if deaf else struct.pack("i", 0)
    with suppress(OSError):  # closed, or not deaf
        one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER if deaf else SO_DETACH_FILTER, value)


@dataclass(eq=False)
class _Connection:
    client: socket.socket
    server: socket.socket
    passes: Event = field(default_factory=Event)  # cleared: bytes wait
    abandoned: bool = False
    ended: bool = False
    answered: bool = True

    def deafen(self, deaf: bool) -> None:
        (self.passes.clear if deaf else self.passes.set)()
        for one in (self.client, self.server):
            deafen(one, deaf)

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
        self._to_lose = 0  # answers until the one that is lost
        self._target = (host, port)
        self._listener = socket.create_server((listen, 0), backlog=BACKLOG)
        address = self._listener.getsockname()
        self.host, self.port = str(address[0]), int(address[1])
        self._connections: set[_Connection] = set()
        self._healed = Event()
        self._healed.set()

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def is_cut(self) -> bool:
        return not self._healed.is_set()

    def cut(self) -> None:
        self._healed.clear()
        deafen(self._listener)
        for one in list(self._connections):
            one.deafen(True)

    def heal(self) -> None:
        self._healed.set()
        deafen(self._listener, False)
        for one in list(self._connections):
            if not one.abandoned:
                one.deafen(False)

    def abandon(self) -> None:
        for one in list(self._connections):
            one.abandoned = True
            one.deafen(True)

    def reset(self) -> None:
        for one in list(self._connections):
            self._end(one, reset=True)

    def lose(self, answer: int = 1) -> None:
        """The server has done what was asked, and no one hears of it."""
        self._to_lose = answer

    def __enter__(self) -> Link:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._healed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._healed.wait()
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
        connection.deafen(self.is_cut)
        for source in (client, server):
            Thread(target=self._pump, args=(connection, source), daemon=True).start()

    def _pump(self, connection: _Connection, source: socket.socket) -> None:
        """Passes on what one side sends, until either ends."""
        asks = source is connection.client
        sink = connection.server if asks else connection.client
        with suppress(OSError):
            while data := source.recv(PIECE):
                connection.passes.wait()
                if self._is_lost(connection, asks):
                    self._end(connection, reset=True)
                    return
                sink.sendall(data)
            connection.passes.wait()
            if connection.ended:
                return
            sink.shutdown(socket.SHUT_WR)
            if asks:
                return  # it may still read
        self._end(connection)

    def _is_lost(self, connection: _Connection, asks: bool) -> bool:
        """Counts a piece that came from the client, or an answer, which may be lost or late."""
        begins, connection.answered = connection.answered == asks, not asks
        self.round_trips += asks and begins
        if asks or not begins:
            return False
        if self.latency_s:
            time.sleep(self.latency_s)
        self._to_lose -= 1
        return self._to_lose == 0

    def _end(self, connection: _Connection, reset: bool = False) -> None:
        self._connections.discard(connection)
        connection.end(reset)
