"""Handlers: what becomes of their errors."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import Response

from casfs import errors
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.web import site as sites
from casfs.web.site import Call, Site


def run(store: Store, error: Exception, logged: list[Any]) -> Response:
    def fail(call: Call) -> Response:
        raise error

    def log(event: str, **fields: Any) -> None:
        logged.append((event, fields))

    return sites._run(Site(store, log), fail, "/", {}, {}, {})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.NotFound("no <b>"), 404),
        (errors.Invalid("no <b>"), 400),
        (errors.Usage("no <b>"), 400),
        (errors.Conflict("no <b>"), 409),
        (errors.Refused("no <b>"), 409),
        (errors.NoDaemon("no <b>"), 503),
        (errors.Corrupt("no <b>"), 500),
        (errors.Failed("no <b>"), 500),
    ],
)
def test_an_error_is_a_page(store: Store, error: CasfsError, status: int) -> None:
    logged: list[Any] = []
    found = run(store, error, logged)
    assert (found.status_code, logged) == (status, [])
    assert b"no &lt;b&gt;" in found.body


def test_a_fault_of_ours_is_logged_and_not_shown(store: Store) -> None:
    logged: list[Any] = []
    found = run(store, ZeroDivisionError("secret words"), logged)
    assert found.status_code == 500
    assert b"secret" not in found.body
    ((event, fields),) = logged
    assert event == "request failed"
    assert "secret words" in fields["error"]
    assert "in fail" in fields["trace"]


def test_a_part_made_of_one_node_may_be_kept_for_ever(store: Store) -> None:
    site = Site(store)

    def page(version: str, status: int = 200) -> str:
        call = Call(site, "/", {}, {"v": version}, {}, 0)
        fields = {"code": 1, "message": ""}
        found = call.page("error.html", status=status, etag="abc", **fields)
        return f"{found.headers['cache-control']} {found.headers.get('etag')}"

    assert page(site.rendering.version) == 'private, max-age=31536000, immutable "abc"'
    assert page("0" * 12) == "private, no-store None", "the templates of another program"
    assert page(site.rendering.version, 404) == "private, no-store None"
