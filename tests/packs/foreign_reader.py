"""Reads a pack by `docs/format.md` alone, without casfs: `foreign_reader.py PACK` lists the members
by hash, size and type, `foreign_reader.py PACK NUMBER` writes one to stdout."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import blake3
import zstandard


class Pack:
    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        at, size, self.name, magic = struct.unpack("<QQ32s8s", self.data[-56:])
        index = self.data[at : at + size]
        assert self.data.startswith(b"casfs pack 1\n\0\0\0")
        assert magic == b"casfspk1"
        assert blake3.blake3(index).digest() == self.name
        types, dictionaries, frames, members = struct.unpack_from("<IIII", index)
        place = 16
        self.types = [index[place + 32 * one :][:32].hex() for one in range(types)]
        place += 32 * types
        self.dictionaries = struct.unpack_from(f"<{dictionaries}I", index, place)
        place += 4 * dictionaries
        self.frames = [struct.unpack_from("<QIIHH", index, place + 20 * n) for n in range(frames)]
        place += 20 * frames
        self.members = [
            struct.unpack_from("<32sQIII", index, place + 52 * n) for n in range(members)
        ]

    def frame(self, number: int) -> bytes:
        offset, stored, size, codec, dictionary = self.frames[number]
        data = self.data[offset : offset + stored]
        if codec == 1:
            trained = self.content(self.dictionaries[dictionary - 1]) if dictionary else b""
            with_dictionary = zstandard.ZstdCompressionDict(trained) if trained else None
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


if __name__ == "__main__":
    pack = Pack(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        sys.stdout.buffer.write(pack.content(int(sys.argv[2])))
    else:
        for hash, size, _, _, type in pack.members:
            print(hash.hex(), size, pack.types[type - 1] if type else "-")
