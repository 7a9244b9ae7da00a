"""What handlers share: `Site`, one for a server, and `Call`, one for a request."""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from casfs import errors
from casfs.backend.derived import newest_move
from casfs.digest import hash_bytes
from casfs.errors import CasfsError, Invalid, Refused
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.interruption import interruptible
from casfs.system.log import Log, silent
from casfs.system.lru_cache import LruCache
from casfs.web.rendering import Rendering
from casfs.web.shared_answers import SharedAnswers
from casfs.web.thread_table import ThreadTable

MAX_FORM_BYTES = 1 << 20
MAX_FIELDS = 200
MAX_PATHS = 200_000
WORKERS = 8  # threads that read the store at once
IMMUTABLE = "private, max-age=31536000, immutable"
STATUS = (
    (errors.NotFound, 404),
    (errors.NoDaemon, 503),
    (errors.Usage, 400),
    (errors.Invalid, 400),
    (errors.Refused, 409),
)


class Site:
    """`threads`: the records of all threads; `paths`: those that ended threads took through their
    workflows; `limiter`: bounds the handlers that run at once."""

    def __init__(self, store: Store, log: Log = silent) -> None:
        self.store = store
        self.log = log
        self.rendering = Rendering()
        self.threads = ThreadTable(store)
        self.paths = LruCache(MAX_PATHS)
        self.shared = SharedAnswers()
        self.limiter = trio.CapacityLimiter(WORKERS)


@dataclass(frozen=True)
class Call:
    """A request. `url`: its path; `path`: the parts of it that the route names; `query` and `form`:
    the last value of each field; `seq`: number of the journal's newest move before anything was
    read."""

    site: Site
    url: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    seq: int
    query_string: str = ""

    @property
    def store(self) -> Store:
        return self.site.store

    @property
    def daemon_runs(self) -> bool:
        return daemon_socket.runs(self.store.root)

    def at(self, screen: str) -> bool:
        """Returns whether this page belongs to the screen with that path."""
        return self.url == screen or (screen != "/" and self.url.startswith(f"{screen}/"))

    def index(self, name: str, default: int = 0) -> int:
        """Returns a number of the query that counts from 0. Raises Invalid."""
        text = self.query.get(name) or str(default)
        if not is_number(text):
            raise Invalid(f"{name} must be a number")
        return int(text)

    def octets(self, name: str) -> bytes:
        """Returns a field of the query as bytes, such as a path that is not UTF-8."""
        fields = parse_qsl(self.query_string, keep_blank_values=True, encoding="latin-1")
        return dict(fields).get(name, "").encode("latin-1")

    @property
    def version(self) -> str:
        """What URLs of immutable fragments carry: another one after a purge, so that no browser
        shows what it has kept."""
        purged = self.store.purged.replaced()
        suffix = hash_bytes("".join(sorted(purged)).encode())[:8] if purged else ""
        return self.site.rendering.version + suffix

    def page(
        self, template: str, *, status: int = 200, etag: str | None = None, **values: Any
    ) -> Response:
        """Returns a page, or the block of it that `?fragment=` names. `etag`: the hash of the
        node that alone decides its content, whose URL has `v={{ version }}`."""
        values |= {"call": self, "seq": self.seq, "version": self.version}
        html = self.site.rendering.render(template, self.query.get("fragment"), values)
        body = html.encode("utf-8", "replace")  # surrogates, as in names that are not UTF-8
        headers = {"Cache-Control": "private, no-store"}
        if etag is not None and status == 200 and self.query.get("v") == self.version:
            headers = {"ETag": f'"{etag}"', "Cache-Control": IMMUTABLE}
        return HTMLResponse(body, status, headers)

    def back(self, default: str = "/") -> Response:
        """Returns the redirect after a POST: to the form's `back`, a path of this site."""
        return RedirectResponse(local_path(self.form.get("back"), default), 303)


Handler = Callable[[Call], Response]


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Long work inside ends after some seconds: raises Refused with the message."""
    end = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > end:
            raise Refused(message)

    with interruptible(check):
        yield


def local_path(text: str | None, default: str = "/") -> str:
    """Returns a path of this site as it is, `default` for anything else."""
    bad = not text or text[0] != "/" or text[1:2] in ("/", "\\") or not text.isprintable()
    return default if bad else str(text)


def endpoint(site: Site, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Returns the endpoint that runs a handler in a worker thread and turns errors into pages."""

    async def answer(request: Request) -> Response:
        form = await _form(request) if request.method == "POST" else {}
        query = dict(request.query_params)
        text = request.scope["query_string"].decode("latin-1")
        values = request.url.path, dict(request.path_params), query, form, text
        make = partial(_run, site, handler, *values)
        seq = request.headers.get("casfs-seq", "")
        if "fragment" in query and request.method == "GET" and is_number(seq):
            make = partial(_shared, site, f"{request.url.path}?{text}", int(seq), make)
        return await trio.to_thread.run_sync(make, limiter=site.limiter)

    return answer


def _shared(site: Site, url: str, seq: int, make: Callable[[], Response]) -> Response:
    return site.shared.get(url, seq, lambda: (newest_move(site.store.heads), make()))


def _run(
    site: Site,
    handler: Handler,
    url: str,
    path: Mapping[str, str],
    query: Mapping[str, str],
    form: Mapping[str, str] | None,
    query_string: str = "",
) -> Response:
    try:
        seq = newest_move(site.store.heads)
        call = Call(
            site, url, path=path, query=query, form=form or {}, seq=seq, query_string=query_string
        )
        if form is None:
            raise Refused("the form is too large, or no form")
        return handler(call)
    except CasfsError as error:
        return error_page(site, status_of(error), str(error))
    except Exception as error:
        lines = "".join(traceback.format_exception(error))
        site.log("request failed", error=repr(error), trace=lines)
        return error_page(site, 500, "This page failed; log/web.jsonl of the store says why.")


def status_of(error: CasfsError) -> int:
    return next((code for kind, code in STATUS if isinstance(error, kind)), 500)


def error_page(site: Site, status: int, message: str) -> Response:
    call = Call(site, "", path={}, query={}, form={}, seq=0)
    return call.page("error.html", status=status, code=status, message=message)


async def _form(request: Request) -> dict[str, str] | None:
    """Returns the fields of an urlencoded body; None for any other, or one that is too large."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return None
    body = bytearray()
    try:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > MAX_FORM_BYTES:
                    return None
        text = body.decode("utf-8").replace("%0D%0A", "%0A")  # as browsers end lines
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except (ValueError, ClientDisconnect):
        return None
