"""Full-text search over nodes: an SQLite FTS5 index in `search.db`, beside the store proper.

The index is derived data: it holds no text, only words and their positions, and deleting the
file loses nothing. Every search first indexes the nodes that have arrived since the last one,
so a put costs nothing and a result is never stale. A damaged index is rebuilt.

Indexed are the strings of a payload, except hashes, of every node but directories and
schemas; of what a program left also its stderr, and its stdout where it failed. A hit in the output
of a step leads to that step's `output.md` in the mount, one in its detail to `detail/`, one in that
of a failed attempt to `attempts/`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from casfs.backend.protocols import META, BlobInfo
from casfs.backend.sqlite_connection import Connection, open_derived, remove_derived
from casfs.digest import is_hash
from casfs.errors import CasfsError, Corrupt
from casfs.maintenance import search_threads
from casfs.review import comments
from casfs.store.nodes.node import Node
from casfs.store.store import Store
from casfs.system import interruption
from casfs.threads import threads
from casfs.threads.threads import StepNode, Thread, ThreadId

SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS docs (id INTEGER PRIMARY KEY, hash BLOB NOT NULL, type TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS places
    (node BLOB, path TEXT, step BLOB, start BLOB, idx INTEGER, role TEXT);
CREATE INDEX IF NOT EXISTS places_by_node ON places(node);
CREATE TABLE IF NOT EXISTS progress (id INTEGER PRIMARY KEY, position INTEGER NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, content='', tokenize='unicode61');
"""
    + search_threads.SCHEMA
)
SKIPPED_TYPES = ("directory", META)
OLD_TABLE = "steps"  # of an index without details
MAX_STREAM_BYTES = 64 << 10  # of a program's output, its end
READ_NODES = 500  # at once
# Of a transaction: many small ones are merged many times over, and a large one is lost as a whole
# where the caller's time ends.
INDEX_BATCH_NODES = 20_000
INDEX_BATCH_BYTES = 16 << 20
INDEX_MEMORY_BYTES = 32 << 20  # of words, before FTS5 writes them: its default, 1 MiB, is slower
SNIPPET_CONTEXT_CHARS = 60  # on either side
WORD = re.compile(r"\w+")
TOKEN = re.compile(r"[^\W_]+")  # as the index splits texts
Place = tuple[Thread, int | None, str | None, str]  # thread, step, role, path below the thread


@dataclass(frozen=True, slots=True)
class Hit:
    """`path` is relative to a mount; `thread`, `step` and `role` are those of the step."""

    hash: str
    type: str
    path: str
    snippet: str
    thread: ThreadId | None = None
    step: int | None = None
    role: str | None = None


