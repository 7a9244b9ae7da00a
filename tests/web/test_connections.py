"""A real server, and a program on this machine without the key."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from casfs.store import Store
from tests.support.engine import until
from tests.support.mcp import serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
)
IDLE = 400


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


def test_idle_connections_without_a_key_keep_nobody_out(disk_store: Store) -> None:
    assert disk_store.root is not None
    with serving(disk_store.root) as (url, token):
        port = urlsplit(url).port or 0
        pid = _server_pid(port)
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx2.get(url, headers=headers).status_code != 401
        until(lambda: _open(pid) > 0)
        before = _open(pid)
        idle = []
        for number in range(IDLE):
            one = socket.create_connection(("127.0.0.1", port))
            idle.append(one)
            if number % 2:
                one.sendall(PREFACE)
        assert httpx2.get(url, headers=headers).status_code not in (401, 403)
        assert _open(pid) < before + IDLE // 2
        for one in idle:
            one.close()
        assert until(lambda: _open(pid) <= before + 1)


@pytest.mark.parametrize("data", [PREFACE, UPGRADE])
def test_http_2_is_refused(disk_store: Store, data: bytes) -> None:
    assert disk_store.root is not None
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
