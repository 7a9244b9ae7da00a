"""A daemon without its socket file, and connections that bring no request."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from casfs import daemon_socket
from casfs.store import Store
from engine.runtime.daemon import Daemon
from tests.support.engine import alive, daemon, spawn


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    Store.init(path).close()
    return path


def test_a_daemon_without_its_socket_file_is_stopped(root: Path) -> None:
    with daemon(root) as pid:
        Path(daemon_socket.find(root)["socket"]).unlink()  # type: ignore[index]
        answer = spawn("--store", root, "daemon", "stop")
        assert (answer.returncode, answer.stdout) == (0, f"{pid} stopped\n"), answer.stderr
        assert not alive(pid)


def test_an_idle_connection_is_closed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_socket, "REQUEST_TIMEOUT_S", 0.1)

    async def main() -> None:
        path = root / "s"
        with Store.open(root) as store:
            served = Daemon(store, {}, lambda event, **fields: None, 1)
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
