"""Connections to PostgreSQL: a small pool, and the translation of errors. The only module that
imports psycopg.

A statement that fails since the connection is gone is run again on a new one for PATIENCE_S; the
caller of `run` must be able to bear that it takes effect twice. Passwords come from the environment
(PGPASSWORD, PGPASSFILE), never from the URL.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from casfs.errors import (
    AccessDenied,
    CasfsError,
    Conflict,
    Failed,
    Invalid,
    NotFound,
    Refused,
    Unreachable,
)

PATIENCE_S = 8.0  # in which a lost server may come back
SILENCE_S = 4.0  # of a server, until it is asked for another connection
PAUSE_S = 0.1  # between two tries
DEADLOCKS_S = 60.0  # of them one writer goes on each time
MAX_IDLE = 16  # connections that are kept
OPTIONS = {
    "connect_timeout": 3,
    "tcp_user_timeout": 5000,  # ms
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "target_session_attrs": "read-write",  # no standby
    "client_encoding": "UTF8",
    "application_name": "casfs",
    "options": "-c search_path=casfs -c jit=off -c lock_timeout=60s"
    " -c default_transaction_isolation=read\\ committed",
}
RETRIED = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock timeout
FATAL = {  # of a connection that was refused: psycopg has no SQLSTATE then
    "3D000": 'database ".*" does not exist',
    "28000": "password|authentication|role .* does not exist|pg_hba.conf",
}
SCHEME = "write postgresql://[USER@]HOST[:PORT]/DATABASE"
T = TypeVar("T")
Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]


def check_url(url: str) -> None:
    """Raises Invalid for a URL of another kind, or one with a password."""
    try:
        is_url = url.startswith(("postgresql://", "postgres://"))
        parameters = conninfo_to_dict(url) if is_url else {}
    except (psycopg.Error, ValueError):  # whose text may show a password
        parameters = {}
    if not parameters.keys() & {"dbname", "service"}:
        raise Invalid(f"not the URL of a database; {SCHEME}")
    if parameters.keys() & {"password", "sslpassword", "oauth_client_secret"}:
        raise Invalid("a password does not belong into a URL: set PGPASSWORD, or use ~/.pgpass")


class Pool:
    """The connections of one process to one database. Thread-safe."""

    def __init__(self, url: str, patience_s: float = PATIENCE_S, format: str = "") -> None:
        """`format`: of the tables, looked at by each connection; `pause_s`, 0 for none: after a
        failure all fails at once for so long."""
        check_url(url)
        self.format = format
        self.url = url
        self.patience_s = patience_s
        self.pause_s = self._again = 0.0
        self._idle: list[Connection] = []
        self._parents: list[Connection] = []  # never closed here: the server would end them
        self._pid = os.getpid()
        self._closed = False

    def run(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Runs one statement in a transaction of its own and returns its rows; again where the
        connection breaks. Raises Unreachable, and what `translated` makes of errors."""
        return self.retrying(lambda db: fetch(db, query, values))

    def retrying(self, action: Callable[[Connection], T]) -> T:
        """Runs `action`, again on a new connection where that breaks, for `patience_s`."""
        end = time.monotonic() + self.patience_s
        if end - self.patience_s < self._again:
            raise Unreachable("the database does not answer; trying again soon")
        while True:
            try:
                with self.connection() as db:
                    return action(db)
            except Unreachable:
                if time.monotonic() > end:
                    self._again = time.monotonic() + self.pause_s
                    raise
                self._drop_idle()  # they are older
            except Deadlock:
                if time.monotonic() > end + DEADLOCKS_S:
                    raise
            time.sleep(random.uniform(PAUSE_S / 2, PAUSE_S))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction of several statements."""
        with self.connection() as db, _translating(), db.transaction():
            yield db

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection of this thread's own, in autocommit mode."""
        if self._pid != os.getpid():  # forked
            self._parents = self._idle
            self._idle = []
            self._pid = os.getpid()
        db = None
        with suppress(IndexError):
            db = self._idle.pop()
        with _translating():
            db = db or self.connect()
            try:
                yield db
            except BaseException:
                if db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    db.close()
                raise
            finally:
                self._give_back(db)

    def connect(self) -> Connection:
        """Opens a connection that the caller closes."""
        with _translating():
            parameters = conninfo_to_dict(self.url)
            options: dict[str, Any] = {**OPTIONS, **parameters}
            options["options"] = f"{parameters.get('options', '')} {OPTIONS['options']}"
            db = _Connection.connect(**options, autocommit=True, prepare_threshold=2)
            rows = db.execute("SELECT format FROM casfs.store").fetchall() if self.format else []
        if rows and rows[0][0] != self.format:
            db.close()
            raise Refused(f"{self.url} has format {rows[0][0]!r}, this casfs reads {self.format!r}")
        return db

    def _give_back(self, db: Connection) -> None:
        if not (db.closed or self._closed) and len(self._idle) < MAX_IDLE:
            self._idle.append(db)
            return
        with suppress(Exception):
            db.close()

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            self._drop_idle()

    def _drop_idle(self) -> None:
        idle = self._idle
        self._idle = []
        for db in idle:
            with suppress(Exception):
                db.close()


