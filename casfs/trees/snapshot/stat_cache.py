"""What a directory looked like when it was last recorded: git's index, for snapshots.

For each directory of a workspace: its names, the stat of each entry (size, mtime, ctime,
inode, mode), what each entry was recorded as, and the directory node. A file whose stat is
unchanged is not read again; a directory in which nothing changed is not encoded again. The
index is a derivative in `index.db`, never durable, never trusted for existence: whatever
it names must still be in the store, and the batch checks that.

The racy-clean rule: a file that was changed less than RACY before the scan could be changed
again within the same clock tick, after it was read, and look the same. Its stat is not
remembered, so the next snapshot reads it.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from casfs.backend.sqlite import Database
from casfs.digest import Digest
from casfs.trees.snapshot.file_reader import Stat

RACY = 2_000_000_000  # nanoseconds; as coarse as the coarsest mtime in use
STAT = struct.Struct("<qqqQI")
UNSURE = STAT.pack(-1, 0, 0, 0, 0)
DIRECTORY = STAT.pack(0, 0, 0, 0, stat.S_IFDIR)
NOTHING = Digest("0" * 64, 0)  # recorded of an entry that is no blob
RECORDED = struct.Struct("<32sq")
SCHEMA = """
CREATE TABLE IF NOT EXISTS directories (
  root BLOB NOT NULL, path BLOB NOT NULL, names BLOB NOT NULL, stats BLOB NOT NULL,
  recorded BLOB NOT NULL, node BLOB NOT NULL, size INTEGER NOT NULL,
  PRIMARY KEY (root, path)
);
"""


class Row(NamedTuple):
    """One directory. `stats` and `recorded` have an item for each of `names`, which are
    sorted and joined by NUL; `node` and `size` are the directory node's digest."""

    names: bytes
    stats: bytes
    recorded: bytes
    node: bytes
    size: int

    @property
    def digest(self) -> Digest:
        return Digest(self.node.hex(), self.size)

    def of(self, node: Digest) -> Row:
        return self._replace(node=bytes.fromhex(node.hash), size=node.size_bytes)

    def split(self) -> list[bytes]:
        return self.names.split(b"\0") if self.names else []

    def recorded_at(self, place: int) -> Digest:
        hash, size = RECORDED.unpack_from(self.recorded, place * RECORDED.size)
        return Digest(hash.hex(), size)

    def known(self) -> dict[bytes, tuple[bytes, Digest]]:
        """(stat, digest) of each entry by its name."""
        found = {}
        for place, (name, (hash, size)) in enumerate(
            zip(self.split(), RECORDED.iter_unpack(self.recorded), strict=True)
        ):
            printed = self.stats[place * STAT.size : (place + 1) * STAT.size]
            found[name] = printed, Digest(hash.hex(), size)
        return found


@dataclass(slots=True)
class Index:
    """The rows of one workspace, recorded in one way: `load`, use, `save`."""

    path: Path
    root: bytes
    rows: dict[bytes, Row]
    fresh: dict[bytes, Row]
    seen: set[bytes]

    @classmethod
    def load(cls, store_root: Path, workspace: Path, way: str) -> Index:
        """`way`: how it is recorded (ignored names, preserved properties)."""
        path = store_root / "index.db"
        root = os.fsencode(workspace.resolve()) + b"\0" + way.encode()
        database = Database(path, SCHEMA, durable=False)
        try:
            with database.read() as db:
                rows = db.execute(
                    "SELECT path, names, stats, recorded, node, size FROM directories"
                    " WHERE root = ?",
                    (root,),
                ).fetchall()
        finally:
            database.close()
        return cls(path, root, {row[0]: Row(*row[1:]) for row in rows}, {}, set())

    def get(self, path: bytes) -> Row | None:
        self.seen.add(path)
        return self.rows.get(path)

    def put(self, path: bytes, row: Row) -> None:
        self.fresh[path] = row

    def save(self) -> None:
        """Keep what changed, forget what has gone."""
        gone = self.rows.keys() - self.seen
        if not self.fresh and not gone:
            return
        database = Database(self.path, SCHEMA, durable=False)
        try:
            with database.write() as db:
                db.executemany(
                    "DELETE FROM directories WHERE root = ? AND path = ?",
                    [(self.root, path) for path in gone],
                )
                db.executemany(
                    "INSERT OR REPLACE INTO directories VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [(self.root, path, *row) for path, row in self.fresh.items()],
                )
        finally:
            database.close()


def fingerprint(seen: os.stat_result | Stat, racy_after: int) -> bytes:
    """The stat of an entry as it is remembered; UNSURE where it could not be relied on."""
    mtime, ctime = seen.st_mtime_ns, seen.st_ctime_ns
    if mtime >= racy_after or ctime >= racy_after:
        return UNSURE
    return STAT.pack(seen.st_size, mtime, ctime, seen.st_ino, seen.st_mode)


def stat_of(printed: bytes) -> Stat:
    """The stat that a fingerprint remembers."""
    size, mtime, ctime, ino, mode = STAT.unpack(printed)
    return Stat(mode, size, mtime, ctime, ino)


def row(names: Sequence[bytes], prints: Sequence[bytes], recorded: Sequence[Digest]) -> Row:
    """What was seen of a directory, not encoded yet."""
    packed = [RECORDED.pack(bytes.fromhex(one.hash), one.size_bytes) for one in recorded]
    return Row(b"\0".join(names), b"".join(prints), b"".join(packed), b"", 0)
