"""A damaged record of any kind is one finding of fsck; every listing, gc and the mount go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend.protocols import HeadName
from casfs.digest import BlobHash, Digest, NodeHash, ThreadId, TreeHash
from casfs.fuse.views.vnode import Directory
from casfs.maintenance import fsck, gc
from casfs.review import comments
from casfs.review.comments import Comment
from casfs.store import local_trees, tombstones
from casfs.store.local_trees import LocalTree
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from tests.support.cli import DEVELOP, lines, written
from tests.support.engine import Cli
from tests.support.fuse import at, names, walk
from tests.support.helpers import set_head
from tests.support.maintenance import fork, sql
from tests.support.thread_example import make_thread

ANY_RECORD = ("workflows/", "local/")  # kinds whose records may hold anything
KINDS = [kind.prefix for kind in head_kinds.KINDS]
THREADS = ("01JD0000000000000000000000", "01JD0000000000000000000001")
LISTINGS = [
    *(["thread", "list"], ["checkpoint", "list"], ["checkpoint", "list", "one"]),
    *(["plugin", "list"], ["workspace", "list"], ["action", "list"], ["workflow", "list"]),
    *(["schema", "list"], ["heads"], ["list", "content"], ["search", "word"]),
    *(["stats"], ["status"], ["action", "run", "--cache", "--", "true", "again"]),
]


@pytest.fixture
def planted(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with two heads of each kind."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").write_text("content")
    monkeypatch.chdir(work)
    for one in ("one", "two"):
        cli("checkpoint", "create", one, work)
        cli("checkpoint", "restore", one, tmp_path / f"out-{one}")
        cli("plugin", "sync", one, "1", work)
        cli("workspace", "open", one, tmp_path / f"ws-{one}", "--backend", "copy")
        cli("action", "run", "--cache", "--", "true", one)
        cli("schema", "add", written(tmp_path / "schema.json", {"$id": one, "type": "object"}))
        flow = {**json.loads(DEVELOP.read_text()), "name": one}
        cli("workflow", "add", written(tmp_path / "flow.json", flow))
    with Store.open(cli.root) as store:
        thread = make_thread(store, THREADS[0])
        thread.end()
        fork(thread, THREADS[1], thread.head.hash)
        for id, key in zip(THREADS, ("ab" * 16, "cd" * 16), strict=True):
            content = Digest.of(key.encode())
            tombstones.add(store, [Tombstone(content.hash, content.size_bytes, purged_at=1)])
            set_head(store, f"keys/{key}", thread.start, thread=id)
            draft = Comment(
                0, TreeHash(NodeHash(BlobHash(thread.tree))), b"a", 0, count=0, text="Why?"
            )
            comments.change(store, ThreadId(id), lambda old, _, new=draft: comments.add(old, new))
        set_head(store, "dictionaries/1", store.put(b"a dictionary").hash, type="schema", nodes=1)
        yield store


def damage(store: Store, prefix: str, record: str) -> HeadName:
    """Damages the first head of a kind that is no built-in schema."""
    name = next(n for n, head in store.heads.list(prefix) if not head.record.get("builtin"))
    sql(store, "UPDATE heads SET record = ? WHERE name = ?", record, name)
    return name


@pytest.mark.parametrize("record", ['{"bad":1,"builtin":"no"}', "[1]"])
def test_listings_go_on(cli: Cli, planted: Store, record: str) -> None:
    """Fails before: KeyError of plugin list, workspace list, action list."""
    with planted.batch() as batch:
        head = next(planted.heads.list("checkpoints/"))[1]
        local_trees.put(batch, head.hash, LocalTree(head.record["root"]))
    kinds = [prefix for prefix in KINDS if prefix not in ANY_RECORD or record == "[1]"]
    damaged = {damage(planted, prefix, record) for prefix in kinds}
    assert {one.takes[0] for one in fsck.check(planted).faults} == damaged
    for verb in LISTINGS:
        cli(*verb)
        assert "Traceback" not in "".join(lines(cli, *verb))
    for prefix in kinds:
        assert not damaged & {name for name, _ in head_kinds.sound(planted.heads, prefix)}
    if record == "[1]":
        cli("gc", code=1)  # what it keeps alive cannot be read
    else:
        gc.collect(planted, keep=1)
        assert {name for name, _ in planted.heads.list()} >= damaged
    for place in ("trees", "workflows", "actions", "history", f"threads/{THREADS[1]}"):
        top = at(planted, place)
        assert isinstance(top, Directory)
        walk(top)
    assert set(THREADS) <= {*names(planted, "threads")}
    assert names(planted, "trees/plugins") == ["two"]


@pytest.mark.parametrize("record", ['{"bad":1}', "[1]"])
def test_the_ways_out(cli: Cli, planted: Store, tmp_path: Path, record: str) -> None:
    """What is damaged can be made anew or removed."""
    for prefix in ("plugins/", "actions/", "workspaces/"):
        damage(planted, prefix, record)
    cli("plugin", "sync", "one", "1", tmp_path / "work")
    for word in ("one", "two"):
        cli("action", "run", "--cache", "--", "true", word)
    for one in ("one", "two"):
        cli("workspace", "close", "--force", tmp_path / f"ws-{one}")
    assert not fsck.check(planted).faults
    assert not list(planted.heads.list("workspaces/"))
