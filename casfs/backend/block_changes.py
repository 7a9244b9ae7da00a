"""Stages a large file as its differences from a stored blob: a block map and a patch.

The two are compared block by block, in one pass that also hashes the file. What is staged is what
was read then, however the file changes meanwhile.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from casfs.backend.block_maps import MIN_BYTES, BlockMap, MappedBlob, Run
from casfs.backend.objects import OBJECT_MODE
from casfs.backend.protocols import Staged
from casfs.digest import BlobHash, Digest, Hasher
from casfs.errors import CorruptBlob
from casfs.packs.layout import BLOCK_BYTES
from casfs.system import interruption
from casfs.system.files import NEW_FILE, os_errors, read_up_to, write_all

MAX_SOURCES = 64  # a reader of the blob opens and verifies each of them
MAX_RUNS = 50_000  # of 12 bytes
PIECE_BYTES = 4 << 20  # compared at once; a multiple of BLOCK_BYTES
PATCH_MAGIC = b"\0casfs patch\0\x92\x4c\xd8\x33"


class _TooDifferent(Exception):
    """More than half of the blocks have changed, or the version before cannot be read."""


@dataclass(slots=True)
class _Patch:
    """Blocks of a blob that its base has not. `temp`: the private file that they go to, made with
    the first; `max_blocks`: more are not worth a map."""

    temp: str
    max_blocks: int
    blocks: int = 0
    _fd: int = -1
    _hasher: Any = field(default_factory=Hasher)

    def add(self, block: bytes | bytearray) -> None:
        """Raises _TooDifferent, Failed."""
        if self.blocks == self.max_blocks:
            raise _TooDifferent
        self.blocks += 1
        self._write(bytes(block).ljust(BLOCK_BYTES, b"\0"))

    def _write(self, data: bytes) -> None:
        with os_errors(f"cannot write {self.temp}"):
            if self._fd < 0:
                self._fd = os.open(self.temp, NEW_FILE, 0o600)
            write_all(self._fd, data)
        self._hasher.update(data)

    def finish(self, hash: str) -> Staged:
        """Returns the patch of the blob of that hash."""
        trailer = PATCH_MAGIC + bytes.fromhex(hash)
        self._write(trailer)
        with os_errors(f"cannot write {self.temp}"):
            os.fchmod(self._fd, OBJECT_MODE)
        size = self.blocks * BLOCK_BYTES + len(trailer)
        return Staged(Digest(BlobHash(self._hasher.hexdigest()), size), data=None, temp=self.temp)

    def close(self, *, is_kept: bool) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            if not is_kept:
                with suppress(OSError):
                    os.unlink(self.temp)


def stage_change(
    source: BinaryIO, size: int, *, base: str, before: BinaryIO, temp: str
) -> Staged | None:
    """Hashes `source`, of `size` bytes or so, and stages what it has other than `base`; None where
    a map is not worth it. `before`: the blob `base`, open at its start; `temp`: the name of a
    private file. What `source` raises is passed on."""
    patch = _Patch(temp, max_blocks=size // BLOCK_BYTES // 2)
    staged = None
    try:
        digest, runs = _compare(source, before, patch)
        own = patch.finish(digest.hash) if patch.blocks else None
        inner = before.block_map if isinstance(before, MappedBlob) else None
        own_hash = None if own is None else own.digest.hash
        block_map = _composed(base, inner, own=own_hash, runs=runs)
        is_short = len(block_map.sources) <= MAX_SOURCES and len(block_map.runs) <= MAX_RUNS
        # A blob that has a block of itself could never be read: it is one that was lost here.
        is_other = digest.hash not in block_map.sources
        if digest.size_bytes >= MIN_BYTES and is_short and is_other:
            encoded = block_map.encode(digest.hash)
            staged = Staged(digest, data=None, block_map=encoded, patch=own)
    except _TooDifferent:
        pass
    finally:
        patch.close(is_kept=staged is not None)
    return staged


def _compare(
    source: BinaryIO, before: BinaryIO, patch: _Patch
) -> tuple[Digest, list[tuple[bool, int, int]]]:
    """Returns the digest of `source`, and its runs: (in the base, first block, blocks)."""
    hasher = Hasher(max_threads=Hasher.AUTO)
    size = 0
    runs: list[tuple[bool, int, int]] = []
    is_last = False
    while not is_last:
        interruption.check()
        piece = read_up_to(source, PIECE_BYTES)
        # A file may grow: what comes behind a piece that was cut would not begin with a block.
        is_last = len(piece) < PIECE_BYTES
        hasher.update(piece)
        old = _base_piece(before, len(piece))
        first = size // BLOCK_BYTES
        size += len(piece)
        # Nearly all pieces are equal, and one comparison of a piece is cheaper than 64 of blocks.
        if piece and piece == old and len(piece) % BLOCK_BYTES == 0:
            _extend(runs, (True, first, len(piece) // BLOCK_BYTES))
            continue
        for start in range(0, len(piece), BLOCK_BYTES):
            block = piece[start : start + BLOCK_BYTES]
            # A last block that is cut is new, so that no map leads behind the end of a source.
            if len(block) == BLOCK_BYTES and block == old[start : start + BLOCK_BYTES]:
                _extend(runs, (True, first + start // BLOCK_BYTES, 1))
            else:
                _extend(runs, (False, patch.blocks, 1))
                patch.add(block)
    return Digest(BlobHash(hasher.hexdigest()), size), runs


def _base_piece(before: BinaryIO, count: int) -> bytes:
    try:
        return read_up_to(before, count)
    except (OSError, CorruptBlob):  # a fault of the version before is none of this one
        raise _TooDifferent from None


def _extend(runs: list[tuple[bool, int, int]], run: tuple[bool, int, int]) -> None:
    in_base, first, count = run
    if runs and runs[-1][0] == in_base and runs[-1][1] + runs[-1][2] == first:
        runs[-1] = (in_base, runs[-1][1], runs[-1][2] + count)
    else:
        runs.append(run)


def _composed(
    base: str, inner: BlockMap | None, own: str | None, runs: list[tuple[bool, int, int]]
) -> BlockMap:
    """Returns the map of those runs. `inner`: the map of `base`, whose sources stand in for it;
    `own`: the patch."""
    pieces: list[tuple[str, int, int]] = []
    starts = [] if inner is None else inner.starts()
    for in_base, first, count in runs:
        if not in_base:
            assert own is not None  # it has this block
            pieces.append((own, first, count))
        elif inner is None:
            pieces.append((base, first, count))
        else:
            pieces += inner.cut(starts, first, count)
    sources = list(dict.fromkeys(piece[0] for piece in pieces))
    numbers = {source: number for number, source in enumerate(sources)}
    runs_of_sources = [Run(numbers[source], first, count) for source, first, count in pieces]
    return BlockMap(sources, runs_of_sources)
