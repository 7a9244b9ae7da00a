"""Local packs: `packs/<name>.pack`, mode 0444, each a row of `packs`.

As for objects, files are placed and removed only while the write lock is held; a file without a
row is garbage. The bytes of a blob that is in a pack are verified at each read. A pack may be
rewritten or removed while another process reads: then the row of the blob names another place by
now, which the reader looks up (`casfs.backend.disk_blobs`). A pack of the kind "remote" has its
bytes elsewhere, and `casfs.backend.lazy_packs` opens it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from casfs.backend.objects import OBJECT_MODE, Stamp
from casfs.backend.purge_marks import IS_PURGED
from casfs.backend.sqlite_connection import Connection, Database
from casfs.backend.sqlite_statements import IS_FILE, rows_in
from casfs.digest import BlobHash, Digest, hash_stream, is_hash
from casfs.errors import CasfsError, Conflict, Corrupt, CorruptBlob, NotFound
from casfs.packs.layout import MAX_FRAME_BYTES
from casfs.packs.reader import PackReader, open_pack
from casfs.system import interruption
from casfs.system.files import closing_fd, file_fault, fsync, os_errors
from casfs.system.lru_cache import LruCache

OPEN_PACKS = 128  # whose descriptors and indexes a process keeps
SUFFIX = ".pack"
Place = tuple[int, int]  # id of a pack, number of the member


class _Open(NamedTuple):
    """An open pack; `path` and `stamp` of a local one's file."""

    reader: PackReader
    path: Path | None = None
    stamp: Stamp | None = None


class PackFiles:
    """Thread-safe."""

    def __init__(
        self, root: Path, db: Database, open_remote: Callable[[str, str], PackReader]
    ) -> None:
        """`open_remote`: opens a pack of a remote, by both names."""
        self.root = root
        self._db = db
        self._readers = LruCache(OPEN_PACKS)
        self._open_remote = open_remote

    def path(self, name: str) -> Path:
        return self.root / f"{name}{SUFFIX}"

    # -- reading -----------------------------------------------------------------------

    def reader(self, pack: int, *, again: bool = False) -> PackReader:
        """Returns the reader of a pack; `again`: nothing that is cached is used, and it is opened
        anew where its file was replaced. Raises NotFound, Corrupt, Failed."""
        opened: _Open | None = self._readers.get(str(pack))
        if opened is not None and not again:
            return opened.reader
        if opened is None or (opened.path and opened.stamp != _stamp(opened.path)):
            opened = self._open(pack)
            self._readers.put(str(pack), opened, 1)
        elif again:
            opened.reader.forget()
        return opened.reader

    def _open(self, pack: int) -> _Open:
        with self._db.read() as db:
            row = db.execute(
                "SELECT name, kind, remote FROM packs WHERE id = ?", (pack,)
            ).fetchone()
        if row is None:
            raise NotFound(f"no pack {pack} in this store")
        name = row[0].hex()
        kind = row[1]
        remote = row[2]
        if kind == "remote":
            return _Open(self._open_remote(remote, name))
        path = self.path(name)
        opened = _Open(open_pack(path), path, _stamp(path))
        if opened.reader.index.name != name:
            raise Corrupt(f"{path} is the pack {opened.reader.index.name}")
        return opened

    def is_remote(self, pack: int) -> bool:
        with self._db.read() as db:
            rows = db.execute("SELECT 1 FROM packs WHERE id = ? AND kind = 'remote'", (pack,))
            return rows.fetchone() is not None

    def read(self, hash: str, location: Place, *, again: bool = False) -> bytes:
        """Returns the verified bytes of a blob. Raises NotFound where the pack is gone,
        CorruptBlob. `again`: nothing that is cached is used."""
        return self._at(hash, location, again).read(location[1])

    def stream(self, hash: str, location: Place) -> BinaryIO:
        """As `read`, but returns a stream, which is not verified."""
        pieces = self._at(hash, location, again=True).pieces(location[1])
        return io.BufferedReader(PieceStream(pieces), MAX_FRAME_BYTES)

    def moving(self, hash: str, location: Place) -> AbstractContextManager[None]:
        """The block stores a blob elsewhere. Raises as `read`."""
        return self._at(hash, location, again=False).moving(location[1])

    def verify(self, hash: str, size: int, location: Place) -> None:
        """Reads a blob in constant memory, from the disk if nothing has read that frame since the
        last `faults`. Raises as `read`."""
        with cast(
            BinaryIO, PieceStream(self._at(hash, location, again=False).pieces(location[1]))
        ) as source:
            if hash_stream(source, interruption.check) != Digest(BlobHash(hash), size):
                raise CorruptBlob(f"blob {hash}: its bytes in a pack do not hash to its name")

    def salvage(self, hash: str, location: Place) -> bytes | None:
        """Returns what can be read of a damaged blob."""
        try:
            with self.stream(hash, location) as source:
                return source.read()
        except CasfsError:
            return None

    def _at(self, hash: str, location: Place, again: bool) -> PackReader:
        try:
            reader = self.reader(location[0], again=again)
            member_hash = reader.index.member(location[1]).hash
        except NotFound as error:
            raise NotFound(f"blob {hash}: its pack is missing: {error}") from None
        except Corrupt as error:
            raise CorruptBlob(f"blob {hash}: {error}") from None
        if member_hash != hash:
            where = f"member {location[1]} of pack {reader.index.name}"
            raise CorruptBlob(f"blob {hash}: its row names {where}, which is {member_hash}")
        return reader

    # -- files; the caller holds the write lock --------------------------------------------

    def place(self, db: Connection, temp: str, kind: str) -> int:
        """Renames a synced private pack, whose file name ends in `<name>.pack`, into place; returns
        the id of its row. It replaces one of that name, whose dead ranges may be holes."""
        path = self.path(temp.split(".")[-2])
        with os_errors(f"cannot write {path}"):
            size = os.stat(temp).st_size
            os.chmod(temp, OBJECT_MODE)
            self.root.mkdir(exist_ok=True)
            os.rename(temp, path)
            fsync(self.root)
        return add_row(db, path.stem, kind=kind, size=size, remote=None)

    def remove(self, pack: int) -> bool:
        """Deletes a pack that no blob is in; returns False for any other."""
        with self._db.write() as db:
            row = db.execute(REMOVE, (pack,)).fetchone()
        if row is not None and row[1] is None:
            self.remove_stray(row[0].hex())
        elif row is not None:
            from casfs.backend.frame_mirror import remove_mirror

            remove_mirror(self.root.parent, row[1], row[0].hex())
        return row is not None

    def remove_stray(self, name: str) -> bool:
        """Deletes the file of a pack that has no row of a local kind; returns whether it did."""
        with self._db.write() as db:
            if db.execute(HAS_FILE, (bytes.fromhex(name),)).fetchone():
                return False
            with os_errors(f"cannot write {self.path(name)}"):
                self.path(name).unlink(missing_ok=True)
        return True

    @contextmanager
    def writable(self, name: str) -> Iterator[int]:
        """Opens a pack for holes to be punched."""
        path = self.path(name)
        with os_errors(f"cannot write {path}"):
            has_mode = os.access(path, os.W_OK)  # root's access needs no other
            if not has_mode:
                path.chmod(0o600)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            with closing_fd(fd):
                if not has_mode:
                    os.fchmod(fd, OBJECT_MODE)
                yield fd

    def faults(self) -> Iterator[str]:
        """Yields a line for each file in `packs/` whose name, kind, mode, owner or index is wrong,
        and for each pack without a file; from then on all are opened anew."""
        self._readers = LruCache(OPEN_PACKS)
        missing = self._recorded()
        for entry in sorted(self.root.iterdir()) if self.root.exists() else ():
            name = entry.name.removesuffix(SUFFIX)
            if not entry.name.endswith(SUFFIX) or not is_hash(name):
                yield f"{entry.name}: not the name of a pack; a foreign file, or damage"
            elif fault := file_fault(entry, OBJECT_MODE, self.root):
                yield f"{entry.name}: {fault}"
            elif name in missing:
                try:
                    if open_pack(entry).index.name != name:
                        yield f"{entry.name}: it is another pack"
                except CasfsError as error:
                    if not entry.exists():
                        continue
                    yield f"{entry.name}: {error}"
            missing.discard(name)
        missing &= self._recorded()  # gc may have removed a pack since the first look
        yield from (f"{name}{SUFFIX}: the file is missing" for name in sorted(missing))

    def _recorded(self) -> set[str]:
        """Returns the names of the packs that rows name."""
        with self._db.read() as db:
            return {name.hex() for (name,) in db.execute(NAMES)}

    def names(self) -> Iterator[str]:
        """Yields the names of the files."""
        if self.root.exists():
            for entry in os.scandir(self.root):
                if entry.name.endswith(SUFFIX) and is_hash(entry.name.removesuffix(SUFFIX)):
                    yield entry.name.removesuffix(SUFFIX)


