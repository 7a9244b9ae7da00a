"""Who may look at the dashboard."""

from __future__ import annotations

import json
import os
import socket
from html import escape
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from casfs.store.store import Store
from casfs.web import access
from tests.support.thread_example import make_thread
from tests.support.web import Web, serving

HOW = "Open the address that `casfs web` printed"
FORM = {"Content_Type": "application/x-www-form-urlencoded"}


def test_the_first_address_sets_the_cookie(web: Web) -> None:
    found = web.log_in()
    assert (found.status, found.headers["location"]) == (303, "/")
    cookie = found.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; ")[1:])
    token = web.url.partition("token=")[2]
    assert len(token) >= 43
    assert token not in cookie
    assert web.get("/").status == 200


def test_an_address_in_a_page_of_another_site_leads_in_too(web: Web) -> None:
    path = web.url.removeprefix(web.origin)
    found = web.ask("GET", path, Sec_Fetch_Site="cross-site")
    assert found.headers["set-cookie"].startswith(web.cookie)
    assert (found.status, 'content="0; url=/"' in found.text) == (200, True)


@pytest.mark.parametrize(
    ("page", "leads_to"),
    [
        ("/threads/x/review", "/threads/x/review"),
        ("//evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ('/"><script>', '/"><script>'),
    ],
)
def test_an_address_may_lead_to_a_page_of_this_site(web: Web, page: str, leads_to: str) -> None:
    path = f"{web.url.removeprefix(web.origin)}&page={quote(page)}"
    location = web.ask("GET", path).headers["location"]
    assert unquote(location) == leads_to
    text = web.ask("GET", path, Sec_Fetch_Site="cross-site").text
    assert f'content="0; url={escape(leads_to)}"' in text


@pytest.mark.parametrize("path", ["/", "/events", "/static/x/casfs.css", "/nothing", "/?token="])
def test_nothing_is_answered_without_the_cookie(web: Web, path: str) -> None:
    for cookie in ("", web.cookie[:-1], web.cookie[:-1] + "\xe9", "x=y", "casfs="):
        found = web.ask("GET", path, Cookie=cookie)
        assert found.status == 403
        assert found.text.startswith(HOW)


@pytest.mark.parametrize("token", ["x", "", "%C3%A9", "%00"])
def test_a_wrong_token_is_refused_also_with_the_cookie(web: Web, token: str) -> None:
    assert web.ask("GET", f"/?token={token}", Cookie=web.cookie).status == 403


@pytest.mark.parametrize("host", ["casfs.example", "127.0.0.1.example:80", "localhost.", "[::2]:1"])
def test_another_host_is_dns_rebinding(web: Web, host: str) -> None:
    found = web.ask("GET", "/", Host=host, Cookie=web.cookie)
    assert (found.status, found.text) == (403, "This server answers for this machine alone.\n")


def test_names_of_this_machine_are_hosts_at_any_port(web: Web) -> None:
    for host in ("localhost:9", "127.0.0.1", "[::1]:8080"):
        assert web.ask("GET", "/", Host=host, Cookie=web.cookie).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://casfs.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "SELF", "Sec_Fetch_Site": "cross-site"},
        {"Origin": "SELF", "Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_refused(
    web: Web, disk_store: Store, headers: dict[str, str]
) -> None:
    thread = make_thread(disk_store, status="suspended")
    sent = {name: web.origin if one == "SELF" else one for name, one in headers.items()}
    found = web.ask("POST", f"/threads/{thread.id}/resume", "", Cookie=web.cookie, **FORM, **sent)
    assert (found.status, found.text) == (403, "This form was sent by another site.\n")


def test_every_answer_has_the_headers(web: Web) -> None:
    answers = [web.get("/"), web.get("/no", 404), web.ask("GET", "/"), web.ask("PUT", "/")]
    for found in answers:
        policy = found.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; frame-ancestors 'none'")
        assert "unsafe" not in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "same-origin"
        assert found.headers["cache-control"] == "private, no-store"


def test_an_address_stays_good_over_a_restart(web: Web, disk_store: Store) -> None:
    assert (disk_store.root / access.FILE).stat().st_mode & 0o777 == 0o600
    web.process.terminate()
    web.process.wait(30)
    with serving(disk_store.root) as again:
        assert again.url == web.url
        again.cookie = web.cookie
        assert again.get("/").status == 200
        with serving(disk_store.root) as other:
            assert other.host != again.host


def test_a_damaged_key_is_made_anew(disk_store: Store) -> None:
    short = [json.dumps({"token": one, "port": 0}) for one in ("", "short", 1, None)]
    for text in ("", "[]", '{"token": "x"}', *short):
        (disk_store.root / access.FILE).write_text(text)
        assert len(access.load(disk_store.root).token) >= 43


def test_a_unix_socket_is_for_its_owner_alone(disk_store: Store, tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(path))
    left.close()  # as a killed server leaves it
    with serving(disk_store.root, "--socket", str(path)) as web:
        assert os.stat(path).st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(path))
            target = web.url.removeprefix(web.origin)
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert client.recv(65536).startswith(b"HTTP/1.1 303")
    assert not path.exists()


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_of_a_token_is_read_in_any_case(scheme: str) -> None:
    guard = access.Access(None, access.Key("token", 1), programs=True)  # type: ignore[arg-type]
    headers = [(b"host", b"127.0.0.1:1"), (b"authorization", f"{scheme} token".encode())]
    scope = {"type": "http", "method": "GET", "path": "/mcp", "headers": headers}
    assert guard._refusal(scope) is None
    scope["headers"] = [headers[0], (b"authorization", b"Basic token")]
    assert guard._refusal(scope) is not None
