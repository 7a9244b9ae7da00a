"""The inode table: lookup counts and names of the inodes that the kernel knows, in one mapped
file.

    header    magic, free lists, the transport's state, the header of the request that the serving
              loop has read last, the deferred requests
    rows      64 bytes each: number, parent's number, check, lookups, children, name
    index     open addressing over the numbers (`casfs.fuse.inode_index`)

A row has the parent directory and name by which an inode was found; its vnode is rebuilt
from that whenever it is needed (`casfs.fuse.inodes`). So a million inodes cost some 80 bytes
each, and a worker can be replaced: its successor gets the descriptor, and with it the table.
The file is anonymous memory and sparse: room for the largest table costs nothing, and freed
pages go back to the kernel.

A row lives as long as the kernel knows the inode or one below it (`children`). `check` is the
second half of the vnode's key: it distinguishes two keys with one number. One process writes at a
time. It may be killed between any two stores: a row is complete before the index leads to it,
and counts err on the high side.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from casfs.fuse.inode_index import (
    FILE_BYTES,
    MAX_SLOTS,
    MIN_POWER,
    ROWS_AT,
    SLOT_BYTES,
    InodeIndex,
    bounds,
)

MAGIC = b"casfs inodes 1\0\0"
HEADER = struct.Struct("<16sQB7x")  # magic, used slots, power of the index
FREE = struct.Struct("<8I")  # heads of the lists of free runs, by their length in slots
FREE_AT = 64
TRANSPORT_STATE_AT = 1024
STATE_LENGTH = struct.Struct("<H")
REQUEST_HEADER_AT = 1536
REQUEST_HEADER_BYTES = 40
DEFERRED_AT = 2048
ROW = struct.Struct("<QQQIIH")  # number, parent, check, lookups, children, name's length
NUMBERS = struct.Struct("<QQ")  # number, parent
FREE_RUN = struct.Struct("<I")
COUNTS = struct.Struct("<II")
COUNTS_AT = 24
NAME_AT = ROW.size
FIRST_NAME_BYTES = SLOT_BYTES - NAME_AT  # of a name, in its first slot
ROOT = 1
COMPACT_SLOTS = 4096  # a table of fewer used slots is not worth compacting


class Inode(NamedTuple):
    """A row. `parent` is 0 for the root."""

    ino: int
    parent: int
    check: int
    lookups: int
    children: int
    name: bytes


class ListedInode(NamedTuple):
    """An inode of a listing. `is_new`: it is not in the table."""

    ino: int
    check: int
    name: bytes
    is_new: bool


class InodeTable:
    def __init__(self, fd: int | None = None) -> None:
        """A new table, or that of a predecessor. Takes over `fd`."""
        self.fd = os.memfd_create("casfs-inodes") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, FILE_BYTES)
        self._map = mmap.mmap(self.fd, FILE_BYTES)
        self._used = 1
        power = MIN_POWER
        if fd is not None:
            magic, self._used, power = HEADER.unpack_from(self._map)
            if magic != MAGIC:
                raise ValueError("not an inode table")
        request_end = REQUEST_HEADER_AT + REQUEST_HEADER_BYTES
        self.request_header = memoryview(self._map)[REQUEST_HEADER_AT:request_end]
        self.deferred = memoryview(self._map)[DEFERRED_AT:ROWS_AT].cast("Q")
        self._free: list[int] = list(FREE.unpack_from(self._map, FREE_AT))
        self._index = InodeIndex(self._map, power)
        self._find = self._index.find
        self._count = sum(1 for _ in self._index.slots())
        if fd is None:
            self._store_header()
            self.add_lookup(ROOT, 0, parent=0, name=b"")

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        self._index.close()
        self.request_header.release()
        self.deferred.release()
        self._map.close()
        os.close(self.fd)

    @property
    def transport_state(self) -> bytes:
        """What the transport has left for its successor."""
        (length,) = STATE_LENGTH.unpack_from(self._map, TRANSPORT_STATE_AT)
        start = TRANSPORT_STATE_AT + STATE_LENGTH.size
        return self._map[start : start + length]

    @transport_state.setter
    def transport_state(self, data: bytes) -> None:
        end = TRANSPORT_STATE_AT + STATE_LENGTH.size + len(data)
        self._map[TRANSPORT_STATE_AT:end] = STATE_LENGTH.pack(len(data)) + data

    # -- inodes -------------------------------------------------------------------------------

    def get(self, ino: int) -> Inode | None:
        slot = self._find(ino)
        return self._read(slot) if slot else None

    def snapshot(self) -> list[Inode]:
        """Returns the rows. Another thread may change the table meanwhile: a row that it moves just
        then may be wrong, or missing."""
        inodes = []
        slots: list[int] = []
        while not slots:
            with suppress(ValueError):  # the index has just been replaced by a larger one
                slots = list(self._index.slots())
        for slot in slots:
            with suppress(struct.error, IndexError):
                inodes.append(self._read(slot))
        return inodes

    def check(self, ino: int) -> int | None:
        """Returns the check of an inode; None if it is not in the table."""
        slot = self._find(ino)
        if not slot:
            return None
        check: int = ROW.unpack_from(self._map, self._at(slot))[2]
        return check

    def add_lookup(self, ino: int, check: int, parent: int, name: bytes) -> None:
        """Counts one lookup of `ino`, found as `name` in `parent`. Raises OSError if the table
        is full."""
        slot = self._find(ino)
        if not slot:
            self._add(Inode(ino, parent, check=check, lookups=1, children=0, name=name))
            return
        row_offset = ROWS_AT + slot * SLOT_BYTES
        if NUMBERS.unpack_from(self._map, row_offset)[1] != parent and ino != ROOT:
            row_offset = self._at(self._move(slot, parent, name))
        lookups, children = COUNTS.unpack_from(self._map, row_offset + COUNTS_AT)
        COUNTS.pack_into(self._map, row_offset + COUNTS_AT, lookups + 1, children)

    def add_lookups(self, parent: int, inodes: Sequence[ListedInode]) -> None:
        """Counts one lookup of each of these entries of `parent`; as `add_lookup`, and faster."""
        new = [inode for inode in inodes if inode.is_new]
        if self._used + sum(_slots(len(inode.name)) for inode in new) > MAX_SLOTS:
            for inode in inodes:  # there may be free ones
                self.add_lookup(inode.ino, inode.check, parent, inode.name)
            return
        while (self._count + len(new)) * 2 > self._index.mask:
            old = self._index.resize(self._index.power + 1)
            self._store_header()
            self._discard(*old)
        # First: in a worker that is killed before the end of this it is too high, not too low.
        self._add_children(parent, len(new))
        rows = self._map
        add_to_index = self._index.add
        for (ino, check, name, _), slot in zip(new, self._allocate_all(new), strict=True):
            row_offset = ROWS_AT + slot * SLOT_BYTES
            rows[row_offset : row_offset + NAME_AT + len(name)] = (
                ROW.pack(ino, parent, check, 1, 0, len(name)) + name
            )
            add_to_index(ino, slot)
        self._count += len(new)
        for inode in inodes:
            if not inode.is_new:
                self.add_lookup(inode.ino, inode.check, parent, inode.name)

    def forget(self, ino: int, lookups: int) -> list[int]:
        """Subtracts `lookups`; returns the numbers of the inodes that were removed."""
        slot = self._find(ino)
        if not slot or ino == ROOT:
            return []
        counts_offset = self._at(slot) + COUNTS_AT
        before, children = COUNTS.unpack_from(self._map, counts_offset)
        left = max(before - lookups, 0)
        COUNTS.pack_into(self._map, counts_offset, left, children)
        removed = [] if left or children else self._remove(slot)
        if removed and self._used > COMPACT_SLOTS and self._count * 8 < self._used:
            self._compact()
        return removed

    def _remove(self, slot: int) -> list[int]:
        """Removes a row, and the directories above it that only its child count kept alive."""
        removed = []
        while slot:
            inode = self._read(slot)
            self._index.remove(inode.ino)
            self._release(slot, len(inode.name))
            self._count -= 1
            removed.append(inode.ino)
            slot = self._remove_child(inode.parent)
        return removed

    def _remove_child(self, parent: int) -> int:
        """Decrements the child count; returns the parent's slot if it is to be removed, else 0."""
        slot = self._find(parent)
        if not slot:
            return 0
        counts_offset = self._at(slot) + COUNTS_AT
        lookups, children = COUNTS.unpack_from(self._map, counts_offset)
        COUNTS.pack_into(self._map, counts_offset, lookups, max(children - 1, 0))
        return slot if lookups == 0 and children <= 1 and parent != ROOT else 0

    def _add_children(self, parent: int, count: int) -> None:
        slot = self._find(parent)
        if slot:
            counts_offset = self._at(slot) + COUNTS_AT
            lookups, children = COUNTS.unpack_from(self._map, counts_offset)
            COUNTS.pack_into(self._map, counts_offset, lookups, children + count)

    def _add(self, inode: Inode) -> None:
        if (self._count + 1) * 2 > self._index.mask:
            old = self._index.resize(self._index.power + 1)
            self._store_header()
            self._discard(*old)
        slot = self._allocate(_slots(len(inode.name)))
        self._write(slot, inode)
        self._add_children(inode.parent, 1)
        self._index.add(inode.ino, slot)
        self._count += 1

    def _move(self, slot: int, parent: int, name: bytes) -> int:
        """The inode was found in another directory: its row names that one from now on.
        Returns its slot."""
        inode = self._read(slot)
        self._add_children(parent, 1)
        moved = inode._replace(parent=parent, name=name)
        if _slots(len(name)) == _slots(len(inode.name)):
            self._write(slot, moved)
        else:
            new_slot = self._allocate(_slots(len(name)))
            self._write(new_slot, moved)
            self._index.replace(inode.ino, new_slot)
            self._release(slot, len(inode.name))
            slot = new_slot
        emptied = self._remove_child(inode.parent)
        if emptied:
            self._remove(emptied)
        return slot

    # -- rows and their slots -----------------------------------------------------------------

    def _read(self, slot: int) -> Inode:
        row_offset = self._at(slot)
        ino, parent, check, lookups, children, length = ROW.unpack_from(self._map, row_offset)
        name = self._map[row_offset + NAME_AT : row_offset + NAME_AT + length]
        return Inode(ino, parent, check=check, lookups=lookups, children=children, name=name)

    def _write(self, slot: int, inode: Inode) -> None:
        row_offset = self._at(slot)
        self._map[row_offset : row_offset + NAME_AT + len(inode.name)] = (
            ROW.pack(*inode[:5], len(inode.name)) + inode.name
        )

    @staticmethod
    def _at(slot: int) -> int:
        return ROWS_AT + slot * SLOT_BYTES

    def _allocate(self, count: int) -> int:
        """Returns the first of a run of free slots. Raises OSError (ENFILE)."""
        slot = self._free[count]
        if slot:
            (self._free[count],) = FREE_RUN.unpack_from(self._map, self._at(slot))
            FREE.pack_into(self._map, FREE_AT, *self._free)
            return slot
        slot = self._used
        if slot + count > MAX_SLOTS:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        self._used += count
        self._store_header()
        return slot

    def _allocate_all(self, inodes: Sequence[ListedInode]) -> list[int]:
        """Returns the first slot of each; there are enough."""
        if any(self._free):
            return [self._allocate(_slots(len(inode.name))) for inode in inodes]
        slots: list[int] = []
        used = self._used
        for inode in inodes:
            slots.append(used)
            used += _slots(len(inode.name))
        self._used = used
        self._store_header()
        return slots

    def _release(self, slot: int, name_length: int) -> None:
        count = _slots(name_length)
        FREE_RUN.pack_into(self._map, self._at(slot), self._free[count])
        self._free[count] = slot
        FREE.pack_into(self._map, FREE_AT, *self._free)

    def _compact(self) -> None:
        """Moves the few remaining rows to the front, and frees the rest of the memory."""
        inodes = [self._read(slot) for slot in self._index.slots()]
        self._free = [0] * len(self._free)
        FREE.pack_into(self._map, FREE_AT, *self._free)
        old_end = self._at(self._used)
        old_power = self._index.power
        self._index.reset(max(MIN_POWER, (len(inodes) * 4).bit_length()))
        self._used = 1
        for inode in inodes:
            slot = self._allocate(_slots(len(inode.name)))
            self._write(slot, inode)
            self._index.add(inode.ino, slot)
        self._store_header()
        self._discard(self._at(self._used), old_end)
        if self._index.power != old_power:
            self._discard(*bounds(old_power))

    def _discard(self, start: int, end: int) -> None:
        """Frees whole pages of the file; they read as zeros."""
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = end // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            self._map.madvise(mmap.MADV_REMOVE, start, end - start)

    def _store_header(self) -> None:
        HEADER.pack_into(self._map, 0, MAGIC, self._used, self._index.power)


def _slots(name_length: int) -> int:
    if name_length <= FIRST_NAME_BYTES:
        return 1
    return 1 - (FIRST_NAME_BYTES - name_length) // SLOT_BYTES
