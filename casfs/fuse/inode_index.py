"""The hash index of the inode table: from inode numbers to slots, by open addressing.

It is part of the table's mapped file; each power of two has a region of its own, so that a
rebuilt index is complete before the header names it. `FILE_BYTES` and the offsets here are the
layout of that file.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterable

ROWS_AT = 4096
SLOT_BYTES = 64
MAX_SLOTS = 1 << 24
MIN_POWER = 10
MAX_POWER = 25
INDEX_AT = ROWS_AT + MAX_SLOTS * SLOT_BYTES
FILE_BYTES = INDEX_AT + (8 << MAX_POWER)
NUMBER = struct.Struct("<Q")  # a row begins with its inode number


class InodeIndex:
    """`power`: of the number of places."""

    def __init__(self, mapped: mmap.mmap, power: int) -> None:
        self.power = power
        self._map = mapped
        self._places = self._view(power)
        self.mask = (1 << power) - 1

    def close(self) -> None:
        self._places.release()

    def slots(self) -> Iterable[int]:
        return [slot for slot in self._places if slot]

    def find(self, ino: int) -> int:
        """Returns the slot of an inode number; 0 if it is not in the table."""
        places = self._places
        mask = self.mask
        rows = self._map
        bucket = ino & mask
        while slot := places[bucket]:
            if NUMBER.unpack_from(rows, ROWS_AT + slot * SLOT_BYTES)[0] == ino:
                return slot
            bucket = (bucket + 1) & mask
        return 0

    def add(self, ino: int, slot: int) -> None:
        """`ino` must not be in the index."""
        mask = self.mask
        bucket = ino & mask
        while self._places[bucket]:
            bucket = (bucket + 1) & mask
        self._places[bucket] = slot

    def replace(self, ino: int, slot: int) -> None:
        """Changes the slot of an inode number, whose old row must still be intact."""
        self._places[self._place(ino)] = slot

    def remove(self, ino: int) -> None:
        """Removes a number, and moves the later ones of its probe sequence up."""
        places = self._places
        mask = self.mask
        hole = self._place(ino)
        bucket = hole
        while True:
            bucket = (bucket + 1) & mask
            slot = places[bucket]
            if not slot:
                break
            wanted = self._ino_at(slot) & mask
            if (bucket - wanted) & mask >= (bucket - hole) & mask:
                places[hole] = slot
                hole = bucket
        places[hole] = 0

    def resize(self, power: int) -> tuple[int, int]:
        """Rebuilds the index in the region of `power`; returns the old region's bounds, to be
        discarded once the header names the new one. Raises OSError (ENFILE)."""
        if power > MAX_POWER:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        slots = self.slots()
        old_power = self.power
        self.reset(power)
        for slot in slots:
            self.add(self._ino_at(slot), slot)
        return bounds(old_power)

    def reset(self, power: int) -> None:
        """Empties the region of `power`, and uses it from now on."""
        start, end = bounds(power)
        self._map[start:end] = bytes(end - start)
        self._places.release()
        self._places = self._view(power)
        self.power = power
        self.mask = (1 << power) - 1

    def _view(self, power: int) -> memoryview:
        start, end = bounds(power)
        return memoryview(self._map)[start:end].cast("I")

    def _place(self, ino: int) -> int:
        mask = self.mask
        bucket = ino & mask
        while self._ino_at(self._places[bucket]) != ino:
            bucket = (bucket + 1) & mask
        return bucket

    def _ino_at(self, slot: int) -> int:
        ino: int = NUMBER.unpack_from(self._map, ROWS_AT + slot * SLOT_BYTES)[0]
        return ino


def bounds(power: int) -> tuple[int, int]:
    """Returns the start and end of the region for `power`; disjoint for any two powers."""
    return INDEX_AT + (4 << power), INDEX_AT + (8 << power)
