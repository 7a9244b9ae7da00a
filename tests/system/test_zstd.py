"""Zstandard streams: back again, in several frames, and cut."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from casfs.errors import Corrupt
from casfs.system import zstd

SKIPPED = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"


def frame(data: bytes) -> bytes:
    out = io.BytesIO()
    with zstd.compressed(out) as stream:
        stream.write(data)
    return out.getvalue()


def read(path: Path) -> bytes:
    with zstd.opened(path) as stream:
        return b"".join(iter(lambda: stream.read(1 << 16), b""))


@pytest.mark.parametrize("data", [b"", b"x", b"abc" * 100_000, bytes(range(256)) * 5000])
def test_what_was_compressed_comes_back(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(frame(data) + SKIPPED + frame(b"second"))
    assert read(path) == data + b"second"


def test_other_files_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"plain")
    assert read(tmp_path / "x") == b"plain"


def test_each_cut_is_found(tmp_path: Path) -> None:
    path, data = tmp_path / "x", frame(b"abc" * 100) + SKIPPED + frame(b"second")
    ends = {len(frame(b"abc" * 100)), len(frame(b"abc" * 100) + SKIPPED)}
    for end in set(range(len(zstd.MAGIC), len(data))) - ends:
        path.write_bytes(data[:end])
        with pytest.raises(Corrupt, match="x"):
            read(path)


def test_damage_is_found(tmp_path: Path) -> None:
    path, data = tmp_path / "x", bytearray(frame(bytes(range(256)) * 50))
    data[4] ^= 0x08  # a bit of the header that is reserved
    path.write_bytes(data)
    with pytest.raises(Corrupt):
        read(path)
