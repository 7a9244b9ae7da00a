"""The stat cache, git's index for snapshots: the stats and digests of each recorded directory.

For each directory of a workspace: its names, the stat of each entry (size, mtime, ctime,
inode, mode), the digest that each was recorded as, the kind and line of each secret that the
scanner found, the directory node and the times node. A file whose stat is unchanged is not read
again; a directory in which nothing changed is not encoded again. The cache is a derivative in
`index.db`, never durable, never trusted for existence: whatever it names must still be in the
store, and the batch checks that.

The racy-clean rule: a file that was changed less than RACY_WINDOW_NS before the scan could be
changed again within the same clock tick, after it was read, and look the same. Its stat is
not remembered (RACY), so the next snapshot reads it. A stat that was remembered is compared as
it is.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from casfs.backend.sqlite_connection import Database, open_derived
from casfs.digest import BlobHash, Digest, TreeDigest
from casfs.store.nodes.times import TimesRef
from casfs.store.store import Store
from casfs.system.files import is_writable
from casfs.system.paths import real_path
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot.file_stat import Stat
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import Hit, Hits, ReadContent, SnapshotReport

RACY_WINDOW_NS = 2_000_000_000  # as coarse as the coarsest mtime in use
STAT = struct.Struct("<qqqQI")
RACY = STAT.pack(-1, 0, 0, 0, 0)  # of an entry whose stat cannot be relied on
DIRECTORY = STAT.pack(0, 0, 0, 0, stat.S_IFDIR)
NEVER_EQUAL = STAT.pack(-2, 0, 0, 0, 0)  # of an entry whose times a row cannot hold
NO_BLOB = Digest(BlobHash("0" * 64), 0)  # recorded of an entry without a blob, as a link
DIGEST = struct.Struct("<32sq")
SCHEMA = """
DROP TABLE IF EXISTS directories;
DROP TABLE IF EXISTS recorded_directories;
DROP TABLE IF EXISTS scanned_directories;
CREATE TABLE IF NOT EXISTS dated_directories (
  root BLOB NOT NULL, path BLOB NOT NULL, names BLOB NOT NULL, stats BLOB NOT NULL,
  recorded BLOB NOT NULL, hits BLOB NOT NULL, node BLOB NOT NULL, size INTEGER NOT NULL,
  times BLOB NOT NULL, newest INTEGER, PRIMARY KEY (root, path)
);
"""
NO_TIMES = bytes(32)  # of a directory without a times node
TIMES_BYTES = len(NO_TIMES)
MAX_TIME_NS = 2**63 - 1  # of an INTEGER: later ones count as this
UNKNOWN_TIMES = TimesRef(None, newest=None)


class CachedDirectory(NamedTuple):
    """One row. `stats` and `recorded` have an item for each of `names`, which are
    sorted and joined by NUL; `stats` may have one more, for the directory itself; `hits`: JSON of
    what the scanner found in files, by name, empty for nothing; `node` and `size` are the directory
    node's digest; `times`: the hash of its times node and, in order of name, of each
    subdirectory's, and `newest` as in the first."""

    names: bytes
    stats: bytes
    recorded: bytes
    hits: bytes
    node: bytes
    size: int
    times: bytes
    newest: int | None

    @property
    def digest(self) -> TreeDigest:
        hash: Any = self.node.hex()
        return TreeDigest(hash, self.size)

    @property
    def times_ref(self) -> TimesRef:
        own = self.times[:TIMES_BYTES]
        hash: Any = None if own == NO_TIMES else own.hex()
        return TimesRef(hash, self.newest)

    @property
    def nodes(self) -> set[str]:
        """The hashes of its own nodes."""
        times = self.times_ref.hash
        return {self.digest.hash} if times is None else {self.digest.hash, times}

    @property
    def scanned(self) -> tuple[bytes, ...]:
        """What the directory was recorded from: all but what was made of it."""
        return self.names, self.stats, self.recorded, self.hits, self.times[TIMES_BYTES:]

    def with_nodes(self, node: TreeDigest, times: TimesRef) -> CachedDirectory:
        newest = None if times.newest is None else min(times.newest, MAX_TIME_NS)
        return self._replace(
            node=bytes.fromhex(node.hash),
            size=node.size_bytes,
            times=pack_times([times]) + self.times[TIMES_BYTES:],
            newest=newest,
        )

    def split_hits(self) -> dict[bytes, Hits]:
        """Returns what the scanner found in files, by name."""
        if not self.hits:
            return {}
        values = json.loads(self.hits).items()
        return {
            os.fsencode(name): tuple(Hit(kind, line) for kind, line in hits)
            for name, hits in values
        }

    def split_names(self) -> list[bytes]:
        return self.names.split(b"\0") if self.names else []

    def digest_at(self, index: int) -> Digest:
        hash, size = DIGEST.unpack_from(self.recorded, index * DIGEST.size)
        return Digest(hash.hex(), size)

    def entries(self) -> dict[bytes, tuple[bytes, Digest]]:
        """Returns the packed stat and the digest of each entry, by name."""
        entries = {}
        for index, (name, (hash, size)) in enumerate(
            zip(self.split_names(), DIGEST.iter_unpack(self.recorded), strict=True)
        ):
            printed = self.stats[index * STAT.size : (index + 1) * STAT.size]
            entries[name] = printed, Digest(hash.hex(), size)
        return entries


