"""The store of the public API: where it is, and that internal code takes it."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import casfs
from casfs.store.store import Store as Trunk
from tests.support.helpers import ABSENT, LARGE, write_tree


def test_without_a_path_it_is_the_store_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(casfs.NotFound, match="make one with `casfs init`"):
        casfs.open()
    for name in ("data", "XDG"):
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / name))
        with casfs.init() as store:
            assert store.root == tmp_path / name / "casfs"
    monkeypatch.setenv("CASFS_STORE", str(tmp_path / "named"))
    with casfs.init() as store:
        assert store.root == tmp_path / "named"
    with casfs.open() as store:
        assert store.root == tmp_path / "named"


def test_a_path_is_a_str_or_a_path_and_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASFS_STORE", str(tmp_path / "named"))
    monkeypatch.chdir(tmp_path)
    with casfs.init("mine") as store:
        assert store.root == tmp_path / "mine"
    for path in ("mine", Path("mine"), tmp_path / "mine"):
        with casfs.open(path) as store:
            assert isinstance(store, casfs.Store)
            assert isinstance(store, Trunk)
            assert store.root == tmp_path / "mine"
    assert not (tmp_path / "named").exists()


@pytest.mark.parametrize("data", [b"", b"small", LARGE])
def test_bytes_go_in_and_come_out(data: bytes) -> None:
    with casfs.Store.memory() as store:
        digest = store.put_stream(io.BytesIO(data))
        assert digest == store.put(data)
        for hash in (digest, digest.hash):
            assert store.get(hash) == data
            assert store.has(hash)
            with store.stream(hash) as file:
                assert file.seekable()
                file.seek(2)
                assert file.read(1) == data[2:3]
        assert not store.has(ABSENT)
        with pytest.raises(casfs.NotFound):
            store.get(ABSENT)


def test_nodes_are_read_by_digest_and_walked() -> None:
    with casfs.Store.memory() as store:
        blob = store.put(b"log")
        digest = store.put_node("content", {"text": "t", "artifacts": [blob.hash]})
        node = store.node(digest, "content")
        assert node == store.node(digest.hash)
        assert store.refs(node)[0] == casfs.Ref(blob.hash, None)
        *most, meta = store.walk(digest)
        assert most == [digest.hash, blob.hash, node.type_hash]
        assert store.node(meta).payload["$id"] == "schema"
        with pytest.raises(casfs.NotFound, match="not a directory"):
            store.node(digest, "directory")


def test_a_digest_of_another_size_is_not_found(tmp_path: Path) -> None:
    with casfs.init(tmp_path / "store") as store:
        digest = casfs.Digest.of(b"four")
        store.put(b"four")
        assert store.get(digest) == b"four"
        with pytest.raises(casfs.NotFound, match=r"has 4 bytes, not 5$"):
            store.get(casfs.Digest(digest.hash, 5))


def test_threads_that_share_a_store_each_record_their_checkpoints(
    tmp_path: Path,
) -> None:
    same = write_tree(tmp_path / "same", {"f": b"x"})
    own = [write_tree(tmp_path / str(number), {"f": b"0"}) for number in range(8)]

    def record(number: int) -> None:
        for count in range(10):
            (own[number] / "f").write_text(str(count))
            store.checkpoints.create(f"own-{number}", own[number])
            store.checkpoints.create("same", same)

    with casfs.init(tmp_path / "store") as store:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(record, range(8)))
        for number in range(8):
            assert len(store.checkpoints.list(f"own-{number}")) == 10
