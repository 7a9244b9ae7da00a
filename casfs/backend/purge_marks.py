"""Marks that stand in the row of a blob in place of its purged bytes.

    PURGED_PREFIX                 purged; a put of the same bytes stores nothing
    PURGED_PREFIX + hash          the same, and readers get the bytes of this blob, its substitute
    AWAITED_MARK                  purged, and allowed again: a put brings the bytes back

Content may look like a mark. So what hashes to the name of its row is content, whatever it is.
"""

from __future__ import annotations

from casfs.digest import Hasher
from casfs.errors import CorruptBlob, Purged

PURGED_PREFIX = b"\0casfs purged\0\x9d\x1e\x52\xc7\x08\xfa"
AWAITED_MARK = b"\0casfs await\0\x3b\x61\xd0\x8e\x17\xa4\xf9"
HASH_BYTES = 32
IS_PURGED = (
    f"(length(data) IN ({len(PURGED_PREFIX)}, {len(PURGED_PREFIX) + HASH_BYTES})"
    f" AND substr(data, 1, {len(PURGED_PREFIX)}) = x'{PURGED_PREFIX.hex()}')"
)
IS_AWAITED = f"(length(data) = {len(AWAITED_MARK)} AND data = x'{AWAITED_MARK.hex()}')"


def purge_mark(substitute: str | None) -> bytes:
    """Returns the mark that names a substitute, or none."""
    return PURGED_PREFIX + bytes.fromhex(substitute or "")


def substitute_of(mark: bytes) -> str | None:
    """Returns the hash in a mark; None where it has none."""
    return mark[len(PURGED_PREFIX) :].hex() or None


def is_purge_mark(data: bytes) -> bool:
    lengths = len(PURGED_PREFIX), len(PURGED_PREFIX) + HASH_BYTES
    return len(data) in lengths and data.startswith(PURGED_PREFIX)


def verified(hash: str, data: bytes) -> bytes:
    """Returns the bytes of a row. Raises Purged for a mark, CorruptBlob where they do not hash to
    the row's name."""
    if isinstance(data, bytes) and Hasher(data).hexdigest() == hash:  # a damaged row may be text
        return data
    if isinstance(data, bytes) and is_purge_mark(data):
        raise Purged(f"blob {hash}: its content was purged", substitute_of(data))
    if data == AWAITED_MARK:
        raise Purged(f"blob {hash}: its content was purged; it may be stored again")
    raise CorruptBlob(f"blob {hash}: its bytes do not hash to its name")
