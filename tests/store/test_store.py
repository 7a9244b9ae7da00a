from __future__ import annotations

import gc
import io
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from casfs.backend.protocols import Staged
from casfs.digest import Digest
from casfs.errors import (
    CasfsError,
    Conflict,
    Corrupt,
    CorruptBlob,
    Failed,
    Invalid,
    NotFound,
    Refused,
)
from casfs.store.nodes import node
from casfs.store.nodes.ref_collectors import Ref
from casfs.store.nodes.registry import builtin
from casfs.store.store import FORMAT, Store
from tests.support.block_maps import FIRST, changed, put_change
from tests.support.helpers import ABSENT, LARGE, private_files, put_unchecked
from tests.support.lasting import ROOT_ONLY


def content(store: Store, text: str = "text") -> str:
    return store.put_node("content", {"text": text, "artifacts": []}).hash


def heads(store: Store) -> list[object]:
    return list(store.heads.list())


# -- init and open ------------------------------------------------------------------------


def test_init_makes_a_private_store_that_opens(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    Store.init(root).close()
    assert root.stat().st_mode & 0o777 == 0o700
    assert (root / "format").read_text() == FORMAT + "\n"
    assert {"store.db", "objects", "tmp", "log", "workspaces"} <= {p.name for p in root.iterdir()}
    with Store.open(root) as store:
        assert set(store.registry.names()) == set(builtin())


def test_init_again_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.init(root) as store:
        blob = store.put(LARGE).hash
        before = heads(store), sorted(store.blobs.iterate())
    root.chmod(0o755)
    with Store.init(root) as store:
        assert (heads(store), sorted(store.blobs.iterate())) == before
        assert store.get(blob) == LARGE
    assert root.stat().st_mode & 0o777 == 0o700


def test_init_takes_an_empty_directory_and_one_that_it_was_killed_in(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    Store.init(root).close()
    (root / "format").unlink()
    with pytest.raises(NotFound, match="casfs init"):
        Store.open(root)
    Store.init(root).close()
    Store.open(root).close()


@pytest.mark.parametrize("name", ["file", "objects", "log", "HEAD"])
def test_init_refuses_a_directory_of_somebody_else(tmp_path: Path, name: str) -> None:
    """`objects` too: a bare git repository has one."""
    (tmp_path / name).mkdir()
    with pytest.raises(Refused, match="not empty"):
        Store.init(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("home",)] == [name]


def test_init_where_a_file_is_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(Failed, match="cannot make a store"):
            Store.init(root)


@pytest.mark.parametrize("written", [b"casfs 6\n", b"", b"casfs 11\n", b"\xff\xfe"])
def test_another_format_is_refused(tmp_path: Path, written: bytes) -> None:
    root = tmp_path / "store"
    Store.init(root).close()
    (root / "format").write_bytes(written)
    with pytest.raises(Refused, match="format"):
        Store.init(root)
    with pytest.raises(CasfsError, match="format"):
        Store.open(root)
    assert (root / "format").read_bytes() == written


@pytest.mark.parametrize("name", ["missing", "empty", "file", "file/below"])
def test_where_no_store_is_none_opens(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotFound, match=name):
        Store.open(tmp_path / name)
    assert list((tmp_path / "empty").iterdir()) == []


WRITER = """
import os, sys
from pathlib import Path
from casfs.store.store import Store
store = Store.open(Path(sys.argv[1]))
batch = store.batch()
batch.put(b"x" * (1 << 20))
print("staged", flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def test_open_sweeps_after_dead_writers_only(disk_store: Store) -> None:
    tmp = disk_store.root / "tmp"
    project = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-c", WRITER, str(disk_store.root)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=project) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "staged\n"
        Store.open(disk_store.root).close()
        assert len(private_files(disk_store.root)) == 1
        writer.stdin.close()
        writer.wait()
    assert len(list(tmp.iterdir())) == 1
    Store.open(disk_store.root).close()
    assert list(tmp.iterdir()) == []


# -- blobs and nodes ----------------------------------------------------------------------


@pytest.fixture(params=["memory", "disk"])
def any_store(request: pytest.FixtureRequest) -> Store:
    name = "store" if request.param == "memory" else "disk_store"
    found: Store = request.getfixturevalue(name)
    return found


def test_a_stream_and_its_bytes_are_one_blob(any_store: Store) -> None:
    assert any_store.put_stream(io.BytesIO(LARGE)) == any_store.put(LARGE)
    assert any_store.get(any_store.put(LARGE).hash) == LARGE


def test_bytes_are_never_sniffed(any_store: Store) -> None:
    payload = {"text": "x", "artifacts": []}
    type_hash = any_store.registry.head("content").hash
    data = node.encode(type_hash, payload)
    hash = any_store.put(data).hash
    with pytest.raises(NotFound, match="is a blob, not a node"):
        any_store.node(hash)
    turn = {"input": hash, "output": hash, "toolCalls": [], "latencyMs": 1}
    turn["tokens"] = {"input": 0, "output": 0}
    with pytest.raises(Invalid, match="a blob, and must be a content"):
        any_store.put_node("react-turn", turn)
    assert any_store.put_node("content", payload).hash == hash
    assert any_store.node(hash, "content").payload == payload
    assert any_store.put(data).hash == hash
    assert any_store.node(hash).type == "content"
    any_store.put_node("react-turn", turn)


def test_a_node_says_what_it_is(any_store: Store) -> None:
    hash = content(any_store)
    found = any_store.node(hash)
    assert (found.hash, found.type) == (hash, "content")
    assert found.type_hash == any_store.registry.head("content").hash
    assert any_store.refs(found) == [Ref(found.type_hash, "schema")]
    with pytest.raises(NotFound, match="is a content, not a thread-step"):
        any_store.node(hash, "thread-step")
    with pytest.raises(NotFound):
        any_store.node(ABSENT)


def test_the_bytes_of_a_node_are_canonical(any_store: Store) -> None:
    first = any_store.put_node("content", {"text": "é", "artifacts": []})
    second = any_store.put_node("content", {"artifacts": [], "text": "é"})
    assert first == second
    type_hash = any_store.registry.head("content").hash
    expected = f'{{"payload":{{"artifacts":[],"text":"é"}},"type":"{type_hash}"}}'.encode()
    assert any_store.get(first.hash) == expected
    assert first.size_bytes == len(expected)


@pytest.mark.parametrize("data", [b"", b"no json", b"[]", b"{}", b'{"payload":1,"type":2}'])
def test_a_node_that_does_not_parse_is_corrupt(store: Store, data: bytes) -> None:
    type_hash = store.registry.head("content").hash
    store.backend.publish([Staged(Digest.of(data), data, type=type_hash)])
    with pytest.raises(Corrupt, match=Digest.of(data).hash):
        store.node(Digest.of(data).hash)


def test_a_type_that_is_no_schema_is_corrupt(store: Store) -> None:
    type_hash = put_unchecked(store, "schema", ["no schema"])
    data = node.encode(type_hash, {})
    store.backend.publish([Staged(Digest.of(data), data, type=type_hash)])
    with pytest.raises(Corrupt, match=type_hash):
        store.node(Digest.of(data).hash)


def test_a_flipped_bit_in_a_file_is_never_served(disk_store: Store) -> None:
    hash = disk_store.put(LARGE).hash
    assert disk_store.get(hash) == LARGE
    path = disk_store.root / "objects" / hash[:2] / hash[2:]
    path.chmod(0o644)
    path.write_bytes(bytes([LARGE[0] ^ 1]) + LARGE[1:])
    for store in (disk_store, Store.open(disk_store.root)):
        with pytest.raises(CorruptBlob, match=hash):
            store.get(hash)
        with pytest.raises(CorruptBlob, match=hash):
            store.blobs.open(hash)
    store.close()
    assert path.exists()  # only fsck moves it


def test_a_flipped_bit_in_a_row_is_never_served(disk_store: Store) -> None:
    hash, small = content(disk_store), disk_store.put(b"small").hash
    with sqlite3.connect(disk_store.root / "store.db") as db:
        for one in (hash, small):
            key = bytes.fromhex(one)
            (data,) = db.execute("SELECT data FROM blobs WHERE hash = ?", (key,)).fetchone()
            flipped = data[:-1] + bytes([data[-1] ^ 1])
            db.execute("UPDATE blobs SET data = ? WHERE hash = ?", (flipped, key))
    db.close()
    for one in (hash, small):
        with pytest.raises(CorruptBlob, match=one):
            disk_store.get(one)
        with pytest.raises(CorruptBlob, match=one):
            disk_store.blobs.open(one)
    with pytest.raises(CorruptBlob):
        disk_store.node(hash)


# -- prefixes -----------------------------------------------------------------------------


def test_a_hash_or_a_unique_prefix_is_expanded(any_store: Store) -> None:
    hash = any_store.put(LARGE).hash
    for length in (8, 9, 63, 64):
        assert any_store.expand(hash[:length]) == hash


@pytest.mark.parametrize(
    "text", ["", "abc", "0f0f0f0", "0F0F0F0F", "zzzzzzzz", ABSENT + "0", "é" * 8]
)
def test_what_is_no_prefix_is_refused(any_store: Store, text: str) -> None:
    with pytest.raises(Invalid, match="not a valid hash"):
        any_store.expand(text)


@pytest.mark.parametrize("text", [ABSENT, ABSENT[:8], ABSENT[:9]])
def test_what_is_not_there_is_not_found(any_store: Store, text: str) -> None:
    with pytest.raises(NotFound, match=text):
        any_store.expand(text)


def test_a_store_in_memory_is_there_as_long_as_a_view_of_it() -> None:
    view = Store.memory().local_writes()
    root = view.root
    gc.collect()
    hash = view.put(b"x").hash
    assert view.get(hash) == b"x"
    del view
    gc.collect()
    assert not root.exists()


def test_a_store_in_memory_goes_when_it_is_closed() -> None:
    with Store.memory() as store:
        assert store.root.stat().st_mode & 0o777 == 0o700
    assert not store.root.exists()


def test_an_ambiguous_prefix_is_a_conflict(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two real hashes that share 8 characters take too long to find: the index is told."""
    hash = store.put(b"one").hash
    twin = hash[:8] + ABSENT[8:]
    monkeypatch.setattr(store.blobs, "find", lambda prefix, limit: sorted([twin, hash]))
    with pytest.raises(Conflict, match=f"{hash[:8]} is ambiguous"):
        store.expand(hash[:8])


def test_a_store_of_the_format_before_becomes_one_of_this(tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store:
        hash = store.put(b"kept").hash
    with closing(sqlite3.connect(tmp_path / "s/store.db")) as db, db:
        db.execute("DROP TABLE patches")
        db.execute("DROP INDEX mapped_blobs")
    (tmp_path / "s/format").write_text("casfs 4\n")
    with Store.open(tmp_path / "s") as store:
        assert store.get(hash) == b"kept"
        first = store.put(FIRST).hash
        assert store.get(put_change(store, changed(FIRST, 1), first)) == changed(FIRST, 1)
    assert (tmp_path / "s/format").read_text() == f"{FORMAT}\n"
    (tmp_path / "s/format").write_text("casfs 4\n")
    with Store.init(tmp_path / "s") as store:
        assert store.get(hash) == b"kept"


@ROOT_ONLY
def test_root_writes_nothing_into_another_users_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    Store.init(root).close()
    os.chown(root, 65534, 65534)
    files = sorted(root.rglob("*"))
    for use in (Store.open, Store.init):
        with pytest.raises(Refused, match="belongs to nobody; use it as that user: sudo -u nobody"):
            use(root)
    assert sorted(root.rglob("*")) == files
