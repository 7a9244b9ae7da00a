"""Compressed node rows: what is stored, dictionaries, and how gc writes rows anew."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from casfs.backend.disk import DiskBackend
from casfs.backend.protocols import Staged
from casfs.backend.recompression import MIN_NODES
from casfs.backend.row_compression import MAGIC
from casfs.cli.output_schemas import output_schema
from casfs.digest import Digest
from casfs.errors import CorruptBlob, Refused
from casfs.maintenance import fsck, gc
from casfs.store.store import FORMAT, Store
from tests.support.helpers import set_head
from tests.support.new_store import init_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with init_store(root) as made:
        yield made


def backend(store: Store) -> DiskBackend:
    assert isinstance(store.backend, DiskBackend)
    return store.backend


def row(store: Store, hash: str) -> bytes:
    with backend(store)._db.read() as db:
        (data,) = db.execute(
            "SELECT data FROM blobs WHERE hash = ?", (bytes.fromhex(hash),)
        ).fetchone()
    assert isinstance(data, bytes)
    return data


def put_many(store: Store, count: int, start: int = 0) -> list[str]:
    words = random.Random(start)
    with store.batch() as batch:
        return [
            batch.put_node(
                "content", {"text": f"step {n}: " + sentence(words), "artifacts": []}
            ).hash
            for n in range(start, start + count)
        ]


def sentence(words: random.Random) -> str:
    return " ".join(
        words.choice(("the", "agent", "wrote", "a", "file", "again")) for _ in range(30)
    )


def decompress(root: Path) -> None:
    """Writes every row as it is without compression, for the next run to compress."""
    with Store.open(root) as store:
        rows = [
            (store.blobs.get(hash).data, bytes.fromhex(hash))
            for _, hash, info in store.blobs.iterate()
            if info.type is not None
        ]
        with backend(store)._db.write() as db:
            db.executemany("UPDATE blobs SET data = ? WHERE hash = ?", rows)
            db.execute("DELETE FROM recompressed")


def test_a_long_node_is_compressed_and_read_back(store: Store) -> None:
    found = store.put_node("content", {"text": "word " * 100, "artifacts": []})
    stored = row(store, found.hash)
    assert stored[:1] == MAGIC
    assert len(stored) < 150
    assert store.node(found.hash).payload["text"] == "word " * 100
    assert Digest.of(store.get(found.hash)).hash == found.hash


def test_a_short_node_and_plain_bytes_are_not(store: Store) -> None:
    node = store.put_node("content", {"text": "", "artifacts": []})
    blob = store.put(b"word " * 100)
    assert row(store, node.hash) == store.get(node.hash)
    assert row(store, blob.hash) == b"word " * 100


def test_bytes_that_begin_like_a_compressed_row(store: Store) -> None:
    """No node of ours does, but a backend takes any bytes."""
    for data in (MAGIC, MAGIC + b"x" * 10, MAGIC + os.urandom(1000)):
        digest = Digest.of(data)
        type = store.registry.current("content")
        store.backend.publish([Staged(digest, data, type=type)])
        assert store.blobs.get(digest.hash).data == data


@pytest.mark.parametrize("damage", ["truncated", "flipped", "dictionary", "bomb"])
def test_a_damaged_row_is_never_served(store: Store, damage: str) -> None:
    found = store.put_node("content", {"text": "word " * 100, "artifacts": []})
    old = row(store, found.hash)
    new = {
        "truncated": old[:-3],
        "flipped": old[:20] + bytes([old[20] ^ 1]) + old[21:],
        "dictionary": MAGIC + b"\0\0\0\x07" + old[5:],
        "bomb": MAGIC + b"\0\0\0\0(\xb5/\xfd" + b"\xe0" + b"\xff" * 12,
    }[damage]
    with backend(store)._db.write() as db:
        db.execute("UPDATE blobs SET data = ? WHERE data = ?", (new, old))
    with pytest.raises(CorruptBlob):
        store.get(found.hash)
    with pytest.raises(CorruptBlob):
        list(store.blobs.get_many([found.hash]))
    (fault,) = fsck.check(store).faults
    assert (fault.kind, fault.hash) == ("corrupt", found.hash)


def test_gc_trains_a_dictionary_and_compresses_what_is_there(store: Store) -> None:
    hashes = put_many(store, MIN_NODES)
    before = sum(len(row(store, hash)) for hash in hashes)
    gc.collect(store)
    after = sum(len(row(store, hash)) for hash in hashes)
    assert after < before * 0.9
    assert [name for name, _ in store.heads.list("dictionaries/")] == ["dictionaries/1"]
    assert fsck.check(store).faults == []
    gc.collect(store)  # nothing new: no other dictionary
    assert len(list(store.heads.list("dictionaries/"))) == 1
    with Store.open(store.root or Path()) as other:  # another process reads and writes them
        (new,) = put_many(other, 1, start=10**6)
        assert row(store, new)[1:5] == b"\0\0\0\1"
        assert store.get(new) == other.get(new)


def test_the_number_of_a_dictionary_that_is_there_is_not_given_again(store: Store) -> None:
    """As by a run that was killed, or by another process."""
    set_head(store, "dictionaries/1", store.put(b"a dictionary").hash, type="other", nodes=1)
    hashes = put_many(store, MIN_NODES)
    gc.collect(store)
    assert [name for name, _ in store.heads.list("dictionaries/")] == [
        "dictionaries/1",
        "dictionaries/2",
    ]
    assert row(store, hashes[0])[1:5] == b"\0\0\0\2"
    assert fsck.check(store).faults == []


def test_a_dictionary_outlives_the_nodes_it_was_trained_on(store: Store) -> None:
    put_many(store, MIN_NODES)
    gc.collect(store)
    gc.collect(store, grace=0)
    backend(store).blobs.rows.refresh()
    (new,) = put_many(store, 1, start=10**6)
    with Store.open(store.root or Path()) as other:
        assert other.get(new)


@pytest.mark.parametrize("old", ["casfs 1", "casfs 2"])
def test_a_store_of_an_earlier_format_is_refused(root: Path, old: str) -> None:
    init_store(root).close()
    (root / "format").write_text(f"{old}\n")
    before = stored_files(root)
    for refused in (Store.open, Store.init, Store.check_init):
        with pytest.raises(Refused, match=f"has format '{old}'.*; export it with the casfs that"):
            refused(root)
    assert stored_files(root) == before


def test_a_dry_run_changes_nothing(root: Path) -> None:
    init_store(root).close()
    before = stored_files(root)
    found = json.loads(casfs("init", "--dry-run", "--json", root=root))
    Draft202012Validator(output_schema("init")).validate(found)
    assert found == {"store": str(root), "dryRun": True, "format": FORMAT}
    assert stored_files(root) == before


def test_a_dry_run_makes_no_store_and_refuses_what_init_refuses(root: Path) -> None:
    assert b"would be made" in casfs("init", "--dry-run", root=root)
    assert not root.exists()
    root.mkdir()
    (root / "file").touch()
    with pytest.raises(Refused, match="not empty"):
        Store.check_init(root)
    (root / "file").rename(root / "format")
    with pytest.raises(Refused, match="has format"):
        Store.check_init(root)


def stored_files(root: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


@pytest.mark.parametrize("new", ["another node", "nothing"])
def test_a_row_whose_new_form_is_not_proved_stays_as_it_was(
    root: Path, monkeypatch: pytest.MonkeyPatch, new: str
) -> None:
    """The old bytes are kept until the new ones decode to them."""
    with init_store(root) as store:
        hashes = put_many(store, 20)
    decompress(root)
    with Store.open(root) as store:
        rows = backend(store).blobs.rows
        encode = rows.encode
        wrong = encode(b"x" * 500, "any") if new == "another node" else MAGIC + b"\0\0\0\0"
        monkeypatch.setattr(rows, "encode", lambda data, type: wrong)
        old = {hash: row(store, hash) for hash in hashes}
        backend(store).recompression().recompress()
        assert {hash: row(store, hash) for hash in hashes} == old
        assert fsck.check(store).faults == []


def test_a_damaged_row_is_left_to_fsck(root: Path) -> None:
    with init_store(root) as store:
        (hash,) = put_many(store, 1)
    decompress(root)
    damaged = b'{"payload":{"text":"' + b"not what was stored " * 20
    with sqlite3.connect(root / "store.db") as db:
        db.execute("UPDATE blobs SET data = ? WHERE hash = ?", (damaged, bytes.fromhex(hash)))
    db.close()
    with Store.open(root) as store:
        backend(store).recompression().recompress()
        assert row(store, hash) == damaged
        (fault,) = fsck.check(store).faults
        assert fault.hash == hash


def test_gc_that_is_killed_loses_nothing(root: Path) -> None:
    with init_store(root) as store:
        hashes = put_many(store, 4 * MIN_NODES)
        content = {hash: store.get(hash) for hash in hashes}
    decompress(root)
    rng = random.Random(7)
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-m", "casfs", "--store", str(root), "gc"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(0.05, 0.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
    with Store.open(root) as store:
        recompression = backend(store).recompression()
        recompression.train()  # if no run has come so far
        recompression.recompress()
        assert {hash: store.get(hash) for hash in hashes} == content
        assert row(store, hashes[0])[:1] == MAGIC
        assert fsck.check(store).faults == []


def casfs(*arguments: str, root: Path) -> bytes:
    command = [sys.executable, "-m", "casfs", "--store", str(root), *arguments]
    return subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE).stdout


@pytest.mark.parametrize("many", [False, True])
def test_a_row_whose_dictionary_goes_while_it_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    nodes = put_many(store, MIN_NODES + 10)
    gc.collect(store, grace=3600)
    hash = nodes[0]
    data, recompression = store.get(hash), backend(store).recompression()
    rows = backend(store).blobs.rows
    decode = rows.decode

    def decode_late(row: bytes) -> bytes:
        monkeypatch.undo()
        assert recompression.retire(lambda dictionary: True) >= 1
        rows._loaded.clear()  # as in a process that has not used it yet
        return decode(row)

    monkeypatch.setattr(rows, "decode", decode_late)
    read = next(iter(store.blobs.get_many([hash]))) if many else store.get(hash)
    assert read == data
    assert fsck.check(store).faults == []
