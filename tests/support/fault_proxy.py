"""An HTTP proxy in front of an S3 server, which counts requests and makes faults on order.

    with FaultProxy(server.endpoint) as proxy:  # proxy.endpoint in place of server.endpoint
        proxy.rule = lambda request: Lost() if request.method == "PUT" else None
        proxy.latency_s = 0.02
        proxy.down()  # connections are refused, until proxy.up()

A signature covers the Host header, which is passed on as it came.
"""

from __future__ import annotations

import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

PIECE = 64 << 10
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)  # names in lower case
    body: bytes = field(repr=False)

    @property
    def key(self) -> str:
        """The path without query, decoded: /bucket/prefix/key."""
        return unquote(self.path.partition("?")[0])


class Fault:
    """What happens to a request instead of being passed on."""


@dataclass(frozen=True)
class Status(Fault):
    """The proxy answers; the server gets nothing."""

    code: int
    retry_after: str = ""
    error: str = "InternalError"


@dataclass(frozen=True)
class Lost(Fault):
    """The server gets the request, the client no answer."""


@dataclass(frozen=True)
class Dropped(Fault):
    """Neither the server gets the request nor the client an answer."""


@dataclass(frozen=True)
class Cut(Fault):
    """The answer ends after so many bytes of its body."""

    after: int


@dataclass(frozen=True)
class Changed(Fault):
    """The body of the answer is another one."""

    change: Callable[[bytes], bytes]


@dataclass(frozen=True)
class Edited(Fault):
    """The server gets another request."""

    request: Request


@dataclass(frozen=True)
class Delayed(Fault):
    """The request is passed on later."""

    seconds: float


Rule = Callable[[Request], Fault | None]


class FaultProxy:
    """`requests`: all that came, in order. `rule` decides about each, in the thread that serves
    it. `latency_s` is added to each, `bytes_per_s` limits the body of each answer and request."""

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[Request] = []
        self.rule: Rule = lambda request: None
        self.latency_s = 0.0
        self.bytes_per_s = 0.0  # no limit
        self._target = str(urlsplit(target).netloc)
        self._connections: set[socket.socket] = set()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def endpoint(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    def up(self) -> None:
        proxy = self

        class Handler(_Handler):
            def setup(self) -> None:
                super().setup()
                self.proxy = proxy
                proxy._connections.add(self.connection)

            def finish(self) -> None:
                proxy._connections.discard(self.connection)
                with suppress(OSError):
                    super().finish()

        self._server = _Server(("127.0.0.1", self._port), Handler)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_port
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def down(self) -> None:
        """Connections are refused; those that are open end."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in list(self._connections):
            _end(connection)

    def reset(self) -> None:
        """Forgets requests and faults."""
        self.requests.clear()
        self.rule, self.latency_s, self.bytes_per_s = lambda request: None, 0.0, 0.0

    def count(self, method: str = "") -> int:
        return sum(method in ("", request.method) for request in self.requests)

    def forward(self, request: Request) -> HTTPResponse:
        """Returns the server's answer. It owns the connection."""
        upstream = HTTPConnection(self._target, timeout=120)
        upstream.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            if name not in HOP_BY_HOP:
                upstream.putheader(name, value)
        upstream.putheader("connection", "close")
        upstream.endheaders(request.body)
        return upstream.getresponse()

    def __enter__(self) -> FaultProxy:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # else a client that was killed
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = PIECE
    proxy: FaultProxy

    def do_GET(self) -> None:
        try:
            self._serve()
            self.wfile.flush()
        except OSError:  # the client has gone, or the server
            self._hang_up()

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        proxy = self.proxy
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body)
        proxy.requests.append(request)
        fault = proxy.rule(request)
        pause = proxy.latency_s + (fault.seconds if isinstance(fault, Delayed) else 0)
        time.sleep(pause + (len(body) / proxy.bytes_per_s if proxy.bytes_per_s else 0))
        if isinstance(fault, Dropped):
            self._hang_up()
        elif isinstance(fault, Status):
            self._answer(fault)
        else:
            sent = fault.request if isinstance(fault, Edited) else request
            with proxy.forward(sent) as answer:
                self._relay(answer, fault)

    def _answer(self, fault: Status) -> None:
        body = f"<Error><Code>{fault.error}</Code><Message>ordered</Message></Error>".encode()
        self.send_response_only(fault.code)
        if fault.retry_after:
            self.send_header("Retry-After", fault.retry_after)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _relay(self, answer: HTTPResponse, fault: Fault | None) -> None:
        if isinstance(fault, Lost):
            answer.read()
            self._hang_up()
            return
        head = self.command == "HEAD"
        size = answer.getheader("content-length")
        whole = None
        if isinstance(fault, Changed):
            whole = fault.change(answer.read())
        elif size is None and not head:
            whole = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in {*HOP_BY_HOP, "content-length"}:
                self.send_header(name, value)
        if whole is not None or size is not None:
            self.send_header("Content-Length", size if whole is None else str(len(whole)))
        self.end_headers()
        left = fault.after if isinstance(fault, Cut) else None
        if whole is not None:
            self._write(whole)
        while whole is None and not head and (piece := answer.read(PIECE)):
            self._write(piece[:left])
            if left is not None and (left := left - len(piece)) <= 0:
                self.wfile.flush()
                self._hang_up()
                return

    def _write(self, piece: bytes) -> None:
        self.wfile.write(piece)
        if self.proxy.bytes_per_s:
            time.sleep(len(piece) / self.proxy.bytes_per_s)

    def _hang_up(self) -> None:
        self.close_connection = True
        _end(self.connection)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
