"""What is brought into the cache together with a node, since it will be read next."""

from __future__ import annotations

import re

from casfs.backend.disk_blobs import DiskBlobs
from casfs.backend.postgres.connection import Pool, Row
from casfs.backend.sqlite_statements import META_KEY
from casfs.digest import hash_bytes

MAX_NODES = 20_000  # with one that is asked for
MAX_BYTES = 64 << 20
MAX_SHORT_BYTES = 64 << 10
ROUNDS = 2  # a step's start, and what that refers to
HASHES = re.compile(rb'"([0-9a-f]{64})"(?!,"size_bytes":\d+},"is_executable":)')  # not of files
CONTENT = "SELECT hash, size, type, data, pack FROM casfs.blobs WHERE hash = ANY(%b::bytea[])"
SAME = f"{CONTENT} AND type = %b"
SHORT = f"{CONTENT} AND type IS NOT NULL AND size <= %s"


def related(pool: Pool, local: DiskBlobs, rows: list[Row]) -> list[Row]:
    """Returns the rows of what `rows` reach by nodes of their own type (a tree's directories, a
    thread's steps), and of short nodes that all these refer to (a step's text, its agent)."""
    related_rows = _same_type(pool, local, rows)
    newest = [*rows, *related_rows]
    for _ in range(ROUNDS):
        known = {row[0].hex() for row in (*rows, *related_rows)}
        if not (keys := _missing(local, _refs(newest) - known)):
            break
        newest = [row for row in pool.run(SHORT, [keys, MAX_SHORT_BYTES]) if is_sound(*row)]
        related_rows += newest
    return related_rows


def _same_type(pool: Pool, local: DiskBlobs, rows: list[Row]) -> list[Row]:
    below: list[Row] = []
    seen = {row[0].hex() for row in rows}
    size = 0
    for type in {row[2] for row in rows if row[2]}:
        level = [row for row in rows if row[2] == type]
        while level and len(below) < MAX_NODES and size < MAX_BYTES:
            keys = _missing(local, _refs(level) - seen)
            level = pool.run(SAME, [keys, type]) if keys else []
            level = [row for row in level if is_sound(*row)]
            seen.update(row[0].hex() for row in level)
            below += level
            size += sum(row[1] for row in level)
    return below


def _refs(rows: list[Row]) -> set[str]:
    return {text.decode() for row in rows if row[2] for text in HASHES.findall(row[3])}


def _missing(local: DiskBlobs, hashes: set[str]) -> list[bytes]:
    return [bytes.fromhex(hash) for hash in local.missing(hashes)]


def is_sound(key: bytes, size: int, type: bytes | None, data: bytes | None, _: object) -> bool:
    """Returns False for a row whose bytes, size or type are not those of its hash."""
    if data is None:
        return type is None
    return len(data) == size and hash_bytes(data) == key.hex() and len(type or META_KEY) in (0, 32)
