"""Tar headers and sizes that are made to hurt the reader: refused, in bounded memory. Before, the
first ended in tracebacks and the second took gigabytes."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from casfs.errors import Corrupt
from casfs.maintenance import archive
from casfs.store.store import Store
from tests.support.archives import refused


def header(type: bytes, size: int, name: str = "././@LongLink") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = type, size
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("type", [b"L", b"K", b"x", b"X", b"g"])
def test_headers_without_end(target: Store, tmp_path: Path, type: bytes) -> None:
    (tmp_path / "bad").write_bytes((header(type, 512) + b"a" * 512) * 3000)
    refused(target, tmp_path / "bad", "not a regular file")


@pytest.mark.parametrize("map", ["a", "1,2", "", "0,99999999999999999999"])
def test_sparse_members(target: Store, tmp_path: Path, map: str) -> None:
    with tarfile.open(tmp_path / "bad", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("manifest.json")
        member.pax_headers = {"GNU.sparse.map": map, "GNU.sparse.size": "9"}
        tar.addfile(member, io.BytesIO())
    refused(target, tmp_path / "bad", "not a regular file")
    (tmp_path / "old").write_bytes(header(b"S", 0, "manifest.json") + bytes(1024))
    refused(target, tmp_path / "old", "not a regular file")


def compressed(path: Path, first: bytes, zeros: int) -> Path:
    """A file of a few kilobytes that unpacks to `zeros` bytes."""
    with path.open("wb") as out, zstandard.ZstdCompressor().stream_writer(out) as stream:
        stream.write(first)
        for _ in range(zeros >> 20):
            stream.write(bytes(1 << 20))
    return path


@pytest.mark.parametrize("type", [b"L", b"x", b"0"])
def test_a_member_of_gigabytes_is_not_read(target: Store, tmp_path: Path, type: bytes) -> None:
    """It says 4 GB, and 64 MB would follow."""
    bad = compressed(tmp_path / "bad", header(type, 4 << 30, "manifest.json"), 64 << 20)
    assert bad.stat().st_size < 1 << 16
    refused(target, bad, "not a regular file" if type != b"0" else "over 32 MiB")


def test_a_negative_size(target: Store, tmp_path: Path) -> None:
    block = bytearray(header(b"0", 0, "manifest.json"))
    block[124:136] = b"\xff" * 12  # base 256
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "bad").write_bytes(bytes(block) + bytes(1024))
    refused(target, tmp_path / "bad", "not a regular file")


def test_a_window_larger_than_memory(target: Store, tmp_path: Path) -> None:
    frame = b"\x28\xb5\x2f\xfd" + bytes([0b000_00_000, 21 << 3]) + b"\x01\x00\x00"  # 2 GiB
    (tmp_path / "bad.zst").write_bytes(frame)
    with pytest.raises(Corrupt):
        archive.load(target, tmp_path / "bad.zst")
