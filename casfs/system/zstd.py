"""Zstandard files as streams of constant memory. The library is imported for such files only.

The library's stream reader does not report a truncated file. So the frames are walked from
block to block first (RFC 8878, section 3.1), which reads a few bytes in 128 KiB. (The `eof` of
its decompressobj would report it too, but not across frames, and a read of 1 KiB can expand to
32 MiB there.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from casfs.errors import Corrupt

MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = range(0x184D2A50, 0x184D2A60)  # magic numbers of skippable frames
LEVEL = 3  # zstd's own default
MAX_HEADER_BYTES = 18
MAX_WINDOW_BYTES = 128 << 20  # as `zstd -d` itself accepts; it is allocated
CHECKSUM_BYTES = 4


@contextmanager
def compressed(target: BinaryIO) -> Iterator[BinaryIO]:
    """Yields a stream that compresses into `target`, which stays open."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=LEVEL)
    with compressor.stream_writer(target, closefd=False) as out:
        yield cast(BinaryIO, out)


@contextmanager
def opened(source: Path) -> Iterator[BinaryIO]:
    """Opens a file as a stream, decompressed (all frames) where it has zstd's magic number.

    Raises OSError; Corrupt where it is truncated, and where reading finds it damaged.
    """
    with source.open("rb") as raw:
        begin = raw.read(len(MAGIC))
        raw.seek(0)
        if begin != MAGIC:
            yield raw
            return
        import zstandard

        try:
            if not is_complete(raw):
                raise Corrupt(f"{source}: truncated")
            raw.seek(0)
            decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
            with decompressor.stream_reader(raw, read_across_frames=True) as out:
                yield cast(BinaryIO, out)
        except zstandard.ZstdError as error:
            raise Corrupt(f"{source}: {error}") from None


def is_complete(raw: BinaryIO) -> bool:
    """Returns True when a file ends with a complete frame. Raises ZstdError for an invalid one."""
    import zstandard

    end, at = raw.seek(0, os.SEEK_END), 0
    while at < end:
        head = _at(raw, at, MAX_HEADER_BYTES)
        if int.from_bytes(head[:4], "little") in SKIPPABLE:
            at += 8 + int.from_bytes(head[4:8], "little")
            continue
        parameters = zstandard.get_frame_parameters(head)
        at += zstandard.frame_header_size(head)
        last = False
        while not last:
            block = int.from_bytes(_at(raw, at, 3), "little")
            last, repeats, size = bool(block & 1), block >> 1 & 3 == 1, block >> 3
            at += 3 + (1 if repeats else size)
            if at > end:
                return False
        at += CHECKSUM_BYTES if parameters.has_checksum else 0
    return at == end


def _at(raw: BinaryIO, offset: int, size: int) -> bytes:
    raw.seek(offset)
    return raw.read(size)
