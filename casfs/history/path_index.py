"""Which steps of a thread may have changed a path: an index, so that the others are not read.

    history.db    lanes(id, parent, fork): runs of steps, each of which continues step `fork` of the
                  lane `parent`, or a thread's start; steps(lane, number, hash, calls): the steps of
                  a run by number in their thread, and whether more than their own tree is in them;
                  changes(path, lane, number): what a step may have changed

It is derived data in its own file: a step pays nothing, since each question first indexes the steps
that are new, and deleting the file loses nothing. `path` is a hash of the path, so the file names
none, and of two paths with one hash each has the changes of both: a reader compares the entries
before it believes one. A directory that came, went or became a file counts by itself, not what is
below it; all paths below it are looked up by its own path with a slash behind.

Steps and trees never change, so no row does, either. gc deletes the file with the first step that
it has deleted (`prune`), fsck in any case.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias
from weakref import finalize

from casfs.backend.derived import find_missing
from casfs.backend.sqlite_connection import Connection, Database, open_derived, remove_derived
from casfs.digest import BlobHash, NodeHash, TreeHash, hash_bytes
from casfs.history.path_entries import payloads
from casfs.store.nodes import directory
from casfs.store.store import Store
from casfs.system import interruption

FILE = "history.db"
SCHEMA = """
CREATE TABLE IF NOT EXISTS lanes (id INTEGER PRIMARY KEY, parent INTEGER, fork INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS steps (
  lane INTEGER, number INTEGER, hash BLOB NOT NULL UNIQUE, calls INTEGER NOT NULL,
  PRIMARY KEY (lane, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changes (
  path INTEGER, lane INTEGER, number INTEGER, PRIMARY KEY (path, lane, number)
) WITHOUT ROWID;
"""
STEPS_AT_ONCE = 2000  # in one transaction
CACHED_KEYS = 4096
KEY_CHARS = 15  # of a hash in hex: 60 bits, which an INTEGER holds
LAST_NUMBER = "SELECT max(number) FROM steps WHERE lane = ?"
STEPS_OF = "SELECT hash, calls FROM steps WHERE lane = ? AND number <= ? ORDER BY number DESC"
CHANGES_OF = "SELECT number FROM changes WHERE path = ? AND lane = ? AND number <= ?"


@dataclass(frozen=True, slots=True)
class Step:
    """What is indexed of a step. `calls`: its node has called threads, or a person's prompt."""

    number: int
    hash: NodeHash
    root: TreeHash | None
    detail: NodeHash | None
    calls: bool

    @staticmethod
    def of_node(hash: NodeHash, step: Mapping[str, Any]) -> Step:
        calls = bool(step["childThreads"]) or "prompt" in step
        return Step(step["index"], hash, root=step["workspace"], detail=step["detail"], calls=calls)


@dataclass(frozen=True, slots=True)
class _Run:
    """The steps of a lane up to a number."""

    lane: int
    number: int


@dataclass(frozen=True, slots=True)
class _Pair:
    """A directory before and after a step."""

    path: bytes
    number: int
    old: str | None
    new: str | None


Changed: TypeAlias = set[tuple[int, int]]  # (key of a path, number of the step)


class IndexedThread:
    """The steps up to one, newest first, at positions from 0 on; the thread's start comes after
    them."""

    def __init__(
        self, database: Database, runs: Sequence[_Run], rows: Sequence[tuple[bytes, int]]
    ) -> None:
        """Takes over `database`: it stays open, since another process may delete the file, and
        number the steps of the next one otherwise."""
        self._database = database
        self._runs = runs
        finalize(self, database.close)
        self.hashes = [NodeHash(BlobHash(key.hex())) for key, _ in rows]
        self.with_calls = [position for position, (_, calls) in enumerate(rows) if calls]

    def changed(self, path: bytes) -> list[int]:
        """Returns the positions, in their order, of all steps before which there may have been
        another entry at a path."""
        names = path.split(b"/")
        above = (b"/".join(names[:count]) for count in range(len(names)))
        keys = {_key(path), *(_key(directory + b"/") for directory in above)}
        newest = len(self.hashes)
        with self._database.read() as db:
            return sorted(
                {
                    newest - number
                    for key in keys
                    for run in self._runs
                    for (number,) in db.execute(CHANGES_OF, (key, run.lane, run.number))
                }
            )


def index_thread(store: Store, steps: Iterator[Step], start: TreeHash | None) -> IndexedThread:
    """Returns the index of a thread up to a step. `steps`: that one and those before it, read only
    as far as they are new; `start`: the tree that the thread began with. Raises CasfsError,
    also where the index cannot be written."""
    with ExitStack() as until_it_is_taken_over:
        database = open_derived(store.root / FILE, SCHEMA)
        until_it_is_taken_over.callback(database.close)
        fresh: list[Step] = []
        base: _Run | None = None
        before = start
        with database.read() as db:
            (highest,) = db.execute("SELECT coalesce(max(number), 0) FROM steps").fetchone()
            for step in steps:
                if step.number <= highest and (run := _run_of(db, step.hash)) is not None:
                    base = run
                    before = step.root
                    break
                fresh.append(step)
        fresh.reverse()
        for first in range(0, len(fresh), STEPS_AT_ONCE):
            added = fresh[first : first + STEPS_AT_ONCE]
            roots = [before, *(step.root for step in added)]
            changed = _changes(store, first_number=added[0].number, roots=roots)
            sessions = _sessions(store, added)
            with database.write() as db:
                base = _add(db, base, steps=added, changed=changed, sessions=sessions)
            before = roots[-1]
        assert base is not None, "a thread with steps"
        with database.read() as db:
            runs = list(_runs(db, base))
            rows = [row for run in runs for row in db.execute(STEPS_OF, (run.lane, run.number))]
        until_it_is_taken_over.pop_all()
    return IndexedThread(database, runs, rows)


def _sessions(store: Store, steps: Sequence[Step]) -> set[str]:
    """Returns the details of steps that have turns."""
    infos = store.blobs.info([step.detail for step in steps if step.detail])
    types = {info.type for info in infos.values() if info.type is not None}
    sessions = {type for type in types if store.registry.name(type) == "react-session"}
    return {detail for detail, info in infos.items() if info.type in sessions}


def _add(
    db: Connection,
    base: _Run | None,
    steps: Sequence[Step],
    changed: Changed,
    sessions: Container[str | None],
) -> _Run:
    """Adds the steps after `base`; returns the last one. What another process has added meanwhile
    is taken as it is. `sessions`: the details that have turns."""
    # Who knows a step knows all before it, so mostly one question tells that none is known.
    if _run_of(db, steps[0].hash) is not None:
        runs = [_run_of(db, step.hash) for step in steps]
        known = [run for run in runs if run is not None]
        base = known[-1]
        steps = steps[len(known) :]
        changed = {(key, number) for key, number in changed if number > base.number}
        if not steps:
            return base
    lane = None if base is None else base.lane
    if base is None or db.execute(LAST_NUMBER, (lane,)).fetchone() != (base.number,):
        fork = 0 if base is None else base.number
        cursor = db.execute("INSERT INTO lanes (parent, fork) VALUES (?, ?)", (lane, fork))
        lane = cursor.lastrowid
    assert lane is not None
    db.executemany(
        "INSERT INTO steps VALUES (?, ?, ?, ?)",
        [
            (lane, step.number, bytes.fromhex(step.hash), step.calls or step.detail in sessions)
            for step in steps
        ],
    )
    db.executemany(
        "INSERT INTO changes VALUES (?, ?, ?)",
        [(key, lane, number) for key, number in sorted(changed)],
    )
    return _Run(lane, steps[-1].number)


def _run_of(db: Connection, hash: NodeHash) -> _Run | None:
    """Returns the run that ends with a step; None where that is not indexed."""
    row = db.execute(
        "SELECT lane, number FROM steps WHERE hash = ?", (bytes.fromhex(hash),)
    ).fetchone()
    return None if row is None else _Run(*row)


def _runs(db: Connection, last: _Run) -> Iterator[_Run]:
    """Yields the runs that lead to a step, the newest first."""
    run: _Run | None = last
    while run is not None:
        yield run
        parent, fork = db.execute(
            "SELECT parent, fork FROM lanes WHERE id = ?", (run.lane,)
        ).fetchone()
        run = None if parent is None else _Run(parent, fork)


def _changes(store: Store, first_number: int, roots: Sequence[TreeHash | None]) -> Changed:
    """Returns what differs between each two of these trees that follow one another. Directories are
    read a level at a time, each once where it follows itself."""
    changed: Changed = set()
    level = [
        _Pair(b"", number, old, new)
        for number, (old, new) in enumerate(pairwise(roots), first_number)
        if old != new
    ]
    while level:
        interruption.check()
        level = list(_compare(store, sorted(level, key=lambda pair: pair.path), changed))
    return changed


def _compare(store: Store, pairs: Sequence[_Pair], changed: Changed) -> Iterator[_Pair]:
    """Adds what differs between directories, but for what is below them; yields the pairs of the
    directories below that differ. `pairs`: by path, then number."""
    for pair in pairs:
        changed.add((_key(pair.path), pair.number))
        if pair.old is None or pair.new is None:
            changed.add((_key(pair.path + b"/"), pair.number))
    whole = [pair for pair in pairs if pair.old is not None and pair.new is not None]
    wanted: list[str] = []
    for pair in whole:
        for hash in (pair.old, pair.new):
            # Most pairs begin with what the one before ended with.
            if hash is not None and wanted[-1:] != [hash]:
                wanted.append(hash)
    directories = payloads(store, wanted, "directory")
    last: tuple[str | None, Any] = (None, None)
    for pair in whole:
        old = last[1] if last[0] == pair.old else next(directories)
        new = next(directories)
        last = (pair.new, new)
        for name, (old_tree, new_tree) in directory.changed_names(old, new).items():
            path = pair.path + b"/" + name if pair.path else name
            if old_tree == new_tree:
                changed.add((_key(path), pair.number))
            else:
                yield _Pair(path, pair.number, old_tree, new_tree)


@lru_cache(CACHED_KEYS)
def _key(path: bytes) -> int:
    return int(hash_bytes(path)[:KEY_CHARS], 16)


def prune(store: Store) -> None:
    """Deletes a store's index where gc has deleted steps of it."""
    path = store.root / FILE
    if not path.exists():
        return
    with closing(open_derived(path, SCHEMA)) as database, database.read() as db:
        ends = db.execute("SELECT hash, max(number) FROM steps GROUP BY lane").fetchall()
    if find_missing(store.blobs, [key.hex() for key, _ in ends]):
        remove(store)


def remove(store: Store) -> None:
    """Deletes a store's index; the next question makes it anew."""
    remove_derived(store.root / FILE)
