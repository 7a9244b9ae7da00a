"""Which blocks of large blobs a remote has, so that a push sends only those that it lacks.

A block is known by the blob that it was stored with: a mapped blob (`casfs.backend.block_maps`)
says of each of its blocks in which source that is, and two blobs with the same block of the same
source have the same bytes there. In a pack a blob has frames of new bytes, and references to parts
of other frames. So nothing is sent or referred to but what a push reaches, or the remote has: no
other version, and no patch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from casfs.backend import derived
from casfs.backend.block_maps import MIN_BYTES, BlockMap
from casfs.backend.capabilities import StagingChanges
from casfs.errors import Corrupt
from casfs.packs.index import PackIndex
from casfs.packs.layout import BLOCK_BYTES, MAX_FRAME_BYTES, REFERENCE, FrameRef
from casfs.packs.writer import PackWriter
from casfs.remotes.log import BLOBS
from casfs.remotes.push_plan import Item
from casfs.remotes.remote import Remote
from casfs.remotes.state import LIVE, Place
from casfs.store.store import Store
from casfs.system.files import read_up_to

Block: TypeAlias = tuple[str, int]  # a source, and the number of one of its blocks


class _Piece(NamedTuple):
    """`size` bytes of a blob from `offset` on: new, or what `ref` stands for."""

    offset: int
    size: int
    ref: FrameRef | None = None

    def joined(self, after: _Piece) -> _Piece | None:
        """Returns this and the piece behind it as one; None where that is none."""
        size = self.size + after.size
        if size > MAX_FRAME_BYTES:
            return None
        if self.ref is None or after.ref is None:
            return self._replace(size=size) if self.ref is after.ref else None
        if after.ref != self.ref._replace(offset=self.ref.offset + self.size, size=after.size):
            return None
        return self._replace(size=size, ref=self.ref._replace(size=size))


class SharedBlocks:
    def __init__(
        self, store: Store, remote: Remote, items: Collection[Item], purged: Collection[str]
    ) -> None:
        """`purged`: what counts as not there, having been purged in the remote."""
        self._store = store
        self._remote = remote
        self._maps: dict[str, BlockMap] = {}
        self._there: dict[Block, FrameRef] = {}
        large = {item.hash for item in items if is_large(item)}
        if not large or not isinstance(store.blobs, StagingChanges):
            return
        self._maps = store.blobs.block_maps(None)
        wanted = large.union(*(self._maps[hash].sources for hash in large if hash in self._maps))
        kin = {hash for hash, map in self._maps.items() if not wanted.isdisjoint(map.sources)}
        candidates = (wanted | kin).difference(purged)
        for hash, location in remote.state.locate(candidates, LIVE, BLOBS).items():
            self._note(hash, location)

    def groups(self, items: Collection[Item]) -> list[list[Item]]:
        """Returns large blobs by the source of most of their blocks: they go to one pack."""
        groups: defaultdict[str, list[Item]] = defaultdict(list)
        for item in items:
            groups[self._main_source(item.hash)].append(item)
        return list(groups.values())

    def add(self, writer: PackWriter, item: Item, own: dict[Block, FrameRef]) -> None:
        """Appends a large blob to a pack. `own`: the blocks that are in it so far."""
        blocks = list(self._identities(item.hash, item.size))
        pieces = self._pieces(item, blocks, own)
        numbers = writer.add_pieces(item.hash, item.size, self._contents(item, pieces))
        for piece, number in zip(pieces, numbers, strict=True):
            for index in range(0 if piece.ref else piece.size // BLOCK_BYTES):
                ref = FrameRef(None, number, offset=index * BLOCK_BYTES, size=BLOCK_BYTES)
                own.setdefault(blocks[piece.offset // BLOCK_BYTES + index], ref)

    def _pieces(self, item: Item, blocks: list[Block], own: dict[Block, FrameRef]) -> list[_Piece]:
        """Returns the frames of a blob: neighbours are one, as far as a frame may be long."""
        pieces: list[_Piece] = []
        for number, block in enumerate(blocks):
            offset = number * BLOCK_BYTES
            piece = _Piece(offset, min(BLOCK_BYTES, item.size - offset))
            piece = piece._replace(ref=own.get(block) or self._there.get(block))
            joined = pieces[-1].joined(piece) if pieces else None
            if joined is None:
                pieces.append(piece)
            else:
                pieces[-1] = joined
        return pieces

    def _contents(self, item: Item, pieces: list[_Piece]) -> Iterator[bytes | FrameRef]:
        with derived.open_stream(self._store.blobs, item.hash) as source:
            position = 0
            for piece in pieces:
                if piece.ref is not None:
                    yield piece.ref
                    continue
                # Only a mapped blob has references, and its stream can be sought in.
                if position != piece.offset:
                    source.seek(piece.offset)
                yield read_up_to(source, piece.size)
                position = piece.offset + piece.size
            # A stream of a remote is verified at its end.
            if position == item.size and source.read(1):
                raise Corrupt(f"blob {item.hash}: not {item.size} bytes long")

    def _identities(self, hash: str, size: int) -> Iterator[Block]:
        """Yields each block of a blob as that of a source."""
        block_map = self._maps.get(hash)
        if block_map is None:
            yield from ((hash, number) for number in range(-(-size // BLOCK_BYTES)))
            return
        for run in block_map.runs:
            source = block_map.sources[run.source]
            yield from ((source, run.first + number) for number in range(run.blocks))

    def _note(self, hash: str, location: Place) -> None:
        """Notes the blocks of a blob that is in the remote, as far as each is in one frame."""
        pack = self._remote.state.pack(location.pack)
        index = PackIndex(pack.name, pack.data or b"", pack.offset)
        member = index.member(location.number)
        if member.offset or member.size < MIN_BYTES:
            return
        blocks = list(self._identities(hash, member.size))
        offset = 0
        with suppress(Corrupt):  # said by `remote fsck`
            for number in index.frames_of(location.number):
                frame = index.frame(number)
                for start in range(
                    -offset % BLOCK_BYTES, frame.size - BLOCK_BYTES + 1, BLOCK_BYTES
                ):
                    if frame.codec != REFERENCE:
                        ref = FrameRef(pack.name, number, offset=start, size=BLOCK_BYTES)
                        self._there.setdefault(blocks[(offset + start) // BLOCK_BYTES], ref)
                offset += frame.size

    def _main_source(self, hash: str) -> str:
        block_map = self._maps.get(hash)
        if block_map is None:
            return hash
        counts: Counter[int] = Counter()
        for run in block_map.runs:
            counts[run.source] += run.blocks
        return block_map.sources[counts.most_common(1)[0][0]]


def is_large(item: Item) -> bool:
    return item.type is None and item.size >= MIN_BYTES
