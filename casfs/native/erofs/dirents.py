"""Encodes the content of a directory: blocks of entries in byte order of their names.

Each block has its entries first, 12 bytes each, and then their names without separators; a
block but the last is padded with zeros. `.` and `..` are sorted among the other entries: a name
may come before them.
"""

from __future__ import annotations

from casfs.errors import Invalid
from casfs.native.erofs.layout import DIRENT
from casfs.native.erofs.model import BLOCK, MAX_NAME

PENDING_NID = -1  # filled in when it is known


def check(names: list[bytes]) -> None:
    """`names` are sorted, with `.` and `..` among them. Raises Invalid."""
    before = b""
    for name in names:
        if name <= before:
            raise Invalid(f"the name {name!r} is in a directory twice, or is empty or reserved")
        if len(name) > MAX_NAME:
            raise Invalid(f"the name {name[:20]!r}… is longer than {MAX_NAME} bytes")
        if b"/" in name or b"\0" in name:
            raise Invalid(f"the name {name!r} is not allowed in a directory")
        before = name


def split(names: list[bytes]) -> tuple[list[int], int]:
    """Returns the number of entries of each block, and the size of all."""
    each = DIRENT.size
    used = each * len(names) + sum(map(len, names))
    if used <= BLOCK:
        return [len(names)], used
    counts = []
    count = 0
    used = 0
    for name in names:
        length = each + len(name)
        if used + length > BLOCK:
            counts.append(count)
            count = used = 0
        count += 1
        used += length
    counts.append(count)
    return counts, (len(counts) - 1) * BLOCK + used


def pack(
    names: list[bytes], nids: list[int], types: list[int], counts: list[int]
) -> tuple[bytes, list[int]]:
    """Returns the content, and the offsets of the pending nids in it."""
    parts: list[bytes] = []
    later: list[int] = []
    first = base = 0
    for count in counts:
        end = first + count
        name_offset = DIRENT.size * count
        for index in range(first, end):
            nid = nids[index]
            if nid == PENDING_NID:
                later.append(base + (index - first) * DIRENT.size)
                nid = 0
            parts.append(DIRENT.pack(nid, name_offset, types[index]))
            name_offset += len(names[index])
        parts += names[first:end]
        first = end
        base += BLOCK
        if end < len(names):
            parts.append(bytes(BLOCK - name_offset))
    return b"".join(parts), later
