"""The proxy that stands for a network: what a cut, a healing and a lost machine look like."""

from __future__ import annotations

import socket
import socketserver
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import psycopg
import pytest

from tests.support.engine import until
from tests.support.links import Link
from tests.support.postgres_server import PostgresServer

SHORT_S = 0.2  # silence that is long enough to be seen


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with suppress(ConnectionResetError):
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)


@pytest.fixture
def link() -> Iterator[Link]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with Link("127.0.0.1", server.server_address[1]) as opened:
            yield opened
        server.shutdown()


def connect(link: Link) -> socket.socket:
    return socket.create_connection((link.host, link.port), timeout=SHORT_S)


def test_a_cut_is_silent_and_a_healing_brings_what_was_sent(link: Link) -> None:
    with connect(link) as client:
        client.sendall(b"before")
        assert client.recv(99) == b"before"
        link.cut()
        client.sendall(b"while")
        with pytest.raises(TimeoutError):
            client.recv(99)
        link.heal()
        client.settimeout(10)
        assert client.recv(99) == b"while"


def test_new_connections_find_no_answer(link: Link) -> None:
    with connect(link) as held:
        link.cut()
        silent = 0
        for _ in range(3):
            try:
                with connect(link) as client:
                    client.sendall(b"?")
                    client.recv(99)
            except TimeoutError:
                silent += 1
        assert silent == 3
        link.heal()
        with connect(link) as client:
            client.settimeout(10)
            client.sendall(b"!")
            assert client.recv(99) == b"!"
        held.sendall(b"on")
        assert held.recv(99) == b"on"


def test_cuts_can_be_repeated(link: Link) -> None:
    for _ in range(20):
        link.cut()
        link.cut()
        link.heal()
        link.heal()
    with connect(link) as client:
        client.settimeout(10)
        client.sendall(b"x" * 1_000_000)
        assert client.recv(99)


def test_what_was_abandoned_stays_silent(link: Link) -> None:
    with connect(link) as lost:
        lost.sendall(b"a")
        assert lost.recv(99) == b"a"
        link.abandon()
        with connect(link) as client:
            client.sendall(b"b")
            assert client.recv(99) == b"b"
        link.cut()
        link.heal()
        lost.sendall(b"c")
        with pytest.raises(TimeoutError):
            lost.recv(99)


def test_a_reset_ends_open_connections_alone(link: Link) -> None:
    with connect(link) as client:
        client.sendall(b"a")
        assert client.recv(99) == b"a"
        link.reset()
        client.settimeout(10)
        with pytest.raises(ConnectionResetError):
            client.recv(99)
    with connect(link) as client:
        client.sendall(b"b")
        assert client.recv(99) == b"b"
        assert link.connections == 1
    until(lambda: link.connections == 0)


def test_an_answer_is_lost(link: Link) -> None:
    with connect(link) as client:
        link.lose(2)
        client.sendall(b"a")
        assert client.recv(99) == b"a"
        client.sendall(b"b")
        client.settimeout(10)
        with pytest.raises(ConnectionResetError):
            client.recv(99)
    with connect(link) as client:
        client.sendall(b"c")
        assert client.recv(99) == b"c"


def test_round_trips(link: Link) -> None:
    with connect(link) as client:
        for _ in range(3):
            client.sendall(b"a")
            assert client.recv(99) == b"a"
    assert link.round_trips == 3


def test_round_trips_of_a_database(postgres: PostgresServer) -> None:
    """A pipeline is one round trip, whatever it holds."""
    with (
        Link(postgres.host, postgres.port) as link,
        psycopg.connect(postgres.url(port=link.port), autocommit=True) as connection,
    ):
        before = link.round_trips
        connection.execute("SELECT 1")
        connection.execute("SELECT 2")
        assert link.round_trips - before == 2
        before = link.round_trips
        with connection.pipeline():
            found = [connection.execute(f"SELECT {number}".encode()) for number in range(5)]
        assert [cursor.fetchone() for cursor in found] == [(number,) for number in range(5)]
        assert link.round_trips - before <= 2


def test_a_server_behind_a_cut_link(postgres: PostgresServer) -> None:
    with Link(postgres.host, postgres.port) as link:
        link.cut()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(postgres.url(port=link.port), connect_timeout=2)
        link.heal()
        with psycopg.connect(postgres.url(port=link.port), connect_timeout=10) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(postgres.url(port=link.port), connect_timeout=10)
        postgres.start()
