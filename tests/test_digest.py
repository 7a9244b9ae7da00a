from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.digest import CHUNK, Digest, hash_bytes, hash_stream, is_hash

# The test vectors of the BLAKE3 specification: input byte i is i mod 251.
VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
}


@pytest.mark.parametrize(("size", "hash"), VECTORS.items())
def test_the_hash_is_blake3(size: int, hash: str) -> None:
    data = bytes(i % 251 for i in range(size))
    assert hash_bytes(data) == hash
    assert Digest.of(data) == Digest(hash, size)
    assert str(Digest.of(data)) == hash


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_a_stream_is_hashed_from_where_it_stands(data: bytes, start: int) -> None:
    source = io.BytesIO(data)
    source.seek(start)
    assert hash_stream(source) == Digest.of(data[start:])


def test_a_long_stream_is_hashed_in_pieces() -> None:
    data = bytes(range(256)) * (CHUNK // 256) * 2 + b"rest"
    assert hash_stream(io.BytesIO(data)) == Digest.of(data)


@pytest.mark.parametrize("text", ["ab" * 32, "0" * 64])
def test_64_lowercase_hex_characters_are_a_hash(text: str) -> None:
    assert is_hash(text)


@pytest.mark.parametrize(
    "text", ["", "AB" * 32, "ab" * 31, "ab" * 33, "ab" * 32 + "\n", "g" * 64, "٠" * 64, None, 7]
)
def test_nothing_else_is(text: object) -> None:
    assert not is_hash(text)
