"""A stream has the findings of its whole content, however it is read."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.scanner import Scanner, ScanningReader, reader, scan
from tests.scanner import samples


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "PIECE_BYTES", 40 << 10)
        yield


def read(data: bytes, size: int) -> ScanningReader:
    stream = ScanningReader(io.BytesIO(data), Scanner())
    pieces = []
    while piece := stream.read(size):
        pieces.append(piece)
    assert b"".join(pieces) == data
    return stream


FILLERS = st.tuples(st.sampled_from(["word ", "\n", "x = 1\n"]), st.integers(0, 9000))
SECRETS = st.tuples(st.sampled_from(sorted(samples.FORMATS)), st.integers(0, 9))


@given(st.lists(st.tuples(FILLERS, SECRETS), max_size=6), st.integers(700, 70_000))
def test_a_stream_has_the_findings_of_the_whole(
    parts: list[tuple[tuple[str, int], tuple[str, int]]], size: int
) -> None:
    text = "".join(f"{fill * n} {samples.build(*secret)} " for (fill, n), secret in parts)
    text += samples.private_key(lines=100)
    assert tuple(read(text.encode(), size).findings) == scan(text.encode())


@pytest.mark.parametrize("shift", range(-90, 60, 7))
def test_a_secret_on_a_border(shift: int) -> None:
    border = reader.PIECE_BYTES - reader.MAX_SECRET_BYTES
    text = "\n" * (border + shift) + samples.github_token() + "\n" * 90_000
    assert tuple(read(text.encode(), 4096).findings) == scan(text.encode())


def test_binary_data_has_none_and_is_not_held() -> None:
    stream = read(b"\0" * 200_000 + samples.github_token().encode(), 65536)
    assert stream.findings == []
    assert len(stream._held) == 0
