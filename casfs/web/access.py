"""Who may look: a key in the first URL, a cookie from then on, and no request of another site.

    Host            a name of this machine: another one is DNS rebinding
    ?token=         on `/` only: sets the cookie and leads to `/`
    cookie          HttpOnly, SameSite=Strict; without it nothing is answered but how to get in
    POST            `Origin` must be this server, and `Sec-Fetch-Site` this origin where it is sent

The token is kept in `web.json` (mode 600) of the store, so an open page goes on when the server is
started again. `Referrer-Policy` is `same-origin`: under `no-referrer` browsers send
`Origin: null` with a form.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from html import escape
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from casfs.digest import hash_bytes
from casfs.system.files import os_errors, replacing
from casfs.web import connections
from casfs.web.site import local_path

FILE = "web.json"
TOKEN_BYTES = 32
HOSTS = {"localhost", "127.0.0.1", "[::1]"}
HOW = "Open the address that `casfs web` printed: it has the key to this page.\n"
REFRESH = '<!doctype html><meta http-equiv="refresh" content="0; url={}"><title>casfs</title>'
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True)
class Key:
    """The token of a store's URL, and the port that it was last served at (0: none)."""

    token: str
    port: int = 0

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies are shared by all ports of a host."""
        return f"casfs-{hash_bytes(b'name ' + self.token.encode())[:8]}"

    @property
    def session(self) -> str:
        """The cookie's value: the token cannot be found from it."""
        return hash_bytes(b"session " + self.token.encode())


def load(root: Path, name: str = FILE) -> Key:
    """Returns the key of a store, a new one where there is none yet."""
    try:
        fields = json.loads((root / name).read_text("utf-8"))
        key = Key(str(fields["token"]), int(fields["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        key = Key("")
    return key if len(key.token) > TOKEN_BYTES else Key(secrets.token_urlsafe(TOKEN_BYTES))


def save(root: Path, key: Key, name: str = FILE) -> None:
    """Writes the key, readable by its owner alone. Raises Failed."""
    with os_errors(f"cannot write {root / name}"), replacing(root / name) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(json.dumps({"token": key.token, "port": key.port}).encode())


class Access:
    """ASGI middleware; the outermost layer. `programs`: a bearer token in every request, of no
    page, stands for the cookie."""

    def __init__(self, app: ASGIApp, key: Key, *, programs: bool = False) -> None:
        self._app = app
        self._key = key
        self._programs = programs
        connections.expect(key.token, key.session)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "private, no-store")
            await send(message)

        refused = self._refusal(scope)
        if refused is None or refused.status_code == 303:  # or led from the URL with the key
            connections.has_key()
        await (refused or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Returns the answer to a request that does not reach the application, else None."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _name(host) not in HOSTS or len(headers.getlist("host")) != 1:
            return PlainTextResponse("This server answers for this machine alone.\n", 403)
        if self._programs:
            credential = "" if "origin" in headers else headers.get("authorization", "")
            scheme, _, token = credential.partition(" ")
            may = scheme.lower() == "bearer" and _same(token, self._key.token)
            return None if may else PlainTextResponse("This needs the token.\n", 401)
        if scope["path"] == "/" and scope["method"] == "GET" and b"token=" in scope["query_string"]:
            fields = parse_qs(scope["query_string"].decode("latin-1"))
            credential = fields.get("token", [""])[-1]
            if _same(credential, self._key.token):
                # A redirect that another site began would come without a strict cookie.
                other = headers.get("sec-fetch-site") == "cross-site"
                page = local_path(fields.get("page", [""])[-1])
                response: Response = RedirectResponse(page, 303)
                if other:
                    response = HTMLResponse(REFRESH.format(escape(page)))
                response.set_cookie(
                    self._key.cookie, self._key.session, httponly=True, samesite="strict"
                )
                return response
            return PlainTextResponse(HOW, 403)
        if not _same(_cookie(headers, self._key.cookie), self._key.session):
            return PlainTextResponse(HOW, 403)
        if scope["method"] not in ("GET", "HEAD"):
            site = headers.get("sec-fetch-site", "same-origin")
            if headers.get("origin") != f"http://{host}" or site != "same-origin":
                return PlainTextResponse("This form was sent by another site.\n", 403)
        return None


def _name(host: str) -> str:
    """Returns the name in a `Host` header, without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host


def _cookie(headers: Headers, name: str) -> str:
    try:
        cookie = SimpleCookie("; ".join(headers.getlist("cookie"))).get(name)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


def _same(candidate: str, wanted: str) -> bool:
    return secrets.compare_digest(candidate.encode("utf-8", "replace"), wanted.encode())