class Index:
    """The index of a store. `progress`: gets blobs and bytes looked at while indexing."""

    def __init__(
        self, store: Store, progress: Callable[[int, int], None] = lambda done, size: None
    ) -> None:
        self._store = store
        self._progress = progress
        self._blobs_seen = self._bytes_seen = 0
        self._path = store.root / "search.db"
        self._db = open_derived(self._path, SCHEMA)
        if self._is_old():
            self._rebuild()

    def _is_old(self) -> bool:
        with self._db.read() as db:
            cursor = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (OLD_TABLE,))
            return cursor.fetchone() is not None

    def _rebuild(self) -> None:
        self._db.close()
        remove_derived(self._path)
        self._db = open_derived(self._path, SCHEMA)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    # -- indexing -------------------------------------------------------------------------

    def catch_up(self) -> int:
        """Indexes the nodes that have arrived since the last time; returns their number."""
        done = 0
        while True:
            interruption.check()
            with self._db.write() as db:
                count, has_more = self._index_batch(db)
            done += count
            if not has_more:
                return done

    def _index_batch(self, db: Connection) -> tuple[int, bool]:
        """Indexes what has arrived, up to a limit; returns the number of nodes, and whether there
        may be more."""
        row = db.execute("SELECT position FROM progress").fetchone()
        if row is None:
            size = (INDEX_MEMORY_BYTES,)
            db.execute("INSERT INTO words (words, rank) VALUES ('hashsize', ?)", size)
        position = row[0] if row else 0
        count = 0
        left = INDEX_BATCH_BYTES
        arrivals = self._store.blobs.iterate(position)
        while left > 0 and count < INDEX_BATCH_NODES:
            if not (arrived := list(islice(arrivals, READ_NODES))):
                break
            interruption.check()
            positions = {hash: position for position, hash, info in arrived if self._has_text(info)}
            for node in self._store.readable_nodes([*positions]):
                left -= self._add(db, positions[node.hash], node)
                count += 1
            position = arrived[-1][0]
            self._blobs_seen += len(arrived)
            self._bytes_seen += sum(info.size for _, _, info in arrived)
            self._progress(self._blobs_seen, self._bytes_seen)
        db.execute("INSERT OR REPLACE INTO progress (id, position) VALUES (1, ?)", (position,))
        return count, left <= 0 or count >= INDEX_BATCH_NODES

    def _has_text(self, info: BlobInfo) -> bool:
        if info.type is None:
            return False
        try:
            return self._store.registry.name(info.type) not in SKIPPED_TYPES
        except CasfsError:  # its schema is damaged
            return False

    def _add(self, db: Connection, position: int, node: Node[Any]) -> int:
        """Returns the length of the node's text."""
        db.execute(
            "INSERT OR REPLACE INTO docs (id, hash, type) VALUES (?, ?, ?)",
            (position, bytes.fromhex(node.hash), node.type),
        )
        text = self._text(node)
        db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (position, text))
        if node.type == "thread-step":
            _add_step(db, node)
        return len(text)

    def _text(self, node: Node[Any]) -> str:
        parts = [*_strings(node.payload)]
        if node.type == "command-detail":
            names = ["stderr", *(["stdout"] if node.payload["exitCode"] else [])]
            parts += (self._end(node.payload[name]) for name in names)
        return "\n".join(parts)

    def _end(self, hash: str) -> str:
        """Returns the end of a program's output; empty where it cannot be read."""
        try:
            return self._store.get(hash)[-MAX_STREAM_BYTES:].decode("utf-8", "replace")
        except CasfsError:
            return ""

    # -- searching ------------------------------------------------------------------------

    def search(
        self,
        text: str,
        *,
        type: str | None = None,
        thread: ThreadId | None = None,
        limit: int = 100,
    ) -> Iterator[Hit]:
        """Yields nodes that contain all words of `text`, the best match first; optionally of
        one type, or only of one thread's steps."""
        words = WORD.findall(unicodedata.normalize("NFC", text))
        query = " ".join(f'"{word}"' for word in words)
        try:
            matching = self._matching(query, type)
        except Corrupt:  # it is not durable: a power cut may damage it
            self._rebuild()
            matching = self._matching(query, type)
        if matching:
            search_threads.catch_up(self._store, self._db)
        hits = (hit for match in matching for hit in self._hits(*match, words))
        yield from islice((hit for hit in hits if thread in (None, hit.thread)), limit)

    def _matching(self, query: str, type: str | None) -> list[tuple[str, str]]:
        """Returns (hash, type) of each node, the best first, without duplicates: a node that
        was deleted and put again is in the index twice."""
        self.catch_up()
        if not query:
            return []
        with self._db.read() as db:
            rows = db.execute(
                "SELECT d.hash, d.type FROM words w JOIN docs d ON d.id = w.rowid"
                " WHERE words MATCH ? AND (? IS NULL OR d.type = ?) ORDER BY rank, d.id",
                (query, type, type),
            ).fetchall()
        return [(key.hex(), kind) for key, kind in dict.fromkeys(rows)]

    def _hits(self, hash: str, kind: str, words: list[str]) -> list[Hit]:
        try:
            node = self._store.node(hash)
            snippet = _snippet(self._text(node), words)
        except CasfsError:
            return []
        if kind == "review":
            return self._review_hits(node, snippet)
        hits = [
            Hit(
                hash,
                kind,
                path=f"threads/{owner.id}/{path}",
                snippet=snippet,
                thread=owner.id,
                step=index,
                role=role,
            )
            for owner, index, role, path in self._places(hash)
        ]
        return hits or [Hit(hash, kind, path=f"nodes/{hash}/", snippet=snippet)]

    def _review_hits(self, node: Node[Any], snippet: str) -> list[Hit]:
        """Of a review only the newest version counts, which has all comments."""
        id = ThreadId(node.payload["thread"])
        head = self._store.heads.get(comments.head_name(id))
        if head is None or head.hash != node.hash:
            return []
        return [Hit(node.hash, node.type, f"nodes/{node.hash}/", snippet=snippet, thread=id)]

    def _places(self, hash: str) -> Iterator[Place]:
        """Yields every step that shows this node, and every failed attempt at a pending one."""
        with self._db.read() as db:
            rows = db.execute(
                "SELECT DISTINCT step, start, idx, role, path FROM places WHERE node = ?",
                (bytes.fromhex(hash),),
            ).fetchall()
            owners = {
                start: search_threads.began_with(self._store, db, start.hex())
                for start in {row[1] for row in rows}
            }
            failed = search_threads.failed_with(self._store, db, hash)
        for step, start, index, role, path in rows:
            for owner in owners[start]:
                if self._has(owner, index, step.hex()):
                    yield owner, index, role, f"steps/{index:06}-{role}/{path}"
        for owner in failed:
            intent = owner.fields.get("intent") or {}
            for attempt_number, attempt in enumerate(owner.fields.get("attempts") or ()):
                if attempt == hash:
                    yield (
                        owner,
                        intent.get("index"),
                        intent.get("role"),
                        f"attempts/{attempt_number:04}/",
                    )

    def _has(self, owner: Thread, index: int, step: str) -> bool:
        try:
            steps = threads.steps(self._store, owner)
        except CasfsError:
            return False
        return index <= len(steps) and steps[index - 1].hash == step


