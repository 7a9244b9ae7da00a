"""A daemon without its socket file, and connections that bring no request."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from casfs.store.store import Store
from casfs.system import daemon_socket
from engine.runtime.daemon import Daemon, DaemonSettings
from tests.support.engine import DEADLINE, alive, daemon, spawn
from tests.support.new_store import init_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    init_store(path).close()
    return path


def socket_of(root: Path) -> str:
    found = daemon_socket.find(root)
    assert found is not None
    return str(found["socket"])


def test_a_daemon_without_its_socket_file_is_stopped(root: Path) -> None:
    with daemon(root) as pid:
        Path(socket_of(root)).unlink()
        answer = spawn("--store", root, "daemon", "stop")
        assert (answer.returncode, answer.stdout) == (0, f"{pid} stopped\n"), answer.stderr
        assert not alive(pid)


def test_the_oldest_idle_connections_give_way(root: Path) -> None:
    """A daemon with 256 descriptors answers however many connections say nothing."""
    with daemon(root) as pid, ExitStack() as stack:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (256, 256))
        path = socket_of(root)
        idle = []
        for _ in range(300):
            one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            one.connect(path)
            one.settimeout(DEADLINE)
            idle.append(one)
        begun = time.monotonic()
        assert daemon_socket.request(root, "status")["pid"] == pid
        assert time.monotonic() - begun < daemon_socket.REQUEST_TIMEOUT_S / 2
        assert idle[0].recv(1) == b""


def test_an_idle_connection_is_closed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_socket, "REQUEST_TIMEOUT_S", 0.1)

    async def main() -> None:
        path = root / "s"
        with Store.open(root) as store:
            served = Daemon(store, DaemonSettings({}, 1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(served.serve, path, lambda: None)
                while not path.exists():
                    await trio.sleep(0.01)
                stream = await trio.open_unix_socket(str(path))
                async with stream:
                    await stream.send_all(b'{"op"')
                    assert await stream.receive_some() == b""
                nursery.cancel_scope.cancel()

    trio.run(main)
