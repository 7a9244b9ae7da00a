"""Large blobs that changed a little, for tests of how they are stored, shown and restored."""

from __future__ import annotations

import io
import random

from casfs.backend.block_maps import BLOCK_BYTES, MIN_BYTES
from casfs.backend.protocols import Staged
from casfs.digest import Digest
from casfs.store.store import Store
from tests.support.packs import backend

FIRST = random.Random(1).randbytes(MIN_BYTES + 5 * BLOCK_BYTES)


def changed(data: bytes, *blocks: int, seed: int = 2) -> bytes:
    """Other bytes somewhere in these blocks."""
    new = bytearray(data)
    chance = random.Random(seed)
    for block in blocks:
        at = block * BLOCK_BYTES + chance.randrange(BLOCK_BYTES - 100)
        new[at : at + 100] = chance.randbytes(100)
    return bytes(new)


def stage_change(store: Store, data: bytes, base: str) -> Staged | None:
    return backend(store).blobs.stage_change(io.BytesIO(data), len(data), base)


def put_change(store: Store, data: bytes, base: str) -> str:
    """Stores a blob as its differences from another; returns its hash."""
    staged = stage_change(store, data, base)
    assert staged is not None
    assert staged.digest == Digest.of(data)
    backend(store).publish([staged])
    assert is_mapped(store, staged.digest.hash)
    return staged.digest.hash


def is_mapped(store: Store, hash: str) -> bool:
    return hash in backend(store).blobs.block_maps([hash])
