"""A tarball that is damaged or crafted is refused, and nothing of it is stored."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.errors import Failed, Invalid
from casfs.plugins import registry, transfer
from casfs.store.store import Store

MEMBERS = 12


@pytest.fixture
def whole() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for index in range(MEMBERS):
            info = tarfile.TarInfo(f"f{index}")
            info.size = 1000
            tar.addfile(info, io.BytesIO(os.urandom(1000)))
    return out.getvalue()


def sync(store: Store, path: Path) -> None:
    transfer.sync(store, "p", "1.0", str(path), os.environ)


def is_refused(store: Store, path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    try:
        sync(store, path)
    except (Invalid, Failed):
        return registry.listing(store) == []
    return False


def flips(data: bytes, count: int) -> Iterator[bytes]:
    order = random.Random(1)
    for _ in range(count):
        at = order.randrange(
            10, len(data)
        )  # behind gzip's header: its name and time are no content
        yield data[:at] + bytes([data[at] ^ 1 << order.randrange(8)]) + data[at + 1 :]


def test_each_flipped_bit_of_a_gzip_file_is_found(
    store: Store, tmp_path: Path, whole: bytes
) -> None:
    data = gzip.compress(whole, mtime=0)
    accepted = [one for one in flips(data, 100) if not is_refused(store, tmp_path / "x.tgz", one)]
    assert accepted == []


def test_a_plain_tarball_that_is_cut(store: Store, tmp_path: Path, whole: bytes) -> None:
    end = MEMBERS * (512 + 1024)  # where the end mark begins
    for cut in range(0, end + 1, 256):
        assert is_refused(store, tmp_path / "x.tar", whole[:cut]), cut
    for cut in range(100, end, 1536):  # within a header
        assert is_refused(store, tmp_path / "x.tar", whole[:cut]), cut


def test_a_bad_header_is_no_end(store: Store, tmp_path: Path, whole: bytes) -> None:
    damaged = whole[:1536] + b"\x01" + whole[1537:]
    assert is_refused(store, tmp_path / "x.tar", damaged)


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"X", b"g"])
def test_many_headers_in_a_row(store: Store, tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("n")
    info.type, info.size = kind, 0
    assert is_refused(store, tmp_path / "x.tar", info.tobuf() * 3000 + bytes(1024))


@pytest.mark.parametrize("keys", [{"GNU.sparse.map": "a"}, {"GNU.sparse.major": "1"}])
def test_crafted_sparse_headers(store: Store, tmp_path: Path, keys: dict[str, str]) -> None:
    path = tmp_path / "x.tar"
    keys = {**keys, "GNU.sparse.minor": "0"}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("f")
        info.pax_headers, info.size = keys, 512
        tar.addfile(info, io.BytesIO(b"map\n" * 128))
    assert is_refused(store, path, path.read_bytes())


def test_the_whole_one_is_stored(store: Store, tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(whole)
    sync(store, tmp_path / "x.tar")
    assert len(registry.listing(store)) == 1