class _Connection(psycopg.Connection[Row]):
    """Breaks where the server is silent and accepts no new connection either: the kernel of one
    that is stopped answers for it, and a statement may take as long as it takes."""

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        return super().wait(self._watched(gen), *arguments, **options)

    def _watched(self, gen: Any) -> Generator[Any, Any, Any]:
        due = time.monotonic() + SILENCE_S
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > due:
                    self._probe()
                    due = time.monotonic() + SILENCE_S
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _probe(self) -> None:
        try:
            psycopg.connect(self.info.dsn).close()
        except psycopg.OperationalError as error:
            if "FATAL" not in str(error):  # its own words
                self.close()
                raise


class Deadlock(Failed):
    """A transaction that PostgreSQL ended for another one's sake; it can be run again."""


class Expired(Conflict):
    """What a publication had uploaded, or found stored, was collected before its transaction."""


def fetch(db: Connection, query: str, values: Sequence[object] = ()) -> list[Row]:
    """Returns the rows of a statement; [] where it gives none. All values travel in binary form."""
    with _translating():
        cursor = db.execute(query, values, binary=True)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translated(error) from None


def translated(error: psycopg.Error) -> CasfsError:
    """Returns the error of casfs for one of psycopg. The classes CF… are raised by the functions
    of `casfs.backend.postgres.schema`."""
    text = (error.diag.message_primary or str(error) or type(error).__name__).split("\n")[0]
    text = text.removeprefix("connection failed: ")
    state = error.sqlstate or next(
        (sqlstate for sqlstate in FATAL if re.search(FATAL[sqlstate], text)), ""
    )
    if state.startswith("CF"):
        return raised(state, text)
    if state in RETRIED:
        return Deadlock(f"the database: {text}")
    if state == "42501":
        return AccessDenied(
            f"the database: {text}; its owner may GRANT CREATE, or ALL, to this user"
        )
    if state in ("28P01", "28000"):
        return AccessDenied(f"the database refuses access: {text}; is PGPASSWORD right?")
    if state == "3D000":
        return NotFound(f"the database: {text}; make it with createdb")
    is_unreachable = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    if isinstance(error, psycopg.ProgrammingError) and not state:
        return Invalid(f"not the URL of a database: {text}; {SCHEME}")
    if is_unreachable and (not state or state[:2] in ("08", "57") or state == "53300"):
        return Unreachable(f"the database does not answer: {text}")
    return Failed(f"the database: {text}")


def raised(state: str, text: str) -> CasfsError:
    """Returns the error that a function of `casfs.backend.postgres.schema` has raised."""
    if state == "CF404":
        return NotFound(f"no blob {text} in this store: it was collected meanwhile")
    if state == "CF409":
        return Conflict(f"head {text}: moved by another writer meanwhile")
    return Expired("gc has deleted an upload that took longer than the grace period; try again")
