"""Connections to PostgreSQL: their URL, what they survive, and what they say."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.postgres.connection import Pool, check_url, translated
from casfs.backend.protocols import Head
from casfs.errors import (
    AccessDenied,
    CasfsError,
    Failed,
    Invalid,
    NotFound,
    Refused,
    Unreachable,
)
from casfs.store.store import Store
from tests.contracts.contract import create, get, put
from tests.support.postgres_server import PostgresServer, processes_below
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import make_store

SECRET = "s3cr3t"
ONE = "SELECT 1"


@pytest.fixture
def pool(database_url: str) -> Iterator[Pool]:
    made = Pool(database_url)
    yield made
    made.close()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@host/db",
        f"postgresql://u:@host/db?password={SECRET}",
        f"postgresql://u@host/db?p%61ssword={SECRET}",
        f"postgresql://u@host/db?sslpassword={SECRET}",
        f"postgresql://u:{SECRET}@[bad/db",
        f"postgresql://u:{SECRET}@host/db?unknown=1",
        f"postgresql://u:{SECRET}@host:port/db%",
        f"mysql://u:{SECRET}@host/db",
        f"host=x password={SECRET}",
        "postgresql://host",
        "",
    ],
)
def test_a_url_that_is_refused_shows_no_secret(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_url(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/db",
        "postgres://u@a:1,b:2/db?sslmode=verify-full&sslrootcert=/x&passfile=/password",
        "postgresql:///db?host=/run&port=1",
        "postgresql:///?service=team",
        "postgresql://host/db?application_name=password",
    ],
)
def test_a_url_that_is_accepted(url: str) -> None:
    check_url(url)


def test_settings_of_the_url_are_kept(database_url: str) -> None:
    url = f"{database_url}?application_name=other&options=-c%20work_mem%3D5MB&sslmode=require"
    with pytest.raises(CasfsError, match="SSL"):
        Pool(url, patience_s=0).run(ONE)
    made = Pool(url.replace("require", "disable"))
    names = ("application_name", "work_mem", "search_path", "transaction_isolation")
    found = [made.run("SELECT current_setting(%s)", [name])[0][0] for name in names]
    made.close()
    assert found == ["other", "5MB", "casfs", "read committed"]


def test_a_server_that_restarts_is_not_noticed(pool: Pool, postgres: PostgresServer) -> None:
    threads = [threading.Thread(target=pool.run, args=["SELECT pg_sleep(0.1)"]) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    postgres.stop()
    postgres.start()
    assert pool.run(ONE) == [(1,)]


def test_a_standby_is_not_written_to(
    pool: Pool, postgres: PostgresServer, database_url: str
) -> None:
    name = database_url.rpartition("/")[2]
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(Unreachable, match="read-only"):
        Pool(database_url, patience_s=0).run(ONE)


def test_a_stopped_server_is_unreachable_in_time_and_then_goes_on(
    pool: Pool, postgres: PostgresServer
) -> None:
    assert pool.run(ONE) == [(1,)]
    assert postgres.pid is not None
    pids = [postgres.pid, *processes_below(postgres.pid)]
    begin = time.monotonic()
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(Unreachable):
            pool.run(ONE)
        assert time.monotonic() - begin < 60  # else it hangs for ever
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
    assert pool.run(ONE) == [(1,)]


def test_a_slow_statement_is_no_silent_server(pool: Pool) -> None:
    assert pool.run("SELECT 1 FROM pg_sleep(6)") == [(1,)]


def test_a_fork_has_connections_of_its_own(pool: Pool) -> None:
    query = "SELECT pg_backend_pid()"
    before = pool.run(query)
    child = os.fork()
    if child == 0:
        try:
            differs = pool.run(query) != before
            pool.close()
            os._exit(0 if differs else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.run(query) == before


def test_what_is_in_use_at_the_close_is_closed_when_it_is_given_back(pool: Pool) -> None:
    with pool.connection() as db:
        pool.close()
        assert db.execute(ONE).fetchall() == [(1,)]
    assert db.closed


def test_a_broken_statement_breaks_no_connection(pool: Pool) -> None:
    with pytest.raises(Failed):
        pool.run("SELECT 1/0")
    with pytest.raises(Failed), pool.transaction() as db:
        db.execute("SELECT 1/0")
    assert pool.run("SELECT pg_backend_pid()") == pool.run("SELECT pg_backend_pid()")


def test_too_many_connections_pass(pool: Pool, postgres: PostgresServer, database_url: str) -> None:
    postgres.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1")
    few = Pool(database_url.replace("casfs@", "few@"), patience_s=0.3)
    try:
        url = database_url.replace("casfs@", "few@")
        limit = pytest.raises(Unreachable, match="too many connections")
        with psycopg.connect(url), limit:
            few.run(ONE)
        few.patience_s = 10
        assert few.run(ONE) == [(1,)]
    finally:
        few.close()
        postgres.execute("DROP ROLE few")


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (psycopg.errors.DiskFull, Failed),
        (psycopg.errors.OutOfMemory, Failed),
        (psycopg.errors.TooManyConnections, Unreachable),
        (psycopg.errors.AdminShutdown, Unreachable),
        (psycopg.errors.InsufficientPrivilege, AccessDenied),
        (psycopg.errors.InvalidCatalogName, NotFound),
    ],
)
def test_an_error_of_the_server(state: type[psycopg.Error], kind: type[CasfsError]) -> None:
    assert type(translated(state("first line\nsecond line"))) is kind
    assert "\n" not in str(translated(state("first line\nsecond line")))


def test_a_store_survives_a_killed_server(
    backend: PostgresBackend, postgres: PostgresServer
) -> None:
    one = put(backend, b"1")
    create(backend, "name", one)
    postgres.kill()
    postgres.start()
    assert get(backend, "name") == Head(one)
    create(backend, "next", one)
    assert [move.name for move in backend.heads.moves()] == ["name", "next"]


def test_tables_of_another_format_are_refused(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    put(backend, b"before")
    backend.pool.run("UPDATE casfs.store SET format = 'casfs shared 9'")
    put(backend, b"by a connection that is open")
    with pytest.raises(Refused, match="'casfs shared 9', this casfs reads"):
        put(other, b"by a new one")


def test_a_store_whose_types_cannot_be_registered_is_closed(
    database_url: str, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Path] = []
    close = PostgresBackend.close

    def noted(backend: PostgresBackend) -> None:
        closed.append(backend.root)
        close(backend)

    def fail(store: Store) -> None:
        raise Unreachable("gone meanwhile")

    monkeypatch.setattr(PostgresBackend, "close", noted)
    monkeypatch.setattr(Store, "register_builtin", fail)
    with pytest.raises(Unreachable, match="gone meanwhile"):
        make_store(tmp_path / "a", database_url, s3)
    assert closed == [tmp_path / "a"]