class PieceStream(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _stamp(path: Path) -> Stamp | None:
    try:
        file_stat = os.stat(path)
    except FileNotFoundError:
        return None
    return file_stat.st_ino, file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ctime_ns


ADD = """
INSERT INTO packs (name, kind, size, remote) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET kind = excluded.kind, size = excluded.size, remote = excluded.remote
WHERE excluded.kind != 'remote'
"""
REMOVE = """
DELETE FROM packs WHERE id = ? AND NOT EXISTS (SELECT 1 FROM blobs WHERE pack = packs.id)
RETURNING name, remote
"""
NAMES = "SELECT name FROM packs WHERE kind != 'remote'"
MOVABLE = (
    f"SELECT hash, data, {IS_FILE}, touched FROM blobs WHERE type IS NULL"
    f" AND (data IS NULL OR {IS_PURGED}) AND hash IN"
)
PURGED_PATCHES = "SELECT hash FROM patches WHERE purged AND hash IN"
HAS_FILE = "SELECT 1 FROM packs WHERE name = ? AND kind != 'remote'"


def add_row(db: Connection, name: str, kind: str, size: int, remote: str | None) -> int:
    """Returns the id of the row of a pack, which is made, or made local. Caller's transaction."""
    key = bytes.fromhex(name)
    db.execute(ADD, (key, kind, size, remote))
    (id,) = db.execute("SELECT id FROM packs WHERE name = ?", (key,)).fetchone()
    return int(id)


def find_movable(db: Connection, keys: Sequence[bytes], before: int) -> dict[bytes, int]:
    """Returns those plain blobs outside the database that were touched before `before`, and of each
    whether it is a file. Raises Conflict where one was purged, which must be in no pack."""
    movable: dict[bytes, int] = {}
    if purged := rows_in(db, PURGED_PATCHES, keys):
        raise Conflict(f"blob {purged[0][0].hex()} was purged while it was packed")
    for key, data, is_file, touched in rows_in(db, MOVABLE, keys):
        if data is not None:
            raise Conflict(f"blob {key.hex()} was purged while it was packed")
        if touched < before:
            movable[key] = is_file
    return movable
