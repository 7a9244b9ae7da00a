"""The PostgreSQL server of the tests: what is committed outlives its end, however it ends."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.support.postgres_server import PostgresServer

ENDS: dict[str, Callable[[PostgresServer], None]] = {
    "fast": PostgresServer.stop,
    "immediate": lambda server: server.stop("immediate"),
    "killed": PostgresServer.kill,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_is_committed_outlives_the_end(
    end: Callable[[PostgresServer], None], postgres: PostgresServer, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE kept (number int)")
        connection.execute("INSERT INTO kept VALUES (7)")
        connection.commit()
        connection.execute("INSERT INTO kept VALUES (8)")
        end(postgres)
        assert postgres.pid is None
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(database_url)
    postgres.start()
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT number FROM kept").fetchall() == [(7,)]


def test_databases_are_of_one_test(postgres: PostgresServer, database_url: str) -> None:
    with postgres.database() as other:
        assert other != database_url
        name = other.rpartition("/")[2]
        found = postgres.execute("SHOW lc_collate", name) + postgres.execute("SHOW fsync", name)
        assert found == [("C",), ("on",)]
        with psycopg.connect(postgres.socket_url(name)) as connection:
            assert connection.info.encoding == "utf-8"
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(other)
