"""Shared stores for tests: a machine's directory of a store on PostgreSQL and S3."""

from __future__ import annotations

from pathlib import Path

from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.postgres.create import create
from casfs.config import FILE, Shared
from casfs.store.store import Store
from tests.support.s3_servers import S3Server


def make_backend(
    root: Path, database: str, s3: S3Server, objects: str | None = None
) -> PostgresBackend:
    """A shared backend without the built-in schemas; `objects`: of the store that it joins."""
    root.mkdir()
    made = create(root, Shared(database, objects or s3.url(), s3.endpoint))
    values = {key: value for key, value in made._asdict().items() if value is not None}
    lines = [f'{key} = "{value}"\n' for key, value in values.items()]
    (root / FILE).write_text("[shared]\n" + "".join(lines))
    return PostgresBackend.open(root)


def make_store(root: Path, database: str, s3: S3Server) -> Store:
    """A new shared store, with this machine's directory at `root`."""
    return Store.init_shared(root, database, s3.url(), s3.endpoint)


def join(root: Path, database: str) -> Store:
    """Another machine's directory of the same store."""
    return Store.init_shared(root, database)
