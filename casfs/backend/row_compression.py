"""Compression of node rows: zstd, with a dictionary of the node's type where there is one.

    row = bytes of the node | 0xFE, number of a dictionary (4 bytes, big endian; 0: none), frame

A node is JSON, so 0xFE never begins one; whatever else does is compressed. The caller verifies the
hash of what it reads, so nothing of a row need be trusted. A dictionary is a blob under the head
`dictionaries/<number>`, whose record names the type; it is kept as long as rows may use it.
`casfs.backend.recompression` trains them. One that holds purged text is retired: no row is written
with it, those that use it are written anew, and then it goes.
"""

from __future__ import annotations

import time

from casfs.backend.protocols import MAX_NODE_BYTES, Blobs, HeadName, Heads
from casfs.backend.sqlite_connection import Connection
from casfs.errors import Corrupt
from casfs.system.zstd import Dictionary

DICTIONARIES = "dictionaries/"
RETIRED = "retired"  # key of the record of a dictionary that no row is written with any more
IN_USE = f"""
SELECT name FROM heads WHERE name >= '{DICTIONARIES}' AND name < 'dictionaries0'
AND instr(record, '"{RETIRED}":true') = 0
"""
MIN_BYTES = 128  # a shorter row is left as it is
MIN_BYTES_ALONE = 512  # the same without a dictionary, which saves little of a short row
REFRESH_S = 60.0  # until a writer looks for newer dictionaries
MAGIC = b"\xfe"
HEADER_BYTES = 5


def head_name(number: int) -> HeadName:
    return HeadName(f"{DICTIONARIES}{number}")


class RowCompression:
    """Reads dictionaries in transactions of its own: only one that is committed is used."""

    def __init__(self, blobs: Blobs, heads: Heads) -> None:
        self._blobs = blobs
        self._heads = heads
        self._loaded: dict[int, Dictionary] = {}
        self._newest: dict[str, int] = {}  # number of a type's newest dictionary
        self._refresh_at = 0.0

    def decode(self, row: bytes) -> bytes:
        """Returns the bytes of a node's row, not verified. Raises Corrupt."""
        if not isinstance(row, bytes) or row[:1] != MAGIC:
            return row
        number = int.from_bytes(row[1:HEADER_BYTES], "big")
        return self._dictionary(number).decompress(row[HEADER_BYTES:], MAX_NODE_BYTES)

    def encode(self, data: bytes, type: str) -> bytes:
        """Returns the row of a node of a type: the shorter form."""
        ambiguous = data[:1] == MAGIC
        if len(data) < MIN_BYTES and not ambiguous:
            return data
        number = self._newest_of(type)
        if number == 0 and len(data) < MIN_BYTES_ALONE and not ambiguous:
            return data
        header = MAGIC + number.to_bytes(HEADER_BYTES - 1, "big")
        row = header + self._dictionary(number).compress(data)
        return row if len(row) < len(data) or ambiguous else data

    def refresh(self) -> None:
        """Looks for newer dictionaries at the next row."""
        self._refresh_at = 0.0

    def confirm(self, db: Connection) -> None:
        """Stops using what was retired since it was looked up. `db`: of the write transaction in
        which rows are encoded."""
        if self._newest:
            in_use = {name for (name,) in db.execute(IN_USE)}
            self._newest = {
                type: number for type, number in self._newest.items() if head_name(number) in in_use
            }

    def _newest_of(self, type: str) -> int:
        """Returns the number of a type's newest dictionary, 0 without one. Cached for a while:
        rows without it are valid, only larger."""
        now_s = time.monotonic()
        if now_s > self._refresh_at:
            self._newest = newest(self._heads)
            self._refresh_at = now_s + REFRESH_S
        return self._newest.get(type, 0)

    def _dictionary(self, number: int) -> Dictionary:
        dictionary = self._loaded.get(number)
        if dictionary is None:
            data = None if number == 0 else self._load(number)
            dictionary = self._loaded[number] = Dictionary(data)
        return dictionary

    def _load(self, number: int) -> bytes:
        head = self._heads.get(head_name(number))
        if head is None:
            raise Corrupt(f"dictionary {number} of a row is missing")
        return self._blobs.get(head.hash).data


def newest(heads: Heads) -> dict[str, int]:
    """Returns the number of the newest dictionary of each type that has one."""
    numbers: dict[str, int] = {}
    for name, head in heads.list(DICTIONARIES):
        number = name.removeprefix(DICTIONARIES)
        type = head.record.get("type")
        if isinstance(type, str) and number.isdecimal() and not head.record.get(RETIRED):
            numbers[type] = max(numbers.get(type, 0), int(number))
    return numbers
