"""Encodes extended attributes: shared ones once per image, the others at each inode.

At an inode: a header, the ids of shared ones, its own entries. The format has numbers for name
prefixes, so only names with these prefixes can be stored. POSIX ACLs, which have a format of
their own, are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from casfs.errors import Invalid
from casfs.native.erofs.layout import START, XATTR, XATTRS
from casfs.native.erofs.model import Xattrs

PREFIXES = {b"user.": 1, b"trusted.": 4, b"security.": 6}
MAX_VALUE = 0xFFFF  # bytes
MAX_SHARED = 0xFF  # of one inode
MAX_WORDS = 0xFFFF  # of 4 bytes at one inode; the header counts as one
MAX_LIST_BYTES = 1 << 16  # names of one inode with a zero after each; limit of listxattr(2)


class Table:
    """`data`: the shared entries, which go to `offset`, a multiple of 4."""

    def __init__(self, shared: Iterable[tuple[bytes, bytes]], offset: int) -> None:
        self.data = bytearray()
        self._ids: dict[tuple[bytes, bytes], bytes] = {}
        for pair in shared:
            if pair not in self._ids:
                self._ids[pair] = START.pack((offset + len(self.data)) // 4)
                self.data += _entry(*pair)

    def encode(self, xattrs: Xattrs) -> bytes:
        """Returns the bytes at an inode. Raises Invalid."""
        if not xattrs:
            return b""
        ids = []
        own = []
        for pair in xattrs:
            id = self._ids.get(pair)
            if id is None:
                own.append(_entry(*pair))
            else:
                ids.append(id)
        if len(xattrs) > 1 and len({name for name, _ in xattrs}) < len(xattrs):
            raise Invalid("a file has an extended attribute twice")
        if len(ids) > MAX_SHARED:
            raise Invalid(f"a file has {len(ids)} shared extended attributes, {MAX_SHARED} may be")
        encoded = XATTRS.pack(0, len(ids)) + b"".join(ids) + b"".join(own)
        if (
            len(xattrs) > MAX_LIST_BYTES >> 8
            and sum(len(name) + 1 for name, _ in xattrs) > MAX_LIST_BYTES
        ):
            raise Invalid(f"the names of {len(xattrs)} extended attributes are too much to list")
        if words(encoded) > MAX_WORDS:
            raise Invalid(f"extended attributes of {len(encoded)} bytes are too much for one file")
        return encoded


def words(encoded: bytes) -> int:
    """Returns the size as an inode records it."""
    return (len(encoded) - XATTRS.size) // 4 + 1 if encoded else 0


def _entry(name: bytes, value: bytes) -> bytes:
    index, suffix = _split_prefix(name)
    if len(value) > MAX_VALUE:
        raise Invalid(f"the extended attribute {name!r} of {len(value)} bytes is over {MAX_VALUE}")
    entry = XATTR.pack(len(suffix), index, len(value)) + suffix + value
    return entry + bytes(-len(entry) % 4)


@lru_cache(maxsize=1000)
def _split_prefix(name: bytes) -> tuple[int, bytes]:
    for prefix, index in PREFIXES.items():
        suffix = name.removeprefix(prefix)
        if suffix != name and suffix and len(name) <= 255 and b"\0" not in suffix:
            return index, suffix
    raise Invalid(f"an extended attribute {name!r} cannot be stored")
