"""Extended attributes of an image: those that many inodes have stand once, the rest by each.

By an inode: a header, the ids of shared ones, the entries of its own. The kernel keeps the
beginning of a name as a number, so only these beginnings can be stored. POSIX ACLs, which
have a form of their own, are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from casfs.errors import Invalid
from casfs.native.erofs.layout import START, XATTR, XATTRS
from casfs.native.erofs.model import Xattrs

PREFIXES = {b"user.": 1, b"trusted.": 4, b"security.": 6}
MAX_VALUE = 0xFFFF  # bytes
MOST_SHARED = 0xFF  # of one inode
MOST_WORDS = 0xFFFF  # of 4 bytes by one inode; the header counts as one
MAX_LISTED = 1 << 16  # bytes of the names of one inode, a zero behind each: else no listxattr(2)


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
        """What stands by an inode. Raises Invalid."""
        if not xattrs:
            return b""
        ids, own = [], []
        for pair in xattrs:
            id = self._ids.get(pair)
            if id is None:
                own.append(_entry(*pair))
            else:
                ids.append(id)
        if len(xattrs) > 1 and len({name for name, _ in xattrs}) < len(xattrs):
            raise Invalid("an extended attribute stands twice by one file")
        if len(ids) > MOST_SHARED:
            raise Invalid(f"a file has {len(ids)} shared extended attributes, {MOST_SHARED} may be")
        found = XATTRS.pack(0, len(ids)) + b"".join(ids) + b"".join(own)
        if len(xattrs) > MAX_LISTED >> 8 and sum(len(one) + 1 for one, _ in xattrs) > MAX_LISTED:
            raise Invalid(f"the names of {len(xattrs)} extended attributes are too much to list")
        if words(found) > MOST_WORDS:
            raise Invalid(f"extended attributes of {len(found)} bytes are too much for one file")
        return found


def words(encoded: bytes) -> int:
    """Their size as an inode has it."""
    return (len(encoded) - XATTRS.size) // 4 + 1 if encoded else 0


def _entry(name: bytes, value: bytes) -> bytes:
    index, rest = _short(name)
    if len(value) > MAX_VALUE:
        raise Invalid(f"the extended attribute {name!r} of {len(value)} bytes is over {MAX_VALUE}")
    entry = XATTR.pack(len(rest), index, len(value)) + rest + value
    return entry + bytes(-len(entry) % 4)


@lru_cache(maxsize=1000)
def _short(name: bytes) -> tuple[int, bytes]:
    for prefix, index in PREFIXES.items():
        rest = name.removeprefix(prefix)
        if rest != name and rest and len(name) <= 255 and b"\0" not in rest:
            return index, rest
    raise Invalid(f"an extended attribute {name!r} cannot be stored")