@dataclass(slots=True)
class StatCache:
    """The rows of one workspace: `load`, use, `save`; in memory: use, `advance`, use again, and
    `write` now and then.
    `path`: the database, None where nothing is to be saved; `looks`: the store that is only looked
    with: rows are saved of what is stored, and none is deleted."""

    path: Path | None = None
    looks: ScratchStore | None = None
    root: bytes = b""
    rows: dict[bytes, CachedDirectory] = field(default_factory=dict)
    updated: dict[bytes, CachedDirectory] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)
    unsaved: dict[bytes, CachedDirectory | None] = field(default_factory=dict)  # None: gone

    def get(self, path: bytes) -> CachedDirectory | None:
        self.seen.add(path)
        return self.rows.get(path)

    def put(self, path: bytes, row: CachedDirectory) -> None:
        self.updated[path] = row

    def advance(self) -> None:
        """Makes what was recorded the rows of the next snapshot."""
        self._note_unsaved()
        kept = {path: row for path, row in self.rows.items() if path in self.seen}
        self.rows = kept | self.updated
        self.updated = {}
        self.seen = set()

    def save(self) -> None:
        """Writes new rows, deletes those of directories that are gone."""
        if self.looks is not None:
            named = [hash for row in self.updated.values() for hash in row.nodes]
            stored = set(self.looks.stored(named))
            self.updated = {p: row for p, row in self.updated.items() if row.nodes <= stored}
        self._note_unsaved()
        self.write()

    def _note_unsaved(self) -> None:
        if self.path is not None:
            if self.looks is None:
                self.unsaved.update(dict.fromkeys(self.rows.keys() - self.seen))
            self.unsaved.update(self.updated)

    def write(self) -> None:
        """Writes what was recorded and is not saved yet."""
        if self.path is None or not self.unsaved:
            return
        new_rows = {path: row for path, row in self.unsaved.items() if row is not None}
        gone = self.unsaved.keys() - new_rows.keys()
        self.unsaved = {}
        with _database(self.path) as database, database.write() as db:
            db.executemany(
                "DELETE FROM dated_directories WHERE root = ? AND path = ?",
                [(self.root, path) for path in gone],
            )
            db.executemany(
                "INSERT OR REPLACE INTO dated_directories VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(self.root, path, *row) for path, row in new_rows.items()],
            )


