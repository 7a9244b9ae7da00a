"""A shared backend of one test, and another machine of the same store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend.postgres.backend import PostgresBackend
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import make_backend


@pytest.fixture
def backend(database_url: str, s3: S3Server, tmp_path: Path) -> Iterator[PostgresBackend]:
    made = make_backend(tmp_path / "one", database_url, s3)
    yield made
    made.close()


@pytest.fixture
def other(backend: PostgresBackend, tmp_path: Path) -> Iterator[PostgresBackend]:
    """Shares the database and the objects of `backend`."""
    settings = backend.settings
    s3 = S3Server("the same", settings.endpoint or "")
    made = make_backend(tmp_path / "two", settings.url, s3, settings.objects)
    yield made
    made.close()