def _add_step(db: Connection, node: StepNode) -> None:
    step = node.payload
    shown = [(step["detail"], "detail/")] if step["detail"] != step["content"] else []
    shown += [(step["content"], "output.md")]
    shown += [
        (hash, f"attempts/{attempt_number:04}/")
        for attempt_number, hash in enumerate(step["attempts"])
    ]
    key = bytes.fromhex(node.hash)
    start = bytes.fromhex(step["start"])
    db.executemany(
        "INSERT INTO places (node, path, step, start, idx, role) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (bytes.fromhex(hash), path, key, start, step["index"], step["role"])
            for hash, path in shown
        ],
    )


def _strings(value: Any) -> Iterator[str]:
    """Yields the strings of a payload in order, except hashes."""
    if isinstance(value, str):
        if not is_hash(value):
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)


def _snippet(text: str, words: list[str]) -> str:
    """Returns the line that has most of the words, cut around the first of them."""
    wanted = {_folded(token) for word in words for token in TOKEN.findall(word)}
    best = ""
    most = -1
    match_start = 0
    for line in text.splitlines():
        matches = [match for match in TOKEN.finditer(line) if _folded(match[0]) in wanted]
        if (count := len({_folded(match[0]) for match in matches})) > most:
            best = line
            most = count
            match_start = matches[0].start() if matches else 0
    cut = best[max(match_start - SNIPPET_CONTEXT_CHARS, 0) : match_start + SNIPPET_CONTEXT_CHARS]
    return " ".join(cut.split())


def _folded(word: str) -> str:
    """Returns a word as the index compares it: without case and accents."""
    plain = unicodedata.normalize("NFD", word).lower()
    return "".join(char for char in plain if not unicodedata.combining(char))