def load(store: Store, directory: Path, rules: IgnoreRules, variant: str) -> StatCache:
    """Returns the rows of a directory as recorded by these rules and `variant` (that of
    SnapshotOptions), else as recorded by other rules, or restored."""
    path = store.root / "index.db"
    where = os.fsencode(real_path(directory))
    last = f"/{variant}".encode()
    root = where + b"\0" + rules.fingerprint.encode() + last
    with _database(path) as database, database.read() as db:
        root_counts = db.execute(
            "SELECT root, count(*) FROM dated_directories WHERE root >= ? AND root < ?"
            " GROUP BY root",
            (where + b"\0", where + b"\1"),
        ).fetchall()
        known = {key: count for key, count in root_counts if key.endswith(last)}
        if known and root not in known:
            root = max(known, key=lambda key: known[key])
        rows = db.execute(
            "SELECT path, names, stats, recorded, hits, node, size, times, newest"
            " FROM dated_directories WHERE root = ?",
            (root,),
        ).fetchall()
    looks = store if isinstance(store, ScratchStore) else None
    known = {row[0]: CachedDirectory(*row[1:]) for row in rows}
    saved = path if is_writable(store.root) else None
    return StatCache(saved, looks, root=root, rows=known)


def forget(store: Store, hash: str) -> None:
    """Deletes the rows that name this content, so that its files are read again."""
    with _database(store.root / "index.db") as database, database.write() as db:
        key = bytes.fromhex(hash)
        db.execute("DELETE FROM dated_directories WHERE instr(recorded, ?) > 0", (key,))


def _database(path: Path) -> closing[Database]:
    return closing(open_derived(path, SCHEMA))


def fingerprint(seen: os.stat_result | Stat, racy_after: int) -> bytes:
    """Returns the packed stat of an entry; RACY where it could not be relied on."""
    if seen.st_mtime_ns >= racy_after or seen.st_ctime_ns >= racy_after:
        return RACY
    packed = pack_stat(seen)
    return RACY if packed == NEVER_EQUAL else packed


def read_once(
    report: SnapshotReport, seen: os.stat_result, read: Callable[[], ReadContent]
) -> ReadContent:
    """Reads a file and counts it, unless one with this stat is `known`."""
    printed = fingerprint(seen, time.time_ns() - RACY_WINDOW_NS)
    # The layers of an overlay have inode numbers of their own.
    stamp = b"%d %b" % (seen.st_dev, printed)
    if report.known is not None and stamp in report.known:
        return report.known[stamp]
    content = read()
    report.read += 1
    report.read_bytes += content.digest.size_bytes
    if report.known is not None and printed != RACY:
        report.known[stamp] = content
    return content


def pack_stat(seen: os.stat_result | Stat) -> bytes:
    """Returns the stat as rows have it; NEVER_EQUAL, which no row has, for one whose times are
    beyond the year 2262."""
    mtime = seen.st_mtime_ns
    ctime = seen.st_ctime_ns
    try:
        return STAT.pack(seen.st_size, mtime, ctime, seen.st_ino, seen.st_mode)
    except struct.error:
        return NEVER_EQUAL


def pack_mode(mode: int) -> bytes:
    """Returns what a row has of the directory itself, where its mode is not the ordinary one."""
    return STAT.pack(0, 0, 0, 0, mode)


def unpack_stat(printed: bytes) -> Stat:
    """The inverse of `pack_stat`."""
    size, mtime, ctime, ino, mode = STAT.unpack(printed)
    return Stat(mode, size, st_mtime_ns=mtime, st_ctime_ns=ctime, st_ino=ino)


def pack(
    names: Sequence[bytes],
    fingerprints: Sequence[bytes],
    digests: Sequence[Digest],
    hits: Mapping[bytes, Hits],
    below: Sequence[TimesRef],
) -> CachedDirectory:
    """Returns the row of a directory that has no nodes yet; `below`: the times of its
    subdirectories, in order of name."""
    packed = [DIGEST.pack(bytes.fromhex(digest.hash), digest.size_bytes) for digest in digests]
    hits_by_name = {os.fsdecode(name): hits[name] for name in sorted(hits)}
    return CachedDirectory(
        names=b"\0".join(names),
        stats=b"".join(fingerprints),
        recorded=b"".join(packed),
        hits=json.dumps(hits_by_name).encode("ascii") if hits_by_name else b"",
        node=b"",
        size=0,
        times=NO_TIMES + pack_times(below),
        newest=None,
    )


def pack_times(times: Sequence[TimesRef]) -> bytes:
    return b"".join(
        NO_TIMES if times_ref.hash is None else bytes.fromhex(times_ref.hash) for times_ref in times
    )
