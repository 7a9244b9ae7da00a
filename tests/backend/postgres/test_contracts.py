"""The shared backend passes the conformance suites, on PostgreSQL and an S3 server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.protocols import Backend
from tests.backend.test_backends import CHECKS
from tests.contracts.contract import Check
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import make_backend as make_shared


@pytest.fixture
def make_backend(
    postgres: PostgresServer, s3: S3Server, tmp_path: Path
) -> Iterator[Callable[[], Backend]]:
    with ExitStack() as stack:

        def make() -> PostgresBackend:
            url = stack.enter_context(postgres.database())
            made = make_shared(tmp_path / url.rpartition("/")[2], url, s3)
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, make_backend: Callable[[], Backend]) -> None:
    check(make_backend)
