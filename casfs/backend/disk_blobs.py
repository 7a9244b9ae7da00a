"""Blobs of the disk backend: a row of `store.db` each, the bytes there or in `objects/`."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from casfs.backend.block_maps import (
    IS_MAPPED,
    MIN_BYTES,
    BlockMap,
    MappedBlob,
    is_map,
    source_keys,
)
from casfs.backend.capabilities import IN_REMOTE, PackPlace
from casfs.backend.disk_heads import DiskHeads
from casfs.backend.group_commit import GroupCommit
from casfs.backend.mapped_rows import MAPPED_AMONG, UNMAP, kin, users
from casfs.backend.objects import Objects
from casfs.backend.pack_files import PackFiles, Place
from casfs.backend.protocols import (
    FILE_MIN_BYTES,
    Blob,
    Staged,
    discard,
)
from casfs.backend.purge_marks import is_purge_mark, verified
from casfs.backend.purging import DiskPurging
from casfs.backend.row_compression import RowCompression
from casfs.backend.sqlite_connection import Connection, Database
from casfs.backend.sqlite_statements import (
    BATCH_ROWS,
    IS_FILE,
    key_of,
    mistyped,
    parse_hash,
    rows_in,
)
from casfs.digest import BlobHash, Digest, hash_bytes, hash_stream
from casfs.errors import CasfsError, Corrupt, CorruptBlob, NotFound, Purged
from casfs.packs.index import PackIndex
from casfs.system import interruption

BATCHED_ROW_MAX_BYTES = 1 << 16  # a longer row is read by itself, so that a batch stays small
CONTENTS = (
    f"SELECT hash, CASE WHEN size <= {BATCHED_ROW_MAX_BYTES} THEN data END, {IS_FILE},"
    f" {IS_MAPPED},"
    " type IS NOT NULL, size, pack, member FROM blobs WHERE hash IN"
)
PLAIN = "SELECT size, data, pack, member FROM blobs WHERE hash = ? AND type IS NULL"
PLACES = """
SELECT b.hash, b.pack, b.member, p.name, p.size, p.kind, b.size, b.type IS NOT NULL
FROM blobs b JOIN packs p ON p.id = b.pack WHERE b.hash IN
"""
FILES_AMONG = f"SELECT hash FROM blobs WHERE {IS_FILE} AND hash IN"
THAW = "UPDATE blobs SET pack = NULL, member = NULL WHERE hash = ? AND pack = ? AND member = ?"
ROW = "SELECT size, type, data, pack, member FROM blobs WHERE hash = ?"
# `data` may be text in a damaged row.
DAMAGED_ROW = "SELECT CAST(data AS BLOB), type, pack, member FROM blobs WHERE hash = ?"
# Data (None where it is long), whether it is a file instead, or mapped, size, place in a pack. A
# plain tuple: one is made for each blob that is read.
_Content = tuple[bytes | None, bool, bool, int, Place | None]


class _Row(NamedTuple):
    """A row's size, the id of its type, and where the bytes are: here, in a pack, or in a file."""

    size: int
    type: int | None
    data: bytes | None
    location: Place | None

    @property
    def is_mapped(self) -> bool:
        if self.data is None or self.type is not None or self.size < MIN_BYTES:
            return False
        return is_map(self.data)


