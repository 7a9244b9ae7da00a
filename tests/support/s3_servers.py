"""Real S3 servers for tests: SeaweedFS, and moto's server as a second implementation.

Fixtures (in tests/conftest.py): `seaweedfs` and `moto_server` for a session, `s3` as `seaweedfs`
with its credentials in the environment of one test, `proxy` as a fault proxy in front of it.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support import programs
from tests.support.fault_proxy import FaultProxy

BUCKET = "casfs-test"
KEY_ID, SECRET = "AKIACASFSTESTS", "c2VjcmV0LW9mLXRlc3Rz"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
START_S = 60
TRIES = 3
# One request after the other: moto looks for an object and writes it in two steps, so that threads
# may both create one.
MOTO = """
import sys
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
app = DomainDispatcherApplication(create_backend_app)
run_simple("127.0.0.1", int(sys.argv[1]), app, request_handler=MotoRequestHandler)
"""
GRPC = 10_000  # weed listens at port + 10,000 as well


@dataclass(frozen=True)
class S3Server:
    name: str
    endpoint: str

    def url(self) -> str:
        """A prefix that no one has used."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"


def free_ports(count: int, also: int = 0) -> list[int]:
    """Ports that are free now, with those that lie `also` above, outside the ephemeral range."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = random.randrange(11_000, 20_000)
            try:
                for one in {port, port + also}:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", one))
            except OSError:
                continue
            found.append(port)
    return found


def status(endpoint: str, method: str = "GET", path: str = "/") -> int:
    """The status of an unsigned request. Raises OSError, HTTPException."""
    connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    finally:
        connection.close()


@contextmanager
def run_seaweedfs(directory: Path) -> Iterator[S3Server]:
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    (directory / "data").mkdir(exist_ok=True)

    def command() -> tuple[int, list[str]]:
        s3, master, volume, filer = free_ports(4, also=GRPC)
        return s3, [
            programs.script("weed"), "mini", f"-dir={directory / 'data'}",
            "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false",
            "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.config={config}", f"-s3.port={s3}", f"-master.port={master}",
            f"-volume.port={volume}", f"-filer.port={filer}", f"-bucket={BUCKET}",
        ]  # fmt: skip

    with running(command, directory) as endpoint:
        yield S3Server("SeaweedFS", endpoint)


@contextmanager
def run_moto(directory: Path) -> Iterator[S3Server]:
    def command() -> tuple[int, list[str]]:
        (port,) = free_ports(1)
        return port, [sys.executable, "-P", "-c", MOTO, str(port)]

    with running(command, directory) as endpoint:
        assert status(endpoint, "PUT", f"/{BUCKET}") == 200
        yield S3Server("Werkzeug", endpoint)


@contextmanager
def running(command: Callable[[], tuple[int, list[str]]], directory: Path) -> Iterator[str]:
    """A server's endpoint, once the bucket can be asked for. Another process may take a port
    between the choice and the start: then with other ports."""
    for _ in range(TRIES):
        port, program = command()
        endpoint = f"http://127.0.0.1:{port}"
        with (directory / "server.log").open("wb") as log:
            server = subprocess.Popen(program, cwd=directory, stdout=log, stderr=log)
        try:
            if ready(server, endpoint):
                yield endpoint
                return
        finally:
            server.kill()  # its data is of this session only
            server.wait()
    pytest.fail(f"{program[0]} does not start: {(directory / 'server.log').read_text()[-2000:]}")


def ready(server: subprocess.Popen[bytes], endpoint: str) -> bool:
    """Whether it answers, in time; False when it ended."""
    end = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < end:
        try:
            if status(endpoint, "GET", f"/{BUCKET}") in (200, 403, 404):
                return True
        except (OSError, HTTPException):
            pass
        time.sleep(0.05)
    return False


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def s3(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return seaweedfs


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3.endpoint) as opened:
        yield opened
