"""The table of inodes that the kernel remembers: one mapped file, and nothing else.

    header    what the file is, where its free slots are, a note of the transport's, and the
              requests that it has taken and not answered
    records   64 bytes each: number, parent's number, check, lookups, children, name
    index     open addressing over the numbers; one region for each power of two

A record says by which name in which directory an inode was found; from that the vnode is
made again whenever it is needed (`casfs.fuse.inodes`), so that a million inodes cost some
80 bytes each and the process that serves them can be replaced: whoever has the descriptor
has the table. The file is anonymous memory and sparse, so room for the largest table costs
nothing, and what is given up is given back to the kernel.

A record lives as long as the kernel knows the inode or something below it (`children`).
`check` is the second half of the vnode's key: two keys with one number are told apart.
One process writes at a time. A writer may be killed between any two stores: records are
complete before the index leads to them, and counts err on the side of keeping.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from typing import NamedTuple

MAGIC = b"casfs inodes 1\0\0"
HEADER = struct.Struct("<16sQB7x")  # magic, used slots, power of the index
FREE = struct.Struct("<8I")  # heads of the lists of free runs, by their length in slots
FREE_AT = 64
NOTE_AT, NOTE = 1024, struct.Struct("<H")  # what a transport wants its successor to know
TAKEN_AT = 2048
RECORDS_AT = 4096
RECORD = struct.Struct("<QQQIIH")  # number, parent, check, lookups, children, name's length
NUMBER = struct.Struct("<Q")
NUMBERS = struct.Struct("<QQ")  # number, parent
FREE_RUN = struct.Struct("<I")
COUNTS = struct.Struct("<II")
COUNTS_AT = 24
NAME_AT = RECORD.size
SLOT = 64
FIRST_NAME = SLOT - NAME_AT  # bytes of a name in its first slot
MOST = 1 << 24  # slots
LEAST_POWER = 10
MOST_POWER = 25
INDEX_AT = RECORDS_AT + MOST * SLOT
SIZE = INDEX_AT + (8 << MOST_POWER)
ROOT = 1
SPARSE = 4096  # used slots from which a table is worth being packed


class Record(NamedTuple):
    """`parent` is 0 for the root."""

    ino: int
    parent: int
    check: int
    lookups: int
    children: int
    name: bytes


class Table:
    def __init__(self, fd: int | None = None) -> None:
        """A new table, or the one of a predecessor. Takes over `fd`."""
        self.fd = os.memfd_create("casfs-inodes") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, SIZE)
        self._map = mmap.mmap(self.fd, SIZE)
        self._live, self._used, self._power = 0, 1, LEAST_POWER
        if fd is not None:
            magic, self._used, self._power = HEADER.unpack_from(self._map)
            if magic != MAGIC:
                raise ValueError("not a table of inodes")
        self.taken = memoryview(self._map)[TAKEN_AT:RECORDS_AT].cast("Q")  # for the transport
        self._free: list[int] = list(FREE.unpack_from(self._map, FREE_AT))
        self._index = self._region(self._power)
        self._mask = (1 << self._power) - 1
        self._live = sum(1 for slot in self._index if slot)
        if fd is None:
            self._store_header()
            self.hold(ROOT, 0, 0, b"")

    def __len__(self) -> int:
        return self._live

    def close(self) -> None:
        self._index.release()
        self.taken.release()
        self._map.close()
        os.close(self.fd)

    @property
    def note(self) -> bytes:
        """What the transport has left for its successor."""
        (length,) = NOTE.unpack_from(self._map, NOTE_AT)
        return self._map[NOTE_AT + NOTE.size : NOTE_AT + NOTE.size + length]

    @note.setter
    def note(self, data: bytes) -> None:
        self._map[NOTE_AT : NOTE_AT + NOTE.size + len(data)] = NOTE.pack(len(data)) + data

    # -- records ------------------------------------------------------------------------------

    def get(self, ino: int) -> Record | None:
        slot = self._find(ino)
        return self._record(slot) if slot else None

    def check(self, ino: int) -> int | None:
        """The check of a number that is held."""
        slot = self._find(ino)
        if not slot:
            return None
        check: int = RECORD.unpack_from(self._map, self._at(slot))[2]
        return check

    def hold(self, ino: int, check: int, parent: int, name: bytes) -> None:
        """The kernel was told of `ino` once more, as `name` in `parent`. Raises OSError when
        the table is full."""
        slot = self._find(ino)
        if not slot:
            self._add(Record(ino, parent, check, 1, 0, name))
            return
        at = RECORDS_AT + slot * SLOT
        if NUMBERS.unpack_from(self._map, at)[1] != parent and ino != ROOT:
            at = self._at(self._move(slot, parent, name))
        lookups, children = COUNTS.unpack_from(self._map, at + COUNTS_AT)
        COUNTS.pack_into(self._map, at + COUNTS_AT, lookups + 1, children)

    def forget(self, ino: int, lookups: int) -> list[int]:
        """The kernel gives back `lookups` of its counts; returns the numbers that went."""
        slot = self._find(ino)
        if not slot or ino == ROOT:
            return []
        at = self._at(slot) + COUNTS_AT
        held, children = COUNTS.unpack_from(self._map, at)
        left = max(held - lookups, 0)
        COUNTS.pack_into(self._map, at, left, children)
        gone = [] if left or children else self._drop(slot)
        if gone and self._used > SPARSE and self._live * 8 < self._used:
            self._pack()
        return gone

    def _drop(self, slot: int) -> list[int]:
        """Remove a record, and the directories above that only it had kept."""
        gone = []
        while slot:
            record = self._record(slot)
            self._unlink(record.ino)
            self._release(slot, len(record.name))
            self._live -= 1
            gone.append(record.ino)
            slot = self._let_go(record.parent)
        return gone

    def _let_go(self, parent: int) -> int:
        """One child less; the parent's slot when nothing keeps it any more, else 0."""
        slot = self._find(parent)
        if not slot:
            return 0
        at = self._at(slot) + COUNTS_AT
        lookups, children = COUNTS.unpack_from(self._map, at)
        COUNTS.pack_into(self._map, at, lookups, max(children - 1, 0))
        return slot if lookups == 0 and children <= 1 and parent != ROOT else 0

    def _add(self, record: Record) -> None:
        if (self._live + 1) * 2 > self._mask:
            self._rehash(self._power + 1)
        above = self._find(record.parent)
        slot = self._take(_slots(len(record.name)))
        self._write(slot, record)
        if above:
            self._count_child(above)
        self._link(record.ino, slot)
        self._live += 1

    def _move(self, slot: int, parent: int, name: bytes) -> int:
        """The inode was found in another directory: there it will be looked for from now on."""
        record = self._record(slot)
        above = self._find(parent)
        if above:
            self._count_child(above)
        moved = record._replace(parent=parent, name=name)
        if _slots(len(name)) == _slots(len(record.name)):
            self._write(slot, moved)
        else:
            fresh = self._take(_slots(len(name)))
            self._write(fresh, moved)
            self._index[self._place(record.ino)] = fresh
            self._release(slot, len(record.name))
            slot = fresh
        emptied = self._let_go(record.parent)
        if emptied:
            self._drop(emptied)
        return slot

    def _count_child(self, slot: int) -> None:
        at = self._at(slot) + COUNTS_AT
        lookups, children = COUNTS.unpack_from(self._map, at)
        COUNTS.pack_into(self._map, at, lookups, children + 1)

    def _record(self, slot: int) -> Record:
        at = self._at(slot)
        ino, parent, check, lookups, children, length = RECORD.unpack_from(self._map, at)
        name = self._map[at + NAME_AT : at + NAME_AT + length]
        return Record(ino, parent, check, lookups, children, name)

    def _write(self, slot: int, record: Record) -> None:
        at = self._at(slot)
        self._map[at : at + NAME_AT + len(record.name)] = (
            RECORD.pack(*record[:5], len(record.name)) + record.name
        )

    @staticmethod
    def _at(slot: int) -> int:
        return RECORDS_AT + slot * SLOT

    # -- slots --------------------------------------------------------------------------------

    def _take(self, count: int) -> int:
        """A run of free slots."""
        slot = self._free[count]
        if slot:
            (self._free[count],) = FREE_RUN.unpack_from(self._map, self._at(slot))
            FREE.pack_into(self._map, FREE_AT, *self._free)
            return slot
        slot = self._used
        if slot + count > MOST:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        self._used += count
        self._store_header()
        return slot

    def _release(self, slot: int, length: int) -> None:
        count = _slots(length)
        FREE_RUN.pack_into(self._map, self._at(slot), self._free[count])
        self._free[count] = slot
        FREE.pack_into(self._map, FREE_AT, *self._free)

    def _pack(self) -> None:
        """Move the few records that are left together, and give the rest of the memory back."""
        kept = [self._record(slot) for slot in self._index if slot]
        self._free = [0] * len(self._free)
        FREE.pack_into(self._map, FREE_AT, *self._free)
        old_end, old_power = self._at(self._used), self._power
        self._clear(max(LEAST_POWER, (len(kept) * 4).bit_length()))
        self._use(max(LEAST_POWER, (len(kept) * 4).bit_length()))
        self._used = 1
        for record in kept:
            slot = self._take(_slots(len(record.name)))
            self._write(slot, record)
            self._link(record.ino, slot)
        self._store_header()
        self._discard(self._at(self._used), old_end)
        if self._power != old_power:
            self._discard(*self._bounds(old_power))

    # -- the index ----------------------------------------------------------------------------

    def _find(self, ino: int) -> int:
        """The slot of a number; 0 when it is not held."""
        index, mask, numbers = self._index, self._mask, self._map
        place = ino & mask
        while slot := index[place]:
            if NUMBER.unpack_from(numbers, RECORDS_AT + slot * SLOT)[0] == ino:
                return slot
            place = (place + 1) & mask
        return 0

    def _place(self, ino: int) -> int:
        """Where in the index a number is."""
        mask = self._mask
        place = ino & mask
        while self._ino_at(self._index[place]) != ino:
            place = (place + 1) & mask
        return place

    def _link(self, ino: int, slot: int) -> None:
        mask = self._mask
        place = ino & mask
        while self._index[place]:
            place = (place + 1) & mask
        self._index[place] = slot

    def _unlink(self, ino: int) -> None:
        """Take a number out, and move up what stands behind it for want of a better place."""
        index, mask = self._index, self._mask
        hole = self._place(ino)
        place = hole
        while True:
            place = (place + 1) & mask
            slot = index[place]
            if not slot:
                break
            wanted = self._ino_at(slot) & mask
            if (place - wanted) & mask >= (place - hole) & mask:
                index[hole] = slot
                hole = place
        index[hole] = 0

    def _ino_at(self, slot: int) -> int:
        ino: int = NUMBER.unpack_from(self._map, RECORDS_AT + slot * SLOT)[0]
        return ino

    def _rehash(self, power: int) -> None:
        if power > MOST_POWER:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        self._clear(power)
        slots, old_power = [slot for slot in self._index if slot], self._power
        self._use(power)
        for slot in slots:
            self._link(self._ino_at(slot), slot)
        self._store_header()
        self._discard(*self._bounds(old_power))

    def _use(self, power: int) -> None:
        self._index.release()
        self._index, self._power, self._mask = self._region(power), power, (1 << power) - 1

    def _region(self, power: int) -> memoryview:
        start, end = self._bounds(power)
        return memoryview(self._map)[start:end].cast("I")

    @staticmethod
    def _bounds(power: int) -> tuple[int, int]:
        """Disjoint for any two powers."""
        return INDEX_AT + (4 << power), INDEX_AT + (8 << power)

    def _clear(self, power: int) -> None:
        start, end = self._bounds(power)
        self._map[start:end] = bytes(end - start)

    def _discard(self, start: int, end: int) -> None:
        """Give whole pages of the file back; they read as zeros."""
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = end // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            self._map.madvise(mmap.MADV_REMOVE, start, end - start)

    def _store_header(self) -> None:
        HEADER.pack_into(self._map, 0, MAGIC, self._used, self._power)


def _slots(length: int) -> int:
    """How many slots a record with a name of `length` bytes takes."""
    return 1 if length <= FIRST_NAME else 1 - (FIRST_NAME - length) // SLOT