class DiskBlobs(DiskPurging):
    def __init__(
        self,
        db: Database,
        objects: Objects,
        packs: PackFiles,
        heads: DiskHeads,
        commits: GroupCommit,
    ) -> None:
        super().__init__(db, commits)
        self._objects = objects
        self._packs = packs
        self.rows = RowCompression(self, heads)

    def stage(self, source: BinaryIO) -> Staged:
        # Held in memory up to there: only `publish` sees whether they are enough for a pack.
        return self._objects.stage(source, FILE_MIN_BYTES - 1)

    def stage_bytes(self, digest: Digest, data: bytes) -> Staged:
        if len(data) < FILE_MIN_BYTES:
            return Staged(digest, data)
        return self._objects.stage_bytes(digest, data)

    def stage_change(self, source: BinaryIO, size: int, base: str) -> Staged | None:
        from casfs.backend.block_changes import stage_change

        before = self._open_base(base) if size >= MIN_BYTES else None
        if before is None:
            return None
        with before:
            temp = self._objects.staging.new_name()
            return stage_change(source, size, base=base, before=before, temp=temp)

    def _open_base(self, hash: str) -> BinaryIO | None:
        """Opens a blob that others may have blocks of; None where it cannot be read, or is in a
        pack or a remote, from where it would be brought for this."""
        with suppress(CasfsError):
            row = self._row(hash)
            if row.type is not None or row.size < MIN_BYTES:
                return None
            files = {key_of(hash)}
            if row.is_mapped and row.data is not None:
                files = source_keys(row.data)
            with self._db.read() as db:
                are_here = len(rows_in(db, FILES_AMONG, list(files))) == len(files)
            if are_here:
                return self.open(hash)
        return None

    def kin(self, hashes: Collection[str]) -> dict[str, BlockMap]:
        with self._db.read() as db:
            return kin(db, hashes)

    def block_maps(self, hashes: Collection[str]) -> dict[str, BlockMap]:
        with self._db.read() as db:
            rows = rows_in(db, MAPPED_AMONG, [key_of(hash) for hash in hashes])
        return {key.hex(): BlockMap.decode(key.hex(), size, data) for key, size, data in rows}

    def staging_directory(self) -> Path:
        return self._objects.staging.directory()

    # -- content --------------------------------------------------------------------------
    # Readers take no lock, so a blob may move after they looked at its row. What is not in its
    # place, or wrong there, is damage only if the row still says the same.

    def get(self, hash: str) -> Blob:
        row = self._row(hash)
        data = self._content(hash, row)
        type = None if row.type is None else self._type(row.type)
        return Blob(data, type)

    def open(self, hash: str) -> BinaryIO:
        row = self._row(hash)
        # A large one in a pack: too large to be held in memory, and the frames of a pack cannot be
        # sought in. So it becomes a file.
        if row.location is not None and row.size > FILE_MIN_BYTES:
            self.thaw(hash)
        elif row.is_mapped:
            return self._open_mapped(hash, row)
        # In the row, or a short one in a pack: read into memory.
        elif row.data is not None or row.location is not None:
            try:
                content = self._content(hash, row, follow=False)
                return io.BytesIO(content)
            except Purged as purged:
                if purged.substitute is None:
                    raise
                # Opened, not followed by `_content`: it may be large.
                return self.open(purged.substitute)
        # A file, perhaps since just now.
        try:
            return self._objects.open(hash)
        except NotFound:
            self._check_moved(hash)
        return self.open(hash)

    def _open_mapped(self, hash: str, row: _Row) -> BinaryIO:
        assert row.data is not None
        block_map = BlockMap.decode(hash, row.size, row.data)
        try:
            mapped = MappedBlob(hash, row.size, block_map, self._open_source)
        except (NotFound, Purged, CorruptBlob) as error:
            if self._row(hash) != row:  # it became a file meanwhile
                return self.open(hash)
            return self._open_unverified(hash, row, block_map, error)
        if self._row(hash) != row:  # a source may have been another one by then
            mapped.close()
            return self.open(hash)
        return cast(BinaryIO, mapped)

    def _open_source(self, hash: str) -> BinaryIO:
        row = self._row(hash)
        # Not the substitute of one that was purged, which has other blocks.
        if row.is_mapped or is_purge_mark(row.data or b""):
            raise NotFound(f"blob {hash} is not what it was")
        return self.open(hash)

    def _open_unverified(
        self, hash: str, row: _Row, block_map: BlockMap, reason: CasfsError
    ) -> BinaryIO:
        """Opens a mapped blob one of whose sources is damaged, perhaps not in a block of it: so the
        bytes of the blob are verified. Raises CorruptBlob."""
        try:
            mapped = MappedBlob(hash, row.size, block_map, self._open_damaged)
        except (NotFound, Purged):
            raise CorruptBlob(f"blob {hash} has blocks of another: {reason}") from None
        source = cast(BinaryIO, mapped)
        if hash_stream(source, interruption.check).hash != hash:
            mapped.close()
            raise CorruptBlob(f"blob {hash} has blocks of another: {reason}")
        source.seek(0)
        return source

    def _open_damaged(self, hash: str) -> BinaryIO:
        try:
            return self._open_source(hash)
        except CorruptBlob:
            return self._objects.open_unverified(hash)

    def release(self, hash: str) -> None:
        row = self._row(hash)
        if row.is_mapped:
            with self._open_mapped(hash, row) as source:
                self._make_file(hash, row.size, source, UNMAP, values=(key_of(hash),))

    def thaw(self, hash: str) -> None:
        """Makes a blob of a pack a file, however short it is."""
        row = self._row(hash)
        try:
            if row.location is not None:
                self._take_from_pack(hash, row)
        except CorruptBlob:
            # Damaged frames of a remote are fetched again, and the row may have another place.
            row = self._row(hash)
            if row.location is not None:
                self._take_from_pack(hash, row)

    def _check_moved(self, hash: str) -> None:
        """Raises NotFound where a missing file is still the place of a blob."""
        row = self._row(hash)
        if row.location is None and row.data is None:
            raise NotFound(f"blob {hash}: its file is missing")

    def stream(self, hash: str) -> BinaryIO:
        row = self._row(hash)
        location = row.location
        if location is None or row.size <= FILE_MIN_BYTES:
            return self.open(hash)
        # `verify` does not read a pack of a remote, so there nothing would have been verified.
        if self._packs.is_remote(location[0]):
            return self.open(hash)
        # Read twice: a reader must not have used a wrong byte before the hash is known.
        self.verify(hash)
        try:
            return self._packs.stream(hash, location)
        except NotFound:  # it was moved meanwhile
            return self.open(hash)

    def _content(self, hash: str, row: _Row, *, follow: bool = True) -> bytes:
        """`follow`: of a purged blob the bytes of its substitute. Raises Purged."""
        if row.is_mapped:
            with self._open_mapped(hash, row) as source:
                return verified(hash, source.read())
        if row.data is not None:
            try:
                return verified(hash, row.data)
            except Purged as purged:
                if purged.substitute is None or not follow:
                    raise
                return self.get(purged.substitute).data
            except CorruptBlob:
                # Or the row was written anew meanwhile, and its old dictionary is gone.
                current_row = self._row(hash)
                if current_row == row:
                    raise
                return self._content(hash, current_row, follow=follow)
        if row.location is not None:
            return self._packed(hash, row.location)
        try:
            with self._objects.open(hash) as source:
                return verified(hash, source.read())
        except NotFound:
            self._check_moved(hash)
        return self._content(hash, self._row(hash))

    def _file_content(self, hash: str, size: int | None = None) -> bytes | None:
        """Returns the bytes of a file; None where it is large, or has moved to a pack. `size`: a
        hint."""
        try:
            if size is None:
                return self._objects.content(hash)
            return self._objects.content(hash, size)
        except NotFound:
            self._check_moved(hash)
        return None

    def _packed(self, hash: str, location: Place) -> bytes:
        try:
            return self._packs.read(hash, location)
        except (NotFound, CorruptBlob):
            row = self._row(hash)
            if row.location != location:  # it was moved or deleted meanwhile
                return self._content(hash, row)
            # An open descriptor, or a cached frame, may be of a file that was replaced since.
            return self._packs.read(hash, location, again=True)

    def _take_from_pack(self, hash: str, row: _Row) -> None:
        """Makes a large blob of a pack a file again."""
        location = row.location
        assert location is not None
        # Of a remote's pack one process at a time: none fetches what another has just freed.
        with self._packs.moving(hash, location):
            if self._row(hash).location == location:  # else another process has
                source = self._packs.stream(hash, location)
                values = key_of(hash), *location
                self._make_file(hash, row.size, source, THAW, values=values)

    def _make_file(
        self, hash: str, size: int, source: BinaryIO, statement: str, *, values: tuple[Any, ...]
    ) -> None:
        """Makes a blob a file. `statement`, with its `values`: has its row name that."""
        staged = self._objects.stage(source)

        def move(db: Connection) -> None:
            # Nothing where it was moved or deleted meanwhile: a file without a row is garbage.
            if db.execute(statement, values).rowcount:
                self._objects.place([staged])

        try:
            # Neither the stream of a pack nor a block map is verified.
            if staged.digest != Digest(BlobHash(hash), size):
                raise CorruptBlob(f"blob {hash}: its bytes do not hash to its name")
            self._objects.sync([staged])
            self._commits.run(move)
        finally:
            discard([staged])

    def get_sized(self, hash: str, size: int) -> bytes:
        with self._db.read() as db:
            row = db.execute(PLAIN, (key_of(hash),)).fetchone()
        if row is None:  # a node, or absent
            return self.get(hash).data
        stored_size, data, pack, member = row
        # `_content` would read and hash a file twice.
        if pack is None and data is None:
            content = self._file_content(hash, size)
            if content:
                return content
        location = None if pack is None else (pack, member)
        plain_row = _Row(stored_size, type=None, data=data, location=location)
        return self._content(hash, plain_row)

    def get_many(self, hashes: Iterable[str]) -> Iterator[bytes | None]:
        remaining = iter(hashes)
        while batch := list(islice(remaining, BATCH_ROWS)):
            rows = self._contents(batch)
            for hash in batch:
                if hash not in rows:
                    raise NotFound(f"no blob {hash} in this store")
                data, is_file, is_mapped, size, location = rows[hash]
                if is_file:
                    yield self._file_content(hash)
                elif is_mapped:
                    yield None
                elif location is not None:
                    yield self._packed(hash, location) if size <= FILE_MIN_BYTES else None
                elif isinstance(data, bytes) and hash_bytes(data) == hash:
                    yield data
                else:
                    # A long row, a mark or damage: all that has to be looked at more closely.
                    yield self.get(hash).data

    def places(self, hashes: Collection[str]) -> dict[str, PackPlace]:
        locations: dict[str, PackPlace] = {}
        with self._db.read() as db:
            rows = rows_in(db, PLACES, [key_of(hash) for hash in hashes])
        indexes: dict[int, PackIndex] = {}
        for key, pack, member, name, pack_bytes, kind, size, is_node in rows:
            offset = IN_REMOTE if kind == "remote" else None
            # Only a hot pack has plain bytes at an offset.
            if kind == "hot":
                if pack not in indexes:
                    indexes[pack] = self._packs.reader(pack).index
                offset = indexes[pack].offset(member)
            locations[key.hex()] = PackPlace(
                name.hex(), pack_bytes, offset, blob_bytes=size, is_node=bool(is_node)
            )
        return locations

    def _contents(self, hashes: list[str]) -> dict[str, _Content]:
        """Reads the rows of those that are stored, at once."""
        keys = [key for hash in hashes if (key := parse_hash(hash)) is not None]
        with self._db.read() as db:
            rows = rows_in(db, CONTENTS, keys)
        contents: dict[str, _Content] = {}
        for key, data, is_file, is_mapped, is_node, size, pack, member in rows:
            decoded = self._decoded(data, is_node)
            location = None if pack is None else (pack, member)
            contents[key.hex()] = decoded, bool(is_file), bool(is_mapped), size, location
        return contents

    def _decoded(self, data: bytes | None, is_node: bool) -> bytes | None:
        """Returns the bytes of a row, as they are stored where they do not decode."""
        try:
            return self.rows.decode(data) if is_node and data is not None else data
        except Corrupt:
            # Not raised here: the reader checks the hash, and reads the row again if it differs.
            return data

    def _row(self, hash: str) -> _Row:
        """Raises NotFound."""
        with self._db.read() as db:
            row = db.execute(ROW, (key_of(hash),)).fetchone()
        if row is None:
            raise NotFound(f"no blob {hash} in this store")
        size, type, data, pack, member = row
        location = None if pack is None else (pack, member)
        return _Row(size, type, data=self._decoded(data, type is not None), location=location)

    # -- repair ---------------------------------------------------------------------------

    def faults(self) -> Iterator[str]:
        for fault in self._db.faults():
            yield f"store.db: {fault}"
        with self._db.read() as db:
            yield from (f"store.db: {fault}" for fault in mistyped(db))
        yield from (f"objects/{fault}" for fault in self._objects.faults())
        yield from (f"packs/{fault}" for fault in self._packs.faults())

    def verify(self, hash: str) -> None:
        row = self._row(hash)
        try:
            if row.location is not None:
                # Not fetched for this: fsck counts what is in a remote (`in_remote`).
                if self._packs.is_remote(row.location[0]):
                    return
                self._packs.verify(hash, row.size, row.location)
            elif row.is_mapped:
                with self._open_mapped(hash, row) as source:
                    if hash_stream(source, interruption.check) != Digest(BlobHash(hash), row.size):
                        raise CorruptBlob(f"blob {hash}: its blocks do not hash to its name")
            elif row.data is None:
                self._objects.verify(hash, row.size)
            elif len(verified(hash, row.data)) != row.size:
                raise CorruptBlob(f"blob {hash}: its row is not {row.size} bytes long")
        except (NotFound, CorruptBlob):
            current_row = self._row(hash)
            is_in_row = row.data is not None
            is_in_row_now = current_row.data is not None
            if current_row.location == row.location and is_in_row_now == is_in_row:
                raise
            self.verify(hash)  # it was moved meanwhile

    def quarantine(self, hash: str) -> None:
        with self._db.read() as db:
            waiting = users(db, [hash])
        for user in waiting:
            # One that is damaged, too, is quarantined for that by who asked for this.
            with suppress(NotFound, CorruptBlob):
                self.release(user)

        def move(db: Connection) -> None:
            key = key_of(hash)
            row = db.execute(DAMAGED_ROW, (key,)).fetchone()
            content = None
            if row is not None:
                data, type, pack, member = row
                if pack is None:
                    # Of a mapped blob the map, whose sources stay.
                    content = self._decoded(data, type is not None)
                else:
                    content = self._packs.salvage(hash, (pack, member))
            # The bytes first: a crash in between must not lose the only copy.
            self._objects.quarantine(hash, content)
            db.execute("DELETE FROM blobs WHERE hash = ?", (key,))

        self._commits.run(move)
