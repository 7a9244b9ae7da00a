"""The machines of the tests: their own environment and network, and what can happen to them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.engine import alive, until
from tests.support.machines import Machine, machines
from tests.support.namespaces import network
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import S3Server, status

ASK = """
import sys, psycopg
try:
    with psycopg.connect(sys.argv[1], connect_timeout=2) as connection:
        print(*connection.execute("SELECT 7").fetchone())
except psycopg.OperationalError as error:
    print(error)
"""

REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"


@pytest.fixture
def pair(postgres: PostgresServer, seaweedfs: S3Server) -> Iterator[list[Machine]]:
    with machines(postgres, seaweedfs, 2, joined=False) as team:
        yield team


def ask(machine: Machine) -> str:
    """What the database answers to a process there."""
    command = [*machine.prefix, sys.executable, "-c", ASK, machine.url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_cut_is_of_one_machine_and_one_server(pair: list[Machine]) -> None:
    first, second = pair
    first.cut("database")
    assert "timeout" in ask(first)
    assert ask(second) == "7"
    assert status(first.endpoint) in (200, 403)
    first.heal()
    assert ask(first) == "7"
    second.cut("objects")
    assert ask(second) == "7"
    with pytest.raises(TimeoutError):
        status_soon(second.endpoint)
    second.heal()
    assert status(second.endpoint) in (200, 403)


def status_soon(endpoint: str) -> None:
    host, port = endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=0.2) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        client.recv(1)


def test_processes_of_a_machine(pair: list[Machine]) -> None:
    """An agent that left its daemon is one of them; those of another machine are not."""
    first, second = pair
    for machine in pair:
        machine.casfs("init")
        machine.start_daemon()
    command = ["setsid", "sh", "-c", "sleep 600 & sleep 600"]
    left = subprocess.Popen(command, env=first.environment)
    until(lambda: len(first.processes()) == 4)
    assert first.pid in first.processes()
    first.freeze()
    first.thaw()
    assert first.casfs("daemon", "status")
    first.kill_daemon()
    assert len(first.processes()) == 3
    first.die()
    left.wait()
    assert first.processes() == []
    assert second.pid is not None
    assert alive(second.pid)
    second.stop_daemon()
    assert second.processes() == []


def test_a_machine_dies_and_no_server_hears_of_it(
    pair: list[Machine], postgres: PostgresServer
) -> None:
    first, second = pair
    count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{first.database}'"
    hold = "import psycopg, sys, time; c = psycopg.connect(sys.argv[1]); print(flush=True)"
    command = [sys.executable, "-c", f"{hold}; time.sleep(600)", first.url]
    held = subprocess.Popen(command, stdout=subprocess.PIPE, env=first.environment)
    assert held.stdout is not None
    held.stdout.readline()
    first.die()
    held.wait()
    held.stdout.close()
    assert postgres.execute(count) == [(1,)]
    assert ask(second) == ask(first) == "7"


def test_machines_in_namespaces(postgres: PostgresServer, seaweedfs: S3Server) -> None:
    with network() as net, machines(postgres, seaweedfs, 2, net, joined=False) as team:
        first, second = team
        assert first.plug is not None
        assert ask(first) == ask(second) == "7"
        reach = [sys.executable, "-c", REACH, postgres.host, str(postgres.port)]
        with pytest.raises(subprocess.CalledProcessError):
            subprocess.run([*first.prefix, *reach], check=True, capture_output=True)
        first.plug(False)
        assert ask(first) != "7"
        assert ask(second) == "7"
        first.plug(True)
        assert until(lambda: ask(first) == "7")
