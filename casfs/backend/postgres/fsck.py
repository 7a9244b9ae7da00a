"""fsck's view of a shared store: rows and packs as the servers have them, no cache of this machine.

`verify` is called in the order of arrival, so rows are read ahead, and the members of a pack come
one after the other: each byte of it is fetched once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import BinaryIO, cast

from casfs.backend.pack_files import PieceStream
from casfs.backend.postgres.connection import Pool, Row
from casfs.backend.purge_marks import verified
from casfs.backend.sqlite_statements import BATCH_ROWS, key_of, parse_hash
from casfs.digest import BlobHash, Digest, hash_stream
from casfs.errors import Corrupt, CorruptBlob, Failed, NotFound
from casfs.object_storage.interface import ObjectStorage
from casfs.packs.reader import PackReader, ReadAt, read_index
from casfs.system import interruption

AHEAD_BYTES = 8 << 20  # of rows
WINDOW_BYTES = 4 << 20  # of a request
PACKS = "packs/"
AHEAD = f"""
SELECT hash, size, data, member, name, whole FROM (
  SELECT b.hash, b.size, b.data, b.member, p.name, p.size AS whole,
    sum(CASE WHEN b.pack IS NULL THEN b.size ELSE 0 END) OVER (ORDER BY b.id) AS total
  FROM casfs.blobs b LEFT JOIN casfs.packs p ON p.id = b.pack
  WHERE b.id >= (SELECT id FROM casfs.blobs WHERE hash = %b) ORDER BY b.id LIMIT {BATCH_ROWS}
) ahead WHERE total <= {AHEAD_BYTES} OR hash = %b
"""
SIZES = """
SELECT name, size FROM casfs.packs WHERE name = ANY(%b::bytea[])
UNION ALL SELECT name, size FROM casfs.strays WHERE name = ANY(%b::bytea[])
"""
QUARANTINE = """
WITH gone AS (DELETE FROM casfs.blobs WHERE hash = %b RETURNING *)
INSERT INTO casfs.quarantine (hash, type, data, pack, member)
SELECT g.hash, g.type, g.data, p.name, g.member FROM gone g LEFT JOIN casfs.packs p ON p.id = g.pack
"""


class PostgresRepair:
    """The methods of `casfs.backend.capabilities.Repairable`. Not thread-safe."""

    def __init__(self, pool: Pool, connect: Callable[[], ObjectStorage]) -> None:
        self._pool = pool
        self._connect = connect
        self._ahead: dict[bytes, Row] = {}
        self._open: tuple[bytes, PackReader] | None = None
        self._has_found = False  # an object of this store: so its place is right

    def faults(self) -> Iterator[str]:
        storage = self._connect()
        objects = storage.list(PACKS)
        while batch := {key: metadata.size for key, metadata in islice(objects, BATCH_ROWS)}:
            names = {key: parse_hash(key[len(PACKS) : -len(".pack")]) for key in batch}
            keys = [name for name in names.values() if name is not None]
            sizes: dict[bytes, int] = dict(self._pool.run(SIZES, [keys, keys]))
            self._has_found |= bool(sizes)
            for key, size in batch.items():
                expected = sizes.get(names[key] or b"")
                if expected is None and storage.head(key):  # else gc has deleted it meanwhile
                    yield f"{storage.place(key)}: no row has it; a foreign object, or damage"
                elif expected not in (None, size):
                    yield f"{storage.place(key)}: it has {size} bytes instead of {expected}"

    def verify(self, hash: str) -> None:
        key = key_of(hash)
        if key not in self._ahead:
            self._ahead = {row[0]: row for row in self._pool.run(AHEAD, [key, key])}
        if (row := self._ahead.pop(key, None)) is None:
            raise NotFound(f"no blob {hash} in this store")
        _, size, data, member, pack, whole = row
        if data is not None:
            if len(verified(hash, data)) != size:
                raise CorruptBlob(f"blob {hash}: its row is not {size} bytes long")
            return
        if pack is None:
            raise CorruptBlob(f"blob {hash}: its pack has no row")
        try:
            reader = self._reader(pack, whole)
            if reader.index.member(member).hash != hash:
                raise Corrupt(f"its row names another member of pack {pack.hex()}")
            with cast(BinaryIO, PieceStream(reader.pieces(member))) as source:
                if hash_stream(source, interruption.check) != Digest(BlobHash(hash), size):
                    raise Corrupt(f"its bytes in pack {pack.hex()} do not hash to its name")
        except NotFound as error:
            error_type = NotFound if self._has_found else Failed
            raise error_type(f"blob {hash}: its pack is missing: {error}") from None
        except Corrupt as error:
            raise CorruptBlob(f"blob {hash}: {error}") from None

    def _reader(self, pack: bytes, size: int) -> PackReader:
        if self._open is None or self._open[0] != pack:
            read_at = _windows(self._connect(), f"{PACKS}{pack.hex()}.pack", size)
            self._open = pack, PackReader(read_index(read_at, size), read_at)
            if self._open[1].index.name != pack.hex():
                raise Corrupt(f"pack {pack.hex()} is another one")
            self._has_found = True
        return self._open[1]

    def quarantine(self, hash: str) -> None:
        self._ahead = {}
        self._open = None
        self._pool.run(QUARANTINE, [key_of(hash)])


def _windows(storage: ObjectStorage, key: str, total: int) -> ReadAt:
    """Returns a function that reads an object from front to back by few requests."""
    start = 0
    data = b""

    def read_at(offset: int, size: int) -> bytes:
        nonlocal start, data
        if not start <= offset <= offset + size <= start + len(data):
            start = offset
            data = b""
            data = storage.get_range(key, offset, min(total - offset, max(size, WINDOW_BYTES)))
        return data[offset - start : offset - start + size]

    return read_at
