"""The probe: refuses a server where two of several writers win, by its name."""

from __future__ import annotations

import pytest

from casfs.errors import Refused, Unreachable
from casfs.object_storage.location import open_storage
from casfs.object_storage.probe import WRITERS, probe
from tests.support.fault_proxy import Edited, Fault, FaultProxy, Request, Status
from tests.support.s3_servers import S3Server


def unconditional(request: Request) -> Fault | None:
    """A server that does not know If-None-Match."""
    headers = {name: text for name, text in request.headers.items() if name != "if-none-match"}
    return Edited(Request(request.method, request.path, headers, request.body))


def test_a_server_that_lets_one_win(s3: S3Server, proxy: FaultProxy) -> None:
    storage = open_storage(s3.url(), endpoint=proxy.endpoint)
    probe(storage)
    assert proxy.count("PUT") >= WRITERS
    assert list(storage.list("")) == []


def test_a_server_where_all_win_is_refused_by_name(moto_server: S3Server, s3: S3Server) -> None:
    """moto checks no signature, so a header that was signed may be left out."""
    with FaultProxy(moto_server.endpoint) as proxy:
        storage = open_storage(moto_server.url(), endpoint=proxy.endpoint)
        proxy.rule = unconditional
        with pytest.raises(Refused, match=rf"^{storage.url}: 16 of 16 writers .* Werkzeug/"):
            probe(storage)
        assert list(storage.list("")) == []


def test_a_server_that_looks_and_then_writes(moto_server: S3Server, s3: S3Server) -> None:
    """Two writers that come at once both see no object, and both are let through."""
    with FaultProxy(moto_server.endpoint) as proxy:
        storage = open_storage(moto_server.url(), endpoint=proxy.endpoint)
        seen: dict[str, int] = {}

        def rule(request: Request) -> Fault | None:
            if request.method != "PUT":
                return None
            seen[request.key] = seen.get(request.key, 0) + 1
            return unconditional(request) if seen[request.key] <= 2 else None

        proxy.rule = rule
        with pytest.raises(Refused, match="writers created one object at once"):
            probe(storage)


def test_a_server_that_fails_is_not_called_racy(s3: S3Server, proxy: FaultProxy) -> None:
    storage = open_storage(s3.url(), endpoint=proxy.endpoint, patience_s=0)
    proxy.rule = lambda request: Status(500) if request.method == "PUT" else None
    with pytest.raises(Unreachable):
        probe(storage)
