"""What the tests of gc, fsck, export and search need: old blobs, damage, threads, checkpoints."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from casfs.maintenance import archive, names
from casfs.maintenance.archive import Exported
from casfs.store import local_trees
from casfs.store.local_trees import LocalTree
from casfs.store.store import Store
from casfs.system.clock import moment_id
from tests.support.helpers import LARGE, put_tree, set_head
from tests.support.thread_example import Example, make_thread

OLD = 100_000  # seconds: older than any grace period
SECOND = "01JD0000000000000000000001"
CREATED = 1_700_000_000_000
NOTE = {
    "$id": "note",
    "type": "object",
    "properties": {"text": {"type": "string"}, "of": {"type": "string", "format": "cas_ref"}},
    "required": ["text"],
}


def sql(store: Store, statement: str, *values: Any) -> list[Any]:
    """What no program of ours does: change the database behind the store's back."""
    with closing(sqlite3.connect(store.root / "store.db")) as db, db:
        return db.execute(statement, values).fetchall()


def age(store: Store, seconds: int = OLD) -> None:
    """Make every blob older."""
    sql(store, "UPDATE blobs SET touched = touched - ?", seconds)


def content(store: Store, text: str, *artifacts: str) -> str:
    return store.put_node("content", {"text": text, "artifacts": list(artifacts)}).hash


def ended(store: Store, *texts: str, id: str = "01JD0000000000000000000000") -> Example:
    """A thread that said these things, one a step, and ended."""
    thread = make_thread(store, id)
    for text in texts:
        thread.step("planner", text)
    thread.end()
    return thread


def fork(thread: Example, id: str, hash: str, **record: Any) -> str:
    """Another head on the chain of a thread; returns its name."""
    status = {} if hash == thread.head.hash else {"status": "suspended"}
    set_head(thread.store, f"threads/{id}", hash, **{**thread.head.record, **status, **record})
    return f"threads/{id}"


def put_checkpoint(
    store: Store,
    tree: dict[str, Any],
    name: str = "work",
    at: int = 0,
    message: str = "",
    local: dict[str, Any] | None = None,
) -> str:
    """A checkpoint of a literal tree, `local` with what is private; returns its head's name."""
    root = put_tree(store, tree)
    stats = {"files": 1, "bytes": 1, "added": 1, "modified": 0, "deleted": 0}
    record = {"root": root, "createdAt": CREATED + at, "message": message}
    more: dict[str, Any] = {"previous": None, "name": name, "stats": stats, "changed_files": []}
    node = store.put_node("checkpoint", {**record, **more}).hash
    if local is not None:
        with store.batch() as batch:
            local_trees.put(batch, node, LocalTree(put_tree(store, local)))
    head = f"checkpoints/{name}/{moment_id(CREATED + at, node)}"
    set_head(store, head, node, **record)
    return head


@contextmanager
def reopened(store: Store) -> Iterator[Store]:
    """The same store as a new process sees it: nothing verified, nothing compiled."""
    with Store.open(store.root) as other:
        yield other


def fill(store: Store) -> Example:
    """A thread of three steps, a checkpoint, and a type of its own."""
    with store.batch() as batch:
        batch.put_schema(NOTE)
    blob = store.put(LARGE).hash
    note = store.put_node("note", {"text": "not of a thread", "of": blob}).hash
    thread = make_thread(store)
    thread.step("planner", "one", changes=store.put(b"--- a\n+++ b\n").hash)
    thread.step("planner", "two", detail=note, artifacts=[blob])
    thread.step("planner", "drei ☃")
    thread.end()
    put_checkpoint(store, {"file": LARGE + b"!", "small": b"x", "dir": {}})
    return thread


def export(
    store: Store,
    path: Path,
    *roots: str,
    have: set[str] | None = None,
    zstd: bool = False,
    with_local: bool = False,
) -> Exported:
    hashes, heads = names.roots(store, list(roots))
    with path.open("wb") as out:
        return archive.export(
            store,
            hashes,
            heads,
            out,
            options=archive.ExportOptions(have=have or set(), compress=zstd, with_local=with_local),
        )
