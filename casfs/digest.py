"""Digests: the one id space of blobs, nodes and trees.

A hash is BLAKE3-256 in 64 lowercase hex characters; a `Digest` is that hash with the
size in bytes where both are known (seed 004, SPEC-08.10; REAPI's Digest message). This
is the only module that knows the algorithm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import BinaryIO

from blake3 import blake3

CHUNK = 1 << 20
HEX = re.compile(r"[0-9a-f]{64}\Z")
Hasher = blake3


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """`hash`: 64 lowercase hex characters; `size_bytes`: length of the content."""

    hash: str
    size_bytes: int

    @classmethod
    def of(cls, data: bytes) -> Digest:
        return cls(hash_bytes(data), len(data))

    def __str__(self) -> str:
        return self.hash


def hash_bytes(data: bytes | memoryview) -> str:
    return blake3(data).hexdigest()


def hash_stream(source: BinaryIO) -> Digest:
    """Digest of what is left in `source`, read in pieces; memory stays constant."""
    hasher, size = blake3(), 0
    while piece := source.read(CHUNK):
        hasher.update(piece)
        size += len(piece)
    return Digest(hasher.hexdigest(), size)


def is_hash(text: object) -> bool:
    return isinstance(text, str) and HEX.match(text) is not None
