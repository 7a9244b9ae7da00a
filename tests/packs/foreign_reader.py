"""Reads a pack by `docs/format.md` alone: nothing of casfs is imported here.

python tests/packs/foreign_reader.py PACK          lists the members
python tests/packs/foreign_reader.py PACK HASH     writes one to stdout
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import blake3
import zstandard


class Pack:
    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        assert self.read(0, 16) == b"casfs pack 1\n\0\0\0"
        end = path.stat().st_size
        at, size, self.name, magic = struct.unpack("<QQ32s8s", self.read(end - 56, 56))
        assert magic == b"casfspk1"
        index = self.read(at, size)
        assert blake3.blake3(index).digest() == self.name
        types, dictionaries, frames, members = struct.unpack_from("<IIII", index)
        place = 16
        self.types = [index[place + 32 * one :][:32] for one in range(types)]
        place += 32 * types
        self.dictionaries = struct.unpack_from(f"<{dictionaries}I", index, place)
        place += 4 * dictionaries
        self.frames = [struct.unpack_from("<QIIHH", index, place + 20 * n) for n in range(frames)]
        place += 20 * frames
        self.members = [
            struct.unpack_from("<32sQIII", index, place + 52 * n) for n in range(members)
        ]

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def read(self, at: int, size: int) -> bytes:
        self.file.seek(at)
        return self.file.read(size)

    def frame(self, number: int) -> bytes:
        offset, stored, size, codec, dictionary = self.frames[number]
        data = self.read(offset, stored)
        if codec == 1:
            with_dictionary = None
            if dictionary:
                trained = self.content(self.dictionaries[dictionary - 1])
                with_dictionary = zstandard.ZstdCompressionDict(trained)
            data = zstandard.ZstdDecompressor(dict_data=with_dictionary).decompress(data)
        assert len(data) == size
        return data

    def content(self, number: int) -> bytes:
        hash, size, frame, offset, _ = self.members[number]
        data = b""
        while len(data) < size:
            data += self.frame(frame)[offset : offset + size - len(data)]
            frame, offset = frame + 1, 0
        assert blake3.blake3(data).digest() == hash
        return data

    def listing(self) -> Iterator[tuple[str, int, str]]:
        for hash, size, _, _, type in self.members:
            yield hash.hex(), size, self.types[type - 1].hex() if type else "-"


if __name__ == "__main__":
    with Pack(Path(sys.argv[1])) as pack:
        if len(sys.argv) > 2:
            number = [hash for hash, _, _ in pack.listing()].index(sys.argv[2])
            sys.stdout.buffer.write(pack.content(number))
        else:
            for one in pack.listing():
                print(*one)
