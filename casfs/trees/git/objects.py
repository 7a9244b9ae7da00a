"""Git objects in recorded files: their ids, kinds and contents.

Loose objects are read here. What is in packs is read by git, in a temporary repository of ours with
a copy of the pack: git runs programs that a repository's configuration names, and agents write
those.

Formats: Documentation/gitformat-pack of git (version 2 of the index), gitformat-loose.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from casfs.errors import Failed, Invalid

KINDS = BLOB, TREE, COMMIT, _ = b"blob", b"tree", b"commit", b"tag"
MAX_HEADER_BYTES = 64  # of a loose object
INDEX_HEADER = b"\xfftOc\0\0\0\2"
FANOUT = struct.Struct(">256I")
CONFIG = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = {}\n"
PACK = b".pack"
PACK_INDEX = b".idx"
BESIDE_PACKS = (b".rev", b".bitmap", b".mtimes")  # of a pack: wrong for one that is packed anew
SHA1_BYTES = 20
BUNDLE_SIGNATURE = b"# v"
FORMATS = {SHA1_BYTES: "sha1", 32: "sha256"}  # by the length of an id
GIT_TIMEOUT_S = 600
MAX_UNPACKED_BYTES = 4 << 30  # of objects to look at, which lie in a temporary file
ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_NO_REPLACE_OBJECTS": "1",
    "LC_ALL": "C",
}


class Header(NamedTuple):
    """What an object is, and the length of its content in bytes."""

    kind: bytes
    size: int


class Inflated(io.RawIOBase):
    """Reads a zlib stream, in constant memory. It ends early where the stream is damaged."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._decompressor = zlib.decompressobj()
        self._waiting = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]  # writable bytes, as of all readers
        while not self._decompressor.eof:
            try:
                piece = self._decompressor.decompress(self._waiting, len(view))
            except zlib.error:
                return 0
            self._waiting = self._decompressor.unconsumed_tail
            if piece:
                view[: len(piece)] = piece
                return len(piece)
            self._waiting = self._waiting or self._source.read(io.DEFAULT_BUFFER_SIZE)
            if not self._waiting:
                return 0
        return 0


def loose_header(content: io.RawIOBase) -> Header | None:
    """Reads the header of a loose object, and nothing behind it; None where it is none."""
    header = b""
    while len(header) < MAX_HEADER_BYTES:
        byte = content.read(1)
        if byte == b"\0":
            kind, _, size = header.partition(b" ")
            return Header(kind, int(size)) if size.isdigit() else None
        if not byte:
            return None
        header += byte
    return None


def ids_in_pack(index: bytes) -> list[bytes]:
    """Returns the ids of all objects of a pack, from its index. Raises Invalid for anything but
    one."""
    start = len(INDEX_HEADER) + FANOUT.size
    if index.startswith(INDEX_HEADER) and len(index) >= start:
        count = FANOUT.unpack_from(index, len(INDEX_HEADER))[-1]
        for id_bytes in FORMATS:
            # Behind the ids a checksum and an offset of four bytes each, a few more offsets of
            # eight, and two hashes. No length is right for both lengths of ids.
            extra_bytes = len(index) - start - count * (id_bytes + 8) - 2 * id_bytes
            if extra_bytes % 8 == 0 and 0 <= extra_bytes // 8 <= count:
                end = start + count * id_bytes
                return [index[offset : offset + id_bytes] for offset in range(start, end, id_bytes)]
    raise Invalid("not an index of a git pack")


def skip_bundle_header(file: BinaryIO) -> None:
    """Reads up to the pack in a bundle; nothing of any other file."""
    if not file.read(len(BUNDLE_SIGNATURE)).startswith(BUNDLE_SIGNATURE):
        file.seek(0)
        return
    while line := file.readline():
        if line == b"\n":
            return


class PackedObjects:
    """A temporary repository of ours with copies of packs. `wanted`: the objects to look at.
    Raises Failed where git is not there, or fails."""

    def __init__(self, id_bytes: int) -> None:
        self.wanted: Collection[bytes] = ()
        self._folder = Path(tempfile.mkdtemp(prefix="casfs-git-"))
        self._packs = self._folder / "objects" / "pack"
        self._packs.mkdir(parents=True)
        (self._folder / "refs").mkdir()
        (self._folder / "HEAD").write_text("ref: refs/heads/main\n")
        (self._folder / "config").write_text(CONFIG.format(FORMATS[id_bytes]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add_pack(self, pack: BinaryIO) -> list[bytes]:
        """Adds a copy of a pack; returns the ids of its objects, whatever its own index says."""
        path = self._packs / f"pack-{len(os.listdir(self._packs)):040x}.pack"
        with path.open("wb") as file:
            shutil.copyfileobj(pack, file)
        self._run(["index-pack", "--threads=1", str(path)], ())
        return ids_in_pack(path.with_suffix(".idx").read_bytes())

    def headers(self) -> Mapping[bytes, Header]:
        read: dict[bytes, Header] = {}
        for line in self._run(["cat-file", "--batch-check"], self.wanted).splitlines():
            object_id, kind, *size = line.split()
            if size:  # else `missing`
                read[bytes.fromhex(object_id.decode())] = Header(kind, int(size[0]))
        if sum(header.size for header in read.values()) > MAX_UNPACKED_BYTES:
            raise Failed("the pack is too large to be read")
        return read

    def contents(self, ids: Iterable[bytes]) -> Iterator[tuple[bytes, BinaryIO]]:
        listed = list(ids)
        with tempfile.TemporaryFile(dir=self._folder) as output:
            self._run(["cat-file", "--batch"], listed, output)
            output.seek(0)
            for object_id in listed:
                *_, size = output.readline().split()
                if not size.isdigit():
                    continue
                end = output.tell() + int(size)
                yield object_id, io.BufferedReader(Part(output, int(size)))
                output.seek(end + 1)  # behind the line feed

    def packed(self, ids: Iterable[bytes]) -> tuple[Path, Path]:
        """Returns the files of a pack of these objects, and of its index; equal for equal ones."""
        name = self._run(["pack-objects", "--quiet", "--threads=1", str(self._packs / "made")], ids)
        stem = self._packs / f"made-{name.decode().strip()}"
        return stem.with_suffix(".pack"), stem.with_suffix(".idx")

    def _run(
        self, arguments: list[str], ids: Iterable[bytes], output: BinaryIO | None = None
    ) -> bytes:
        git = shutil.which("git")
        if git is None:
            raise Failed("git is not installed")
        with tempfile.TemporaryFile(dir=self._folder) as wanted:
            wanted.writelines(object_id.hex().encode() + b"\n" for object_id in ids)
            wanted.seek(0)
            environment = ENVIRONMENT | {"GIT_DIR": str(self._folder)}
            try:
                done = subprocess.run(
                    [git, *arguments],
                    stdin=wanted,
                    stdout=output or subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    timeout=GIT_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise Failed(f"git took longer than {GIT_TIMEOUT_S} s") from None
        if done.returncode != 0:
            raise Failed(f"git: {done.stderr.decode('utf-8', 'replace').strip()}")
        return done.stdout or b""


class Part(io.RawIOBase):
    """The next `size` bytes of a file."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._source = source
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)[: self._left]  # type: ignore[arg-type]  # as in Inflated
        data = self._source.read(len(view))
        view[: len(data)] = data
        self._left -= len(data)
        return len(data)
