"""A real server, and a program on this machine without the key."""

from __future__ import annotations

import http.client
import json
import os
import resource
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from casfs.store.store import Store
from tests.support import web
from tests.support.mcp import serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
)
HALF = b"GET / HTTP/1.1\r\nHost: local"
WRONG = b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer other\r\n\r\n"
CONNECTIONS = 2000
DESCRIPTORS = 256
HOST = "127.0.0.1"
CROWD = f"""
import resource, selectors, socket, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
data = {[b"", HALF, PREFACE, UPGRADE, WRONG]!r}
selector = selectors.DefaultSelector()
for number in range({CONNECTIONS}):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(("{HOST}", int(sys.argv[1])))
    selector.register(client, selectors.EVENT_WRITE, data[number % len(data)])
while selector.get_map():
    for key, _ in selector.select():
        selector.unregister(key.fileobj)
        try:
            key.fileobj.send(key.data)
        except OSError:
            pass  # it was closed already
print("open", flush=True)
sys.stdin.read()
"""
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@dataclass
class Served:
    """A server, a request with the key, and the headers and path of a live stream."""

    port: int
    path: str
    method: str
    headers: dict[str, str]
    body: str
    live: str

    @property
    def pid(self) -> int:
        return _server_pid(self.port)

    def request(self, method: str, headers: dict[str, str], body: str = "") -> bytes:
        path = self.path if method == self.method else self.live
        names = {"Host": f"localhost:{self.port}", "Content-Length": str(len(body)), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {names[name]}" for name in names)]
        return "\r\n".join([*lines, "", body]).encode()

    def ask(self) -> int:
        """Sends the request by a new connection; returns the status."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        with closing(connection):
            connection.request(self.method, self.path, self.body, self.headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    @contextmanager
    def stream(self) -> Iterator[socket.socket]:
        with socket.create_connection((HOST, self.port)) as client:
            head = f"GET {self.live} HTTP/1.1\r\nHost: localhost:{self.port}\r\n"
            lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            client.sendall(f"{head}{lines}\r\n".encode())
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            yield client


@pytest.fixture(params=["web", "mcp"])
def served(request: pytest.FixtureRequest, disk_store: Store) -> Iterator[Served]:
    if request.param == "web":
        with web.serving(disk_store.root) as site:
            port = urlsplit(site.url).port or 0
            yield Served(port, "/", "GET", {"Cookie": site.cookie}, "", "/events")
        return
    with serving(disk_store.root) as (url, token):
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
        answer = httpx2.post(url, headers=headers, json=call)
        headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        yield Served(urlsplit(url).port or 0, "/mcp", "POST", headers, body, "/mcp")


@contextmanager
def crowd(port: int) -> Iterator[Callable[[], bool]]:
    """A process that opens CONNECTIONS at once and holds them; yields whether all are open."""
    command = [sys.executable, "-c", CROWD, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        output = process.stdout
        yield lambda: bool(select.select([output], [], [], 0)[0])
        assert process.poll() is None
        process.stdin.close()


def _is_open(client: socket.socket) -> bool:
    """Returns whether the server has not closed a connection."""
    client.setblocking(False)
    try:
        while client.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    return False


def _server_pid(port: int) -> int:
    """Returns the process that listens on a port."""
    hexed = f"0100007F:{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    (inode,) = (row[9] for row in rows if row[1] == hexed and row[3] == "0A")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [os.readlink(one) for one in (process / "fd").iterdir()]
        except OSError:
            continue
        if f"socket:[{inode}]" in links:
            return int(process.name)
    raise AssertionError("nobody listens")


def _open(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_idle_connections_without_a_key_keep_nobody_out(served: Served) -> None:
    """2,000 idle connections and 256 descriptors: answers come within a second, streams stay."""
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    with served.stream() as stream, crowd(served.port) as is_open:
        times = []
        while len(times) < 11:
            began = time.monotonic()
            assert served.ask() == 200
            if is_open():
                times.append(time.monotonic() - began)
        assert statistics.median(times) < 1, times  # other tests run meanwhile
        assert _is_open(stream)
        assert _open(served.pid) < DESCRIPTORS / 2
    assert served.ask() == 200


def test_of_those_with_the_key_the_oldest_idle_one_gives_way(served: Served) -> None:
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    with served.stream() as stream, ExitStack() as stack:
        clients = []
        for _ in range(DESCRIPTORS // 2):
            client = stack.enter_context(socket.create_connection((HOST, served.port)))
            client.sendall(served.request(served.method, served.headers, served.body))
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            clients.append(client)
        assert not _is_open(clients[0])
        assert _is_open(clients[-1])
        assert _is_open(stream)
        assert _open(served.pid) < DESCRIPTORS


def test_a_server_without_a_free_descriptor_waits_for_one(served: Served) -> None:
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (3, DESCRIPTORS))
    with socket.create_connection((HOST, served.port)) as client:
        client.settimeout(1)
        client.sendall(served.request(served.method, served.headers, served.body))
        with pytest.raises(TimeoutError):
            client.recv(1)
        resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        client.settimeout(60)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("data", [PREFACE, UPGRADE])
def test_http_2_is_refused(disk_store: Store, data: bytes) -> None:
    with serving(disk_store.root) as (url, _):
        client = socket.create_connection(("127.0.0.1", urlsplit(url).port or 0))
        with client:
            client.settimeout(60)
            client.sendall(data)
            received = b""
            while part := client.recv(1 << 16):
                received += part
            head, _, frames = received.partition(b"\r\n\r\n")
            assert not head.startswith(b"\0\0")
            assert frames == b"", "it ends without a frame of HTTP/2"
