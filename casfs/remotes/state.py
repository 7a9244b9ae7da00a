"""The local copy of a remote's log: derived data, which may be deleted at any time.

But for the table `pushed`, which is this store's own note. Where it is lost, less moves: what
stands here as it was pushed is then taken for a name of this store alone.

remotes/NAME/state.db
    progress    the entry up to which this is current: number and id
    refs        name → {"hash", "record", "previous"}
    packs       kind, size, offset of the index; `idx`: the index, NULL until it is needed;
                `state`: live, orphaned since which entry, or pending: uploaded from here since
                which second, and in no entry yet
    members     hash → pack and number there, of packs whose index is here
    pushed      name → what it stood for here when it was last pushed
    (`casfs.exchange.arrivals.value`)
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from casfs import canonical
from casfs.backend.sqlite_connection import Connection, open_derived
from casfs.packs.index import PackIndex
from casfs.remotes.log import Entry, Pack

FILE = "state.db"
SCHEMA = """
CREATE TABLE IF NOT EXISTS progress (
  id INTEGER PRIMARY KEY, number INTEGER NOT NULL, entry TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS refs (name TEXT PRIMARY KEY, ref TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS packs (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, size INTEGER NOT NULL,
  offset INTEGER NOT NULL, idx BLOB, state TEXT NOT NULL, since INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS members (
  hash BLOB, pack INTEGER, number INTEGER NOT NULL, PRIMARY KEY (hash, pack)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS members_by_pack ON members(pack);
CREATE TABLE IF NOT EXISTS pushed (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
LIVE = "live"
ORPHANED = "orphaned"
PENDING = "pending"
BATCH = 500  # parameters of a statement
ADD_PACK = """
INSERT INTO packs (name, kind, size, offset, state, since) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET state = excluded.state, since = excluded.since
"""
COLUMNS = "name, kind, size, offset, idx"
LOCATE = """
SELECT m.hash, p.name, p.kind, m.number FROM members m JOIN packs p ON p.id = m.pack
WHERE p.state = ? AND p.kind = coalesce(?, p.kind) AND m.hash IN ({})
ORDER BY p.kind DESC, p.id
"""
HOLDERS = """
SELECT DISTINCT p.name FROM members m JOIN packs p ON p.id = m.pack WHERE m.hash IN ({})
"""


class Place(NamedTuple):
    """Where a blob is in a remote: in which pack, of which kind, as which member."""

    pack: str
    kind: str
    number: int


class State:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = open_derived(path, SCHEMA)

    def close(self) -> None:
        self._db.close()

    def _read(self, sql: str, *values: Any) -> list[Any]:
        with self._db.read() as db:
            return db.execute(sql, values).fetchall()

    # -- the log --------------------------------------------------------------------------

    def position(self) -> tuple[int, str | None]:
        """Returns number and id of the last entry; (0, None) before the first."""
        rows = self._read("SELECT number, entry FROM progress")
        return rows[0] if rows else (0, None)

    def clear(self) -> None:
        with self._db.write() as db:
            for table in ("progress", "refs", "packs", "members"):
                db.execute(f"DELETE FROM {table}")

    def apply(self, first: int, entries: Sequence[Entry]) -> bool:
        """Applies entries, of which the first has this number: the next one, or one with a
        snapshot. Returns False where another process has moved on. Raises Corrupt."""
        with self._db.write() as db:
            row = db.execute("SELECT number FROM progress").fetchone() or (0,)
            if row[0] >= first or (row[0] != first - 1 and entries[0]["all"] is None):
                return False
            for number, entry in enumerate(entries, first):
                if row[0] != first - 1 and number == first:
                    db.execute("DELETE FROM refs")
                    old = db.execute("SELECT name FROM packs WHERE state != ?", (PENDING,))
                    _drop(db, [name for (name,) in old.fetchall()])
                    _apply(db, entry["all"], number - 1)
                    orphaned = [(since, name) for name, since in entry["all"]["orphaned"].items()]
                    db.executemany("UPDATE packs SET since = ? WHERE name = ?", orphaned)
                _apply(db, entry, number)
            last = (first + len(entries) - 1, entries[-1]["id"])
            db.execute("INSERT OR REPLACE INTO progress VALUES (1, ?, ?)", last)
        return True

    def snapshot(self) -> dict[str, Any]:
        """Returns `all` of the next entry."""
        packs = {
            pack.name: pack._replace(data=None).encode() for pack in self.packs(LIVE, ORPHANED)
        }
        orphaned = self._read("SELECT name, since FROM packs WHERE state = ?", ORPHANED)
        return {"refs": self.refs(), "packs": packs, "orphaned": dict(orphaned)}

    def refs(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Returns name → {"hash", "record", "previous"} of all refs below a prefix, sorted."""
        sql = "SELECT name, ref FROM refs WHERE substr(name, 1, ?) = ? ORDER BY name"
        rows = self._read(sql, len(prefix), prefix)
        return {name: canonical.decode(ref.encode()) for name, ref in rows}

    def ref(self, name: str) -> dict[str, Any] | None:
        rows = self._read("SELECT ref FROM refs WHERE name = ?", name)
        return canonical.decode(rows[0][0].encode()) if rows else None

    def pushed(self) -> dict[str, str]:
        """Returns the names that were pushed from here, with what they stood for."""
        return dict(self._read("SELECT name, value FROM pushed"))

    def note_pushed(self, values: Mapping[str, str]) -> None:
        with self._db.write() as db:
            db.executemany("INSERT OR REPLACE INTO pushed VALUES (?, ?)", [*values.items()])

    # -- packs ----------------------------------------------------------------------------

    def packs(self, *states: str) -> list[Pack]:
        """Returns the packs in one of these states, in the order of their arrival."""
        marks = ",".join("?" * len(states))
        sql = f"SELECT {COLUMNS} FROM packs WHERE state IN ({marks}) ORDER BY id"
        return [Pack(*row) for row in self._read(sql, *states)]

    def unindexed(self) -> list[Pack]:
        """Returns the live packs whose index is not here yet."""
        sql = f"SELECT {COLUMNS} FROM packs WHERE state = '{LIVE}' AND idx IS NULL"
        return [Pack(*row) for row in self._read(sql)]

    def pack(self, name: str) -> Pack:
        """Returns a pack that is known to be one."""
        return Pack(*self._read(f"SELECT {COLUMNS} FROM packs WHERE name = ?", name)[0])

    def since_when(self, state: str) -> dict[str, int]:
        """Returns since when packs are in this state, by name."""
        return dict(self._read("SELECT name, since FROM packs WHERE state = ?", state))

    def add_index(self, name: str, data: bytes) -> None:
        """Keeps the index of a pack, with its members. Raises Corrupt."""
        with self._db.write() as db:
            _add_index(db, self.pack(name)._replace(data=data))

    def add_pending(self, pack: Pack) -> None:
        """Notes a pack that is about to be uploaded."""
        with self._db.write() as db:
            _add_pack(db, pack, state=PENDING, since=int(time.time()))

    def drop_pending(self, name: str) -> None:
        with self._db.write() as db:
            _drop(db, [name])

    # -- members --------------------------------------------------------------------------

    def holders(self, hashes: Collection[str]) -> set[str]:
        """Returns the names of the packs in any state, of those with an index, that hold these."""
        names: set[str] = set()
        keys = [bytes.fromhex(hash) for hash in hashes]
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            rows = self._read(HOLDERS.format(",".join("?" * len(part))), *part)
            names.update(name for (name,) in rows)
        return names

    def locate(
        self, hashes: Collection[str], state: str = LIVE, kind: str | None = None
    ) -> dict[str, Place]:
        """Returns where those are that packs of this state and kind hold; as a node where it is
        that as well as plain bytes."""
        locations: dict[str, Place] = {}
        keys = [bytes.fromhex(hash) for hash in hashes]
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            rows = self._read(LOCATE.format(",".join("?" * len(part))), state, kind, *part)
            for key, *location in rows:
                locations.setdefault(key.hex(), Place(*location))
        return locations


def _apply(db: Connection, change: dict[str, Any], number: int) -> None:
    for name, value in change["packs"].items():
        _add_pack(db, Pack.decode(name, value), state=LIVE, since=number)
    for state, names in ((ORPHANED, change["orphaned"]), (LIVE, change.get("live", ()))):
        rows = [(state, number, name) for name in names]
        db.executemany("UPDATE packs SET state = ?, since = ? WHERE name = ?", rows)
    _drop(db, change.get("deleted", ()))
    for name, ref in change["refs"].items():
        db.execute("DELETE FROM refs WHERE name = ?", (name,))
        if ref is not None:
            db.execute("INSERT INTO refs VALUES (?, ?)", (name, canonical.encode(ref).decode()))


def _add_pack(db: Connection, pack: Pack, state: str, since: int) -> None:
    db.execute(ADD_PACK, (*pack[:4], state, since))
    if pack.data is not None:
        _add_index(db, pack)


def _add_index(db: Connection, pack: Pack) -> None:
    id, old = db.execute("SELECT id, idx FROM packs WHERE name = ?", (pack.name,)).fetchone()
    if old is None:
        index = PackIndex(pack.name, pack.data or b"", pack.offset)
        rows = [(bytes.fromhex(index.member(n).hash), id, n) for n in range(index.members)]
        db.executemany("INSERT OR IGNORE INTO members VALUES (?, ?, ?)", sorted(rows))
        db.execute("UPDATE packs SET idx = ? WHERE id = ?", (pack.data, id))


def _drop(db: Connection, names: Collection[str]) -> None:
    rows = [(name,) for name in names]
    db.executemany("DELETE FROM members WHERE pack = (SELECT id FROM packs WHERE name = ?)", rows)
    db.executemany("DELETE FROM packs WHERE name = ?", rows)
