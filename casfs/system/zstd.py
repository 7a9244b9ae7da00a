"""Zstandard: files as streams of constant memory, and short frames with a dictionary.

The library is imported when the first of them is used.

The library's stream reader does not report a truncated file. So the frames are walked from
block to block first (RFC 8878, section 3.1), which reads a few bytes in 128 KiB. (The `eof` of
its decompressobj would report it too, but not across frames, and a read of 1 KiB can expand to
32 MiB there.)
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from casfs.errors import Corrupt

if TYPE_CHECKING:
    import zstandard

MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = range(0x184D2A50, 0x184D2A60)  # magic numbers of skippable frames
LEVEL = 3  # zstd's own default
FRAME_LEVEL = 1  # of short frames: as small as at 3, in half the time
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


def compress_pieces(pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
    """Yields the pieces of a stream compressed, as large ones."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj()
    for piece in pieces:
        if data := compressor.compress(piece):
            yield data
    yield compressor.flush()


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

    end = raw.seek(0, os.SEEK_END)
    offset = 0
    while offset < end:
        head = _at(raw, offset, MAX_HEADER_BYTES)
        if int.from_bytes(head[:4], "little") in SKIPPABLE:
            offset += 8 + int.from_bytes(head[4:8], "little")
            continue
        parameters = zstandard.get_frame_parameters(head)
        offset += zstandard.frame_header_size(head)
        last = False
        while not last:
            block = int.from_bytes(_at(raw, offset, 3), "little")
            last = bool(block & 1)
            repeats = block >> 1 & 3 == 1
            size = block >> 3
            offset += 3 + (1 if repeats else size)
            if offset > end:
                return False
        offset += CHECKSUM_BYTES if parameters.has_checksum else 0
    return offset == end


def _at(raw: BinaryIO, offset: int, size: int) -> bytes:
    raw.seek(offset)
    return raw.read(size)


# -- short frames -------------------------------------------------------------------------


class Dictionary:
    """A trained dictionary, prepared once; thread-safe. Without `data`: no dictionary."""

    def __init__(self, data: bytes | None = None, level: int = FRAME_LEVEL) -> None:
        """Raises Corrupt."""
        self._level = level
        self._prepared: zstandard.ZstdCompressionDict | None = None
        if data is not None:
            import zstandard

            self._prepared = zstandard.ZstdCompressionDict(data)
            try:
                self._prepared.precompute_compress(level=level)
            except zstandard.ZstdError as error:
                raise Corrupt(f"not a dictionary: {error}") from None
        # idle ones: each is used by one thread at a time, and takes longer to make than a frame
        self._compressors: list[zstandard.ZstdCompressor] = []
        self._decompressors: list[zstandard.ZstdDecompressor] = []

    def compress(self, data: bytes) -> bytes:
        try:
            compressor = self._compressors.pop()
        except IndexError:
            import zstandard

            compressor = zstandard.ZstdCompressor(
                level=self._level, dict_data=self._prepared, write_dict_id=False
            )
        frame = compressor.compress(data)
        self._compressors.append(compressor)
        return frame

    def decompress(self, frame: bytes, max_bytes: int) -> bytes:
        """Raises Corrupt for an invalid frame, or one of more than `max_bytes`."""
        import zstandard

        try:
            if zstandard.frame_content_size(frame) > max_bytes:
                raise Corrupt(f"a frame says that it has more than {max_bytes} bytes")
            try:
                decompressor = self._decompressors.pop()
            except IndexError:
                decompressor = zstandard.ZstdDecompressor(dict_data=self._prepared)
            data = decompressor.decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise Corrupt(f"a frame does not decompress: {error}") from None
        self._decompressors.append(decompressor)
        return data


def train(samples: Sequence[bytes | bytearray | memoryview], size: int) -> bytes | None:
    """Returns a dictionary of at most `size` bytes; None where the samples do not do for one."""
    import zstandard

    try:
        return zstandard.train_dictionary(size, list(samples)).as_bytes()
    except zstandard.ZstdError:
        return None
