"""Parses the index of a pack. It may come from anywhere: every number is checked before use."""

from __future__ import annotations

from collections.abc import Iterator

from casfs.digest import hash_bytes, is_hash
from casfs.errors import Corrupt
from casfs.packs.layout import (
    COUNTS,
    DICTIONARY,
    FRAME,
    HASH_BYTES,
    HEADER,
    MAGIC,
    MAX_FRAME_BYTES,
    MAX_INDEX_BYTES,
    MEMBER,
    META,
    RAW,
    REFERENCE,
    TARGET,
    TRAILER,
    ZSTD,
    Frame,
    Member,
)


class PackIndex:
    """The index of the pack `name`. `frames`, `members`: how many there are."""

    def __init__(self, name: str, data: bytes, end: int | None = None) -> None:
        """`data`: the index; `end`: its offset in the pack, where that is known, which no frame
        exceeds. Raises Corrupt where the index does not hash to `name`, or contradicts itself."""
        self.name = name
        self.data = data
        self._end = end
        if hash_bytes(data) != name:
            raise Corrupt(f"pack {name}: its index does not hash to its name")
        if len(data) < COUNTS.size:
            raise self._corrupt("its index is cut")
        types, dictionaries, self.frames, self.members = COUNTS.unpack_from(data)
        self._dictionaries = COUNTS.size + types * HASH_BYTES
        self._frames = self._dictionaries + dictionaries * DICTIONARY.size
        self._members = self._frames + self.frames * FRAME.size
        if len(data) != self._members + self.members * MEMBER.size:
            raise self._corrupt("its index has another length than its counts say")
        self.dictionaries = dictionaries
        starts = range(COUNTS.size, self._dictionaries, HASH_BYTES)
        hashes = [data[start : start + HASH_BYTES] for start in starts]
        self._types = [None, *(hash.hex() if any(hash) else META for hash in hashes)]

    def dictionary(self, ordinal: int) -> int:
        """Returns the number of the member that is the dictionary of a frame. Raises Corrupt."""
        if not 1 <= ordinal <= self.dictionaries:
            raise self._corrupt(f"it has no dictionary {ordinal}")
        start = self._dictionaries + (ordinal - 1) * DICTIONARY.size
        (number,) = DICTIONARY.unpack_from(self.data, start)
        return int(number)

    def frame(self, number: int) -> Frame:
        """Raises Corrupt."""
        if not 0 <= number < self.frames:
            raise self._corrupt(f"it has no frame {number}")
        frame = Frame(*FRAME.unpack_from(self.data, self._frames + number * FRAME.size))
        is_outside = self._end is not None and frame.offset + frame.stored > self._end
        is_raw = frame.codec == RAW and frame.stored == frame.size
        is_reference = frame.codec == REFERENCE and frame.stored == TARGET.size
        is_long = max(frame.stored, frame.size) > MAX_FRAME_BYTES
        if is_outside or is_long or not (is_raw or is_reference or frame.codec == ZSTD):
            raise self._corrupt(f"frame {number} cannot be one")
        return frame

    def member(self, number: int) -> Member:
        """Raises Corrupt."""
        if not 0 <= number < self.members:
            raise self._corrupt(f"it has no member {number}")
        start = self._members + number * MEMBER.size
        hash, size, frame, offset, type = MEMBER.unpack_from(self.data, start)
        if type >= len(self._types):
            raise self._corrupt(f"member {number} has no type {type}")
        return Member(hash.hex(), size, frame=frame, offset=offset, type=self._types[type])

    def referred(self, ordinal: int) -> str:
        """Returns the name of the pack to which a reference leads. Raises Corrupt."""
        name = self._types[ordinal] if 0 < ordinal < len(self._types) else None
        if not is_hash(name):
            raise self._corrupt(f"it names no pack {ordinal}")
        return name

    def referred_packs(self) -> set[str]:
        """Returns the names of the other packs whose frames its references stand for."""
        if len(self._types) == 1:
            return set()
        frames = (self.frame(number) for number in range(self.frames))
        ordinals = {frame.dictionary for frame in frames if frame.codec == REFERENCE}
        return {self.referred(ordinal) for ordinal in ordinals if ordinal}

    def offset(self, number: int) -> int:
        """Returns where the frame of a member begins, in a pack without compression its plain
        bytes. Raises Corrupt."""
        if not 0 <= number < self.members:
            raise self._corrupt(f"it has no member {number}")
        _, _, frame, _, _ = MEMBER.unpack_from(self.data, self._members + number * MEMBER.size)
        return self.frame(frame).offset

    def frames_of(self, number: int) -> Iterator[int]:
        """Yields the frames in which a member lies. Raises Corrupt."""
        member = self.member(number)
        frame_number = member.frame
        left = member.offset + member.size
        while left > 0 and frame_number < self.frames:
            yield frame_number
            frame_number, left = frame_number + 1, left - self.frame(frame_number).size

    def check_end(self, size: int) -> int:
        """Returns where the index begins in a pack of `size` bytes. Raises Corrupt where it does
        not end such a pack."""
        offset = size - TRAILER.size - len(self.data)
        if offset < len(HEADER) or self._end not in (None, offset):
            raise self._corrupt(f"it is said to have {size} bytes, which its index contradicts")
        return offset

    def check_extent(self, number: int) -> None:
        """Raises Corrupt for a member that claims more bytes than its frames have."""
        member = self.member(number)
        held = sum(self.frame(frame).size for frame in self.frames_of(number))
        if member.size and held < member.offset + member.size:
            raise self._corrupt(f"member {number} of {member.size} bytes exceeds its frames")

    def _corrupt(self, why: str) -> Corrupt:
        return Corrupt(f"pack {self.name}: {why}")


def read_trailer(data: bytes, total: int) -> tuple[str, int, int]:
    """Returns the name of a pack of `total` bytes, and the offset and size of its index, from the
    last bytes of the pack. Raises Corrupt."""
    if len(data) < TRAILER.size:
        raise Corrupt("not a pack: too short")
    offset, size, name, magic = TRAILER.unpack(data[-TRAILER.size :])
    if magic != MAGIC or size > MAX_INDEX_BYTES:
        raise Corrupt("not a pack: its end is not the end of a pack")
    if offset < len(HEADER) or offset + size + TRAILER.size != total:
        raise Corrupt(f"pack {name.hex()}: cut, or its trailer is damaged")
    return name.hex(), offset, size
