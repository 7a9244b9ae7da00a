"""The devices of an image: other files, in which files of it have their data.

Their table is behind the superblock, in blocks of its own in front of the inode area. A slot's tag
is the device's name, so what is needed to mount an image is read from it.
"""

from __future__ import annotations

from typing import BinaryIO

from casfs.errors import Corrupt, Invalid
from casfs.native.erofs import layout
from casfs.native.erofs.layout import AT_SUPER, AT_TABLE, DEVICE_SLOT
from casfs.native.erofs.model import BLOCK, Chunks, Device, Extent

MAX_DEVICES = 0xFFFF
MAX_NAME = 64  # bytes


class Table:
    """Devices get their numbers, from 1 on, in the order of `map`."""

    def __init__(self) -> None:
        self._numbers: dict[Device, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def map(self, content: Extent | Chunks | None, size: int) -> tuple[int, bytes]:
        """Returns the chunk format and map of a file; None: it has no data. Raises Invalid."""
        if content is None:
            return layout.chunk_map(size)
        if isinstance(content, Extent):
            return layout.chunk_map(size, self._number(content, size), content.block)
        blocks, extents = content
        if len(extents) != -(-size // (blocks * BLOCK)):
            raise Invalid(f"{size} bytes are not in {len(extents)} chunks of {blocks} blocks")
        places = [(self._number(extent, blocks * BLOCK), extent.block) for extent in extents]
        return layout.chunk_index(blocks, places)

    def _number(self, extent: Extent, size: int) -> int:
        """Returns the number of a device that has `size` bytes there. Raises Invalid."""
        device, block = extent
        if not 0 <= block <= device.blocks - -(-size // BLOCK) <= layout.MAX_BLOCKS:
            raise Invalid(f"{size} bytes at block {block} are not within {device}")
        number = self._numbers.get(device)
        if number is None:
            number = self._numbers[device] = len(self) + 1
            if number > MAX_DEVICES or not 0 < len(device.name.encode()) <= MAX_NAME:
                raise Invalid(f"{device} cannot be the device {number} of an image")
        return number

    def blocks(self) -> bytearray:
        """Returns what precedes the inode area, with the superblock's room; b"" without devices."""
        slots = [DEVICE_SLOT.pack(device.name.encode(), device.blocks) for device in self._numbers]
        front = bytearray(AT_TABLE if slots else 0) + b"".join(slots)
        return front + bytes(-len(front) % BLOCK)


def extent(name: str, size: int, offset: int) -> Extent:
    """Returns a place in a device of that size, all in bytes."""
    return Extent(Device(name, -(-size // BLOCK)), offset // BLOCK)


def read_label(image: BinaryIO) -> bytes:
    """Returns the name of the volume. Raises Corrupt, OSError."""
    head = image.read(AT_TABLE).ljust(AT_TABLE, b"\0")
    magic, *_, label, _, _, _, _, _, _, _, _ = layout.SUPER.unpack_from(head, AT_SUPER)
    if magic != layout.MAGIC:
        raise Corrupt(f"{image.name} is not an image")
    return bytes(label).rstrip(b"\0")


def read(image: BinaryIO) -> list[Device]:
    """Returns the devices that an image needs, in their order. Raises Corrupt, OSError."""
    head = image.read(AT_TABLE).ljust(AT_TABLE, b"\0")
    magic, *_, count, table_slot, _, _, _, _ = layout.SUPER.unpack_from(head, AT_SUPER)
    slots = image.read(count * DEVICE_SLOT.size)
    is_whole = len(slots) == count * DEVICE_SLOT.size
    if (
        magic != layout.MAGIC
        or not is_whole
        or (count and table_slot * DEVICE_SLOT.size != AT_TABLE)
    ):
        raise Corrupt(f"{image.name} is not an image, or its table of devices is cut")
    unpacked_slots = DEVICE_SLOT.iter_unpack(slots)
    return [
        Device(name.rstrip(b"\0").decode("ascii", "replace"), blocks)
        for name, blocks in unpacked_slots
    ]
