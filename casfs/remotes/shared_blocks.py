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
from casfs.digest import CHUNK
from casfs.errors import Corrupt
from casfs.packs.index import PackIndex
from casfs.packs.layout import BLOCK_BYTES, MAX_FRAME_BYTES, REFERENCE, FrameRef
from casfs.packs.writer import PackWriter
from casfs.remotes.log import BLOBS
from casfs.remotes.push_plan import Item
from casfs.remotes.remote import Remote
from casfs.remotes.state import LIVE, Place
from casfs.remotes.view import RemoteBlobs
from casfs.store.store import Store
from casfs.system.files import read_up_to

MAX_GROUP_BLOBS = 64  # versions of a file in one pack
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
            return  # a gc of the remote: see `_identities`
        self._maps = store.blobs.kin(large)
        sources = {source for block_map in self._maps.values() for source in block_map.sources}
        candidates = sources.union(large, self._maps).difference(purged)
        sizes = {hash: info.size for hash, info in store.blobs.info(candidates).items()}
        for hash, location in remote.state.locate(sizes, LIVE, BLOBS).items():
            with suppress(Corrupt):  # said by `remote fsck`
                self._note(hash, location, size=sizes[hash])

    def groups(self, items: Collection[Item]) -> Iterator[list[Item]]:
        """Yields large blobs by the source of most of their blocks: these go to one pack."""
        groups: defaultdict[str, list[Item]] = defaultdict(list)
        for item in items:
            counts = Counter(source for source, _ in self._identities(item.hash, item.size))
            groups[counts.most_common(1)[0][0]].append(item)
        for group in groups.values():
            for start in range(0, len(group), MAX_GROUP_BLOBS):
                yield group[start : start + MAX_GROUP_BLOBS]

    def add(self, writer: PackWriter, item: Item, own: dict[Block, FrameRef]) -> None:
        """Appends a large blob to a pack. `own`: the blocks that are in it so far."""
        blocks = list(self._identities(item.hash, item.size))
        if len(blocks) != -(-item.size // BLOCK_BYTES):  # a remote has it in other frames than ours
            blocks = [(item.hash, number) for number in range(-(-item.size // BLOCK_BYTES))]
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
            if piece.size == BLOCK_BYTES:
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
                if position != piece.offset and source.seekable():
                    source.seek(piece.offset)
                    position = piece.offset
                while position < piece.offset:  # in a cold pack, or in a remote
                    skipped = read_up_to(source, min(CHUNK, piece.offset - position))
                    position = position + len(skipped) if skipped else piece.offset
                yield read_up_to(source, piece.size)
                position = piece.offset + piece.size
            # A stream of a remote is verified at its end.
            if position == item.size and source.read(1):
                raise Corrupt(f"blob {item.hash}: not {item.size} bytes long")

    def _identities(self, hash: str, size: int) -> Iterator[Block]:
        """Yields each block of a blob as that of a source. In a remote, where nothing is mapped, as
        that of the frame which has it."""
        if isinstance(self._store.blobs, RemoteBlobs):
            yield from self._store.blobs.blocks(hash)
            return
        block_map = self._maps.get(hash)
        if block_map is None:
            yield from ((hash, number) for number in range(-(-size // BLOCK_BYTES)))
            return
        for run in block_map.runs:
            source = block_map.sources[run.source]
            yield from ((source, run.first + number) for number in range(run.blocks))

    def _note(self, hash: str, location: Place, *, size: int) -> None:
        """Notes the blocks of a blob that is in the remote, as far as each is in one frame. Raises
        Corrupt."""
        pack = self._remote.state.pack(location.pack)
        index = PackIndex(pack.name, pack.data or b"", pack.offset)
        member = index.member(location.number)
        if member.offset or member.size != size or size < MIN_BYTES:
            return
        blocks = list(self._identities(hash, size))
        offset = 0
        for number in index.frames_of(location.number):
            frame = index.frame(number)
            starts = range(-offset % BLOCK_BYTES, frame.size - BLOCK_BYTES + 1, BLOCK_BYTES)
            for start in starts if frame.codec != REFERENCE else ():
                place_in_blob = (offset + start) // BLOCK_BYTES
                if place_in_blob < len(blocks):
                    ref = FrameRef(pack.name, number, offset=start, size=BLOCK_BYTES)
                    self._there.setdefault(blocks[place_in_blob], ref)
            offset += frame.size


def is_large(item: Item) -> bool:
    return item.type is None and item.size >= MIN_BYTES
