"""A real PostgreSQL server for tests, of Debian's `postgresql` package.

Fixtures (in tests/conftest.py): `postgres` for a session, `database_url` a fresh database of it for
one test. A test may end the server: it is started again before the next.

    postgres.kill()    # SIGKILL: the postmaster, then its children
    postgres.stop()    # or stop("smart"), stop("immediate")
    postgres.start()   # recovery, the same port

The server dies with the thread that started it, so that a killed test run leaves nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from casfs.system import processes
from tests.support import programs
from tests.support.s3_servers import free_ports

POSTGRES = "/usr/lib/postgresql/*/bin/postgres"
USER, NOBODY = "casfs", 65534
START_S = 60
TRIES = 3
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "fsync": "on",
    "timezone": "UTC",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %d ",
}
Mode = Literal["smart", "fast", "immediate"]
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class PostgresServer:
    """`directory` is removed with the server. `host` and `socket`: both ways to reach it."""

    host = "127.0.0.1"

    def __init__(self, directory: Path) -> None:
        self.directory, self.data, self.log = directory, directory / "data", directory / "log"
        self.port = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._make()

    @property
    def pid(self) -> int | None:
        """The postmaster, while it runs."""
        found = self._server
        return None if found is None or found.poll() is not None else found.pid

    def url(self, database: str = "postgres", port: int | None = None) -> str:
        """`port`: of a proxy in front of it."""
        return f"postgresql://{USER}@{self.host}:{port or self.port}/{database}"

    def socket_url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@/{database}?host={self.directory}&port={self.port}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Runs one statement outside a transaction; returns its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a fresh database, dropped at the end."""
        self.start()
        name = f"casfs_{uuid.uuid4().hex[:12]}"
        locale = "ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0 {locale}")
        try:
            yield self.url(name)
        finally:
            self.start()
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def start(self) -> None:
        """Does nothing where it runs. Another process may take the port between its choice and the
        first start: then with another one."""
        if self.pid is not None:
            return
        for _ in range(1 if self.port else TRIES):
            port = self.port or free_ports(1)[0]
            with self.log.open("ab") as log:
                self._server = subprocess.Popen(self._command(port), stdout=log, stderr=log)
            if self._ready(port):
                self.port = port
                return
        pytest.fail(f"PostgreSQL does not start: {self.log.read_text()[-2000:]}")

    def stop(self, mode: Mode = "fast") -> None:
        """Ends it in order; does nothing where it does not run."""
        if self._server is not None:
            self._server.send_signal(SIGNALS[mode])
            self._server.wait()
            self._server = None

    def kill(self) -> None:
        """Ends the postmaster and its children at once, without a last word."""
        if self.pid is None or self._server is None:
            return
        self._server.send_signal(signal.SIGSTOP)  # it forks no more
        below = processes_below(self._server.pid)
        self._server.kill()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._server.wait()
        self._server = None
        wait_gone(below)  # their shared memory would refuse the next start

    def close(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.directory)

    def _make(self) -> None:
        options = ["--no-sync", "--no-instructions", "--auth=trust", "--encoding=UTF8"]
        more = ["--locale=C", f"--username={USER}", f"--pgdata={self.data}"]
        command = [*as_nobody(), binary("initdb"), *options, *more]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.directory)
        assert done.returncode == 0, done.stderr
        settings = SETTINGS | {"unix_socket_directories": str(self.directory)}
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(lines)

    def _command(self, port: int) -> list[str]:
        server = [binary("postgres"), "-D", str(self.data), "-p", str(port)]
        return [*as_nobody("--pdeathsig=QUIT"), *server]

    def _ready(self, port: int) -> bool:
        """Whether it answers, in time; False when it ended."""
        assert self._server is not None
        end = time.monotonic() + START_S
        while self._server.poll() is None and time.monotonic() < end:
            with suppress(psycopg.OperationalError):
                psycopg.connect(self.url(port=port), connect_timeout=10).close()
                return True
            time.sleep(0.02)
        return False


def binary(name: str) -> str:
    """A program of the newest PostgreSQL here."""
    return str(Path(programs.path(POSTGRES)).with_name(name))


def as_nobody(*options: str) -> list[str]:
    """What to put before a command: PostgreSQL refuses to run as root."""
    ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return [programs.path("setpriv"), *options, *(ids if os.geteuid() == 0 else [])]


def processes_below(pid: int) -> list[int]:
    """The children of a process with one thread."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_gone(pids: list[int]) -> None:
    """Waits for processes that are not children of this one."""
    while any(processes.start_time(pid) is not None for pid in pids):
        time.sleep(0.002)


@contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    """A server below /tmp: pytest's directories are closed to others, PostgreSQL's socket needs a
    short path."""
    programs.require(POSTGRES, "setpriv")
    directory = Path(tempfile.mkdtemp(prefix="casfs-postgres-", dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
    server = PostgresServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


@pytest.fixture
def database_url(postgres: PostgresServer) -> Iterator[str]:
    """A fresh database of one test."""
    with postgres.database() as url:
        yield url
