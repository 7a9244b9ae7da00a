"""A mount over blobs that are in a remote: a real S3 server, and a network that fails."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from casfs.mount.registry import wait_until
from casfs.store.store import Store
from tests.support.engine import Cli
from tests.support.fault_proxy import FaultProxy
from tests.support.s3_servers import S3Server
from tests.support.served import Mount, serving

LARGE = random.Random(2).randbytes(3 << 20)
FILES = {f"d{n // 50}/f{n:03}.txt": f"line {n}\n".encode() * (n + 200) for n in range(300)}

MAP = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    sys.stdout.buffer.write(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:])
"""
SEEK = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
assert os.lseek(fd, 0, os.SEEK_DATA) == 0
os.lseek(fd, 0, os.SEEK_SET)
sys.stdout.buffer.write(os.read(fd, 10) + os.read(fd, 1 << 30))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, data in {**FILES, "large.bin": LARGE, "empty": b""}.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "tree"


@pytest.fixture
def clone(cli: Cli, tree: Path, tmp_path: Path, s3: S3Server, proxy: FaultProxy) -> Iterator[Store]:
    """A lazy clone of a store with a checkpoint `t`; its requests go through the proxy."""
    url = s3.url()
    cli("remote", "add", "origin", url, "--endpoint", proxy.endpoint)
    cli("checkpoint", "create", "t", str(tree))
    cli("push", "origin", "t")
    cli("clone", url, str(tmp_path / "clone"), "--endpoint", proxy.endpoint, "--lazy")
    proxy.reset()
    with Store.open(tmp_path / "clone") as store:
        yield store


@pytest.fixture
def mount(clone: Store, tmp_path: Path, transport: str) -> Iterator[Mount]:
    with serving(clone, tmp_path / "mnt", transport=transport) as mount:
        yield mount


def shown(mount: Mount) -> Path:
    ((_, head),) = mount.store.heads.list("checkpoints/t/")
    return mount.path / "trees" / str(mount.store.node(head.hash).payload["root"])


def data_requests(proxy: FaultProxy) -> list[str]:
    return [one.headers["range"] for one in proxy.requests if "/packs/" in one.key]


def failure(path: Path) -> int:
    """The errno of reading a file, or 0."""
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno or 0
    return 0


def test_names_cost_nothing_and_one_file_one_request(mount: Mount, proxy: FaultProxy) -> None:
    top = shown(mount)
    listed = subprocess.run(["ls", "-lR", top], capture_output=True, check=True).stdout
    assert b"f299.txt" in listed
    assert proxy.requests == []
    assert (top / "d3/f170.txt").read_bytes() == FILES["d3/f170.txt"]
    assert len(data_requests(proxy)) == 1


def test_a_whole_reading_at_some_latency(mount: Mount, proxy: FaultProxy, tree: Path) -> None:
    proxy.latency_s = 0.02
    top = shown(mount)
    subprocess.run(["diff", "-r", tree, top], check=True)
    fetched = [one for one in proxy.requests if "/packs/" in one.key]
    ends = [one.headers["range"].removeprefix("bytes=").split("-") for one in fetched]
    ranges = sorted((one.key, int(a), int(b)) for one, (a, b) in zip(fetched, ends, strict=True))
    for (pack, _, end), (other, start, _) in pairwise(ranges):
        assert pack != other or end < start
    proxy.down()
    subprocess.run(["diff", "-r", tree, top], check=True)


@pytest.mark.parametrize("program", [MAP, SEEK])
def test_a_large_file_is_mapped_or_read_around_holes(mount: Mount, program: str) -> None:
    path = shown(mount) / "large.bin"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, check=True)
    assert done.stdout == LARGE


def test_without_the_network_the_local_goes_on_and_the_rest_heals(
    mount: Mount, proxy: FaultProxy
) -> None:
    top = shown(mount)
    assert (top / "d0/f000.txt").read_bytes() == FILES["d0/f000.txt"]
    proxy.down()
    assert failure(top / "large.bin") == errno.EHOSTUNREACH
    for _ in range(3):
        assert (top / "d0/f000.txt").read_bytes() == FILES["d0/f000.txt"]
        assert subprocess.run(["ls", "-lR", top], capture_output=True).returncode == 0
    proxy.up()
    wait_until(lambda: failure(top / "large.bin") == 0, "it does not heal")
    assert (top / "large.bin").read_bytes() == LARGE


def test_local_files_are_read_while_the_network_hangs(mount: Mount, proxy: FaultProxy) -> None:
    top = shown(mount)
    assert (top / "d0/f001.txt").read_bytes() == FILES["d0/f001.txt"]
    proxy.latency_s = 3.0
    hanging = [
        subprocess.Popen(["cat", top / "d5" / f"f29{n}.txt"], stdout=subprocess.DEVNULL)
        for n in range(4)
    ]
    assert subprocess.run(["cat", top / "d0/f001.txt"], capture_output=True, timeout=60).stdout
    assert any(one.poll() is None for one in hanging)
    proxy.latency_s = 0.0
    assert [one.wait() for one in hanging] == [0] * 4
