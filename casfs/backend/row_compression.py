"""Compression of node rows: zstd, with a dictionary of the node's type where there is one.

    row = bytes of the node | 0xFE, number of a dictionary (4 bytes, big endian; 0: none), frame

A node is JSON, so 0xFE never begins one; whatever else does is compressed. The caller verifies the
hash of what it reads, so nothing of a row need be trusted. A dictionary is a blob: row `number` of
the table `dictionaries` holds its hash, the head `dictionaries/<number>` keeps it alive for ever,
since rows may use it. `casfs.backend.recompression` trains them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from casfs.backend.sqlite_connection import Connection, Database
from casfs.errors import Corrupt
from casfs.system.zstd import Dictionary

MAX_NODE_BYTES = 256 << 20
MIN_BYTES = 128  # a shorter row is left as it is
DICTIONARY_REFRESH_S = 60.0  # until a writer looks for newer dictionaries
MAGIC = b"\xfe"
HEADER_BYTES = 5
CURRENT = "SELECT type, max(id) FROM dictionaries GROUP BY type"


class RowCompression:
    def __init__(self, db: Database, read_blob: Callable[[str], bytes]) -> None:
        """`read_blob` returns the verified bytes of a plain blob."""
        self._db = db
        self._read_blob = read_blob
        self._loaded: dict[int, Dictionary] = {}
        self._current: dict[int, int] = {}  # row of `types`: number of its newest dictionary
        self._refresh_at = 0.0

    def decode(self, row: bytes) -> bytes:
        """Returns the bytes of a node's row, not verified. Raises Corrupt."""
        if not isinstance(row, bytes) or row[:1] != MAGIC:
            return row
        number = int.from_bytes(row[1:HEADER_BYTES], "big")
        return self._dictionary(number).decompress(row[HEADER_BYTES:], MAX_NODE_BYTES)

    def encode(self, db: Connection, data: bytes, type_id: int) -> bytes:
        """Returns the row of a node of a type (a row of `types`): the shorter form."""
        ambiguous = data[:1] == MAGIC
        if len(data) < MIN_BYTES and not ambiguous:
            return data
        return self.compress(data, self._newest(db, type_id), ambiguous)

    def compress(self, data: bytes, number: int, forced: bool = False) -> bytes:
        """Returns the compressed row, or `data` where that is not longer unless `forced`."""
        row = (
            MAGIC
            + number.to_bytes(HEADER_BYTES - 1, "big")
            + self._dictionary(number).compress(data)
        )
        return row if len(row) < len(data) or forced else data

    def refresh(self) -> None:
        """Looks for newer dictionaries at the next row."""
        self._refresh_at = 0.0

    def _newest(self, db: Connection, type_id: int) -> int:
        now = time.monotonic()
        if now > self._refresh_at:
            self._current = dict(db.execute(CURRENT).fetchall())
            self._refresh_at = now + DICTIONARY_REFRESH_S
        return self._current.get(type_id, 0)

    def _dictionary(self, number: int) -> Dictionary:
        found = self._loaded.get(number)
        if found is None:
            data = None if number == 0 else self._read_blob(self._hash(number))
            found = self._loaded[number] = Dictionary(data)
        return found

    def _hash(self, number: int) -> str:
        with self._db.read() as db:
            row = db.execute("SELECT hash FROM dictionaries WHERE id = ?", (number,)).fetchone()
        if row is None or not isinstance(row[0], bytes):
            raise Corrupt(f"dictionary {number} of a row is missing")
        return row[0].hex()
