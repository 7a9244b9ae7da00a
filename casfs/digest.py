"""Digests: the one id space of blobs, nodes and trees.

A hash is BLAKE3-256 in 64 lowercase hex characters; a `Digest` is that hash with the
size in bytes where both are known (seed 004, SPEC-08.10; REAPI's Digest message). This
is the only module that knows the algorithm.

For the type checker a hash says what is stored under it: `BlobHash` any bytes, `NodeHash` a node,
`TreeHash` a `directory` node, the root of a tree. Each converts to the one before; the other way
is spelled out where a value enters (a payload, a record, a person's text). Lookups of one hash
take any `str`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, NewType, Self, TypeGuard

from blake3 import blake3

CHUNK = 1 << 20  # bytes
# One update is what the cores share, so a piece must be long enough to be worth dividing.
LONG_READ_BYTES = 4 << 20
# `$` would also match before a newline at the end.
HEX = re.compile(r"[0-9a-f]{64}\Z")
Hasher = blake3
BlobHash = NewType("BlobHash", str)
NodeHash = NewType("NodeHash", BlobHash)
TreeHash = NewType("TreeHash", NodeHash)
TimesHash = NewType("TimesHash", NodeHash)
# No digest, but a text that is told apart in the same way, by the payloads of every layer.
ThreadId = NewType("ThreadId", str)


class Digest(NamedTuple):
    """`hash`: 64 lowercase hex characters; `size_bytes`: length of the content."""

    hash: BlobHash
    size_bytes: int

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls(hash_bytes(data), len(data))

    def __str__(self) -> str:
        return self.hash


# At run time digests of all kinds are compared by value, so they must be of one class.
if TYPE_CHECKING:

    class NodeDigest(Digest):
        hash: NodeHash

    class TreeDigest(NodeDigest):
        hash: TreeHash

else:
    NodeDigest = TreeDigest = Digest


def hash_bytes(data: bytes | memoryview) -> BlobHash:
    hex_digest = blake3(data).hexdigest()
    return BlobHash(hex_digest)


def hash_stream(source: BinaryIO, check: Callable[[], None] = lambda: None) -> Digest:
    """Returns the digest of the rest of `source`, in constant memory; a long one is hashed on all
    cores, and `check` is called between its pieces."""
    # Not mapped: a program that truncates the file meanwhile would kill this process by SIGBUS.
    first = source.read(CHUNK)
    if len(first) < CHUNK:
        # A raw stream may give less than it has: only an empty read is the end.
        second = source.read(CHUNK)
        if not second:
            return Digest.of(first)
        first += second
    hasher = blake3(first, max_threads=blake3.AUTO)
    size = len(first)
    piece = bytearray(LONG_READ_BYTES)
    view = memoryview(piece)
    # BinaryIO does not promise `readinto`; all streams of casfs have it.
    while count := source.readinto(piece):  # type: ignore[attr-defined]
        hasher.update(view[:count])
        size += count
        check()
    return Digest(BlobHash(hasher.hexdigest()), size)


def is_hash(text: object) -> TypeGuard[BlobHash]:
    # Most texts in records and payloads are not hashes, and comparing the length refuses them in a
    # quarter of the time of the pattern.
    return isinstance(text, str) and len(text) == 64 and HEX.match(text) is not None
