from __future__ import annotations

import marshal
import os
import signal
import sys
import time
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from casfs.backend import hot_packs
from casfs.backend.derived import staging_directory, total_stored
from casfs.backend.disk import DiskBackend
from casfs.checkpoints import create
from casfs.checkpoints.followed_directory import FollowedDirectory
from casfs.digest import TreeHash
from casfs.errors import Failed
from casfs.store.nodes.directory import Subdirectory
from casfs.store.store import Store
from casfs.system.paths import DIR_FLAGS
from casfs.trees import tree as tree_nodes
from casfs.trees.snapshot import read_queue, reader_pool, stat_cache, walker
from casfs.trees.snapshot.encoder import Encoder, ScannedDirectory, ScannedEntry
from casfs.trees.snapshot.file_reader import ReadFile
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.read_queue import ReadQueue
from casfs.trees.snapshot.reader_pool import ReaderPool
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from tests.support.helpers import private_files
from tests.support.maintenance import sql

LARGE = b"large" * 1000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    for place in range(30):
        folder = root / f"d{place % 5}" / f"e{place}"
        folder.mkdir(parents=True)
        for number in range(10):
            (folder / f"f{number}").write_bytes(b"%d " % (place * number % 40) * (number * 200))
    return root


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to read, processes read it."""
    monkeypatch.setattr(read_queue, "POOL_MIN_FILES", 0)
    monkeypatch.setattr(read_queue, "READ_BATCH_FILES", 3)


def build(store: Store, root: Path, report: SnapshotReport | None = None) -> str:
    with store.batch() as batch:
        return walker.snapshot(batch, root, IgnoreRules(), report).node.hash


def test_processes_record_what_one_would(
    disk_store: Store, store: Store, tree: Path, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, helped = SnapshotReport(), SnapshotReport()
    with monkeypatch.context() as patch:
        patch.setattr(read_queue, "POOL_MIN_FILES", sys.maxsize)
        by_one = build(store, tree, alone)
    assert by_one == build(disk_store, tree, helped)
    assert alone == helped


def test_nothing_private_is_left(disk_store: Store, tree: Path, always: None) -> None:
    build(disk_store, tree)
    assert private_files(disk_store.root) == []
    build(disk_store, tree)
    assert private_files(disk_store.root) == []


ALL_IS_READ = b"all is read"
READ = b"read"


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The directories that are encoded, in their order, when files were read, and when all were."""
    events: list[bytes] = []
    encode_entry = Encoder.encode_entry
    put_packs = ReadQueue._put_packs
    adopt = ReadQueue._adopt

    def encode_noted(encoder: Encoder, entry: ScannedEntry, scanned: ScannedDirectory) -> None:
        events.append(scanned.path)
        encode_entry(encoder, entry, scanned)

    def put_noted(queue: ReadQueue, *, is_last: bool) -> None:
        if is_last:
            events.append(ALL_IS_READ)
        put_packs(queue, is_last=is_last)

    def adopt_noted(queue: ReadQueue, scanned: ScannedDirectory, done: list[ReadFile]) -> None:
        if done:
            events.append(READ)
        adopt(queue, scanned, done)

    monkeypatch.setattr(Encoder, "encode_entry", encode_noted)
    monkeypatch.setattr(ReadQueue, "_put_packs", put_noted)
    monkeypatch.setattr(ReadQueue, "_adopt", adopt_noted)
    return events


def test_directories_are_encoded_while_others_are_read(
    disk_store: Store, tmp_path: Path, always: None, events: list[bytes]
) -> None:
    directories = [b"/d%d" % number for number in range(9)]
    for directory in directories:
        place = tmp_path / "work" / directory[1:].decode()
        place.mkdir(parents=True)
        (place / "row").write_bytes(directory)
    build(disk_store, tmp_path / "work")
    encoded = [event for event in events if event in directories]
    assert sorted(encoded) == directories
    # Each as soon as its file is read.
    assert events == [*(event for path in encoded for event in (READ, path)), ALL_IS_READ]


def test_a_pack_of_which_the_batch_has_all_is_discarded(
    disk_store: Store, tmp_path: Path, always: None
) -> None:
    """As after a stale cache, when all is read again."""
    work = tmp_path / "work"
    work.mkdir()
    for number in range(hot_packs.MIN_BLOBS):
        (work / f"{number}").write_bytes(b"%d" % number * 2000)
    with disk_store.batch() as batch:
        first = walker.snapshot(batch, work, IgnoreRules())
        assert walker.snapshot(batch, work, IgnoreRules()).node == first.node
    assert private_files(disk_store.root) == []


def test_an_agent_waits_only_until_all_is_read(
    disk_store: Store, tree: Path, always: None, events: list[bytes]
) -> None:
    followed = FollowedDirectory(disk_store, tree)
    try:
        followed.look(None, all_read=lambda: events.append(b"the agent goes on"))
    finally:
        followed.close()
    first = events.index(b"the agent goes on")
    assert set(events[:first]) == {READ, ALL_IS_READ}
    assert READ not in events[first:]


def test_a_stale_cache_leaves_nothing(
    disk_store: Store, tmp_path: Path, always: None, events: list[bytes]
) -> None:
    """It shows when the first directory is encoded, in the middle of an answer."""
    work = tmp_path / "work"
    for number in range(6):
        directory = work / f"d{number}" / "below"
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(b"%d" % number)
        os.utime(directory / "file", ns=(0, 0))
    racy_until = time.time_ns() + stat_cache.RACY_WINDOW_NS
    while time.time_ns() < racy_until:
        time.sleep(0.1)
    root = create.create(disk_store, "work", work).checkpoint.root
    for number in range(6):
        lost = tree_nodes.find(disk_store, TreeHash(root), b"d%d/below" % number)
        assert isinstance(lost, Subdirectory)
        sql(disk_store, "DELETE FROM blobs WHERE hash = ?", bytes.fromhex(lost.digest.hash))
    for number in range(6):
        (work / f"d{number}" / "large").write_bytes(LARGE * 300 + b"%d" % number)
    events.clear()
    # Another process: this one knows which nodes it has put.
    with Store.open(disk_store.root) as store:
        create.create(store, "again", work)
        assert private_files(store.root) == []  # now, not when it is closed
    # The first of two attempts ended before all was read.
    assert len([event for event in events if event.startswith(b"/")]) > 12
    assert events.count(ALL_IS_READ) == 1


def test_a_directory_waits_for_the_pack_that_its_files_are_in(
    disk_store: Store, tmp_path: Path, always: None, events: list[bytes]
) -> None:
    (tmp_path / "work" / "copy").mkdir(parents=True)
    (tmp_path / "work" / "packed").mkdir()
    for number in range(hot_packs.MIN_BLOBS):
        (tmp_path / "work" / "packed" / f"{number}").write_bytes(b"%d" % number * 2000)
    (tmp_path / "work" / "copy" / "0").write_bytes(b"0" * 2000)
    root = build(disk_store, tmp_path / "work")
    # Both wait, and it does not matter which of the equal files was read first.
    last = events.index(ALL_IS_READ)
    assert set(events[:last]) == {READ}
    assert sorted(events[last + 1 :]) == [b"/copy", b"/packed"]
    assert tree_nodes.find(disk_store, TreeHash(root), b"copy/0") is not None


def test_a_file_that_cannot_be_read_is_named(disk_store: Store, tree: Path) -> None:
    root = os.open(tree, DIR_FLAGS)
    private = staging_directory(disk_store.blobs)
    assert private is not None
    pool: ReaderPool[int] = ReaderPool(private, root)
    try:
        pool.submit([(1, b"/d0/e0", [b"f1", b"x" * 300])])
        ((_, done),) = pool.results(0)
        assert [one.error for one in done] == ["", "File name too long"]
    finally:
        pool.close()
        os.close(root)
    assert private_files(disk_store.root) == []


def test_what_has_vanished_or_become_a_link_is_not_there(
    disk_store: Store, tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(LARGE)
    (tree / "link").symlink_to(tmp_path / "outside")
    root = os.open(tree, DIR_FLAGS)
    private = staging_directory(disk_store.blobs)
    assert private is not None
    pool: ReaderPool[str] = ReaderPool(private, root)
    found: dict[str, list[ReadFile] | str] = {}
    try:
        pool.submit([("gone", b"/none", [b"f"])])
        pool.submit([("file", b"/d0/e0", [b"f1", b"none"])])
        for key, done in pool.results(0):
            found[key] = done
        pool.submit([("link", b"/link", [b"f"])])
        found["link"] = [one for _, done in pool.results(0) for one in done]
    finally:
        pool.close()
        os.close(root)
    assert found["gone"] == []
    assert [one.error for one in found["link"] if isinstance(one, ReadFile)] == ["Not a directory"]
    assert [one.name for one in found["file"] if isinstance(one, ReadFile)] == [b"f1"]


def test_a_reader_that_is_killed_fails_the_snapshot(
    disk_store: Store, tree: Path, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[ReaderPool[object]] = []

    class Killed(ReaderPool[object]):
        def submit(self, batch: Any) -> None:
            if not kept:
                kept.append(self)
                for process in self._processes:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
            super().submit(batch)

    monkeypatch.setattr(reader_pool, "ReaderPool", Killed)
    with pytest.raises(Failed, match="ended"):
        build(disk_store, tree)
    assert private_files(disk_store.root) == []
    monkeypatch.setattr(reader_pool, "ReaderPool", ReaderPool)
    build(disk_store, tree)


def test_what_was_sent_is_kept_when_a_reader_is_ended_at_once(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent ends its readers as soon as it has the last result."""
    (tmp_path / "file").write_bytes(LARGE * 300)  # a file of its own
    private = staging_directory(disk_store.blobs)
    ours, theirs = Pipe()
    real = Connection.send_bytes

    def send_and_be_ended(pipe: Any, data: bytes) -> None:
        real(pipe, data)
        os.kill(os.getpid(), signal.SIGTERM)

    def read() -> None:
        monkeypatch.setattr(Connection, "send_bytes", send_and_be_ended)
        arguments = [str(private), str(fd), "null", str(theirs.fileno())]
        monkeypatch.setattr(sys, "argv", ["-c", *arguments])
        reader_pool.main()

    fd = os.open(tmp_path, DIR_FLAGS)
    process = get_context("fork").Process(target=read)
    process.start()
    ours.send_bytes(marshal.dumps([(b"", [b"file"])]))
    error, (((name, *_, staged, _, _, _, _, _),),), *_ = marshal.loads(ours.recv_bytes())
    process.join(30)
    os.close(fd)
    assert process.exitcode == 0
    assert (error, name) == (None, b"file")
    assert Path(staged[1]).read_bytes() == LARGE * 300


def test_an_abandoned_snapshot_leaves_nothing(
    disk_store: Store, tree: Path, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(50):
        (tree / f"large{place}").write_bytes(LARGE + b"%d" % place)

    def stop(files: int, _: int) -> None:
        if files > 60:
            raise KeyboardInterrupt

    with disk_store.batch() as batch:
        options = SnapshotOptions(progress=stop)
        with pytest.raises(KeyboardInterrupt):
            walker.snapshot(batch, tree, IgnoreRules(), options=options)
    assert private_files(disk_store.root) == []


def test_what_is_stored_is_known_while_it_is_little(
    disk_store: Store, tree: Path, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(disk_store.backend, DiskBackend)
    before = total_stored(disk_store.blobs).blobs
    first = build(disk_store, tree)
    stored = reader_pool.few_stored(disk_store.blobs)
    assert stored == {hash for _, hash, _ in disk_store.blobs.iterate()}
    assert len(stored) > before
    packs = len(list((disk_store.root / "packs").iterdir()))
    assert build(disk_store, tree) == first
    assert len(list((disk_store.root / "packs").iterdir())) == packs  # nothing was staged again
    monkeypatch.setattr(reader_pool, "MAX_FEW_BLOBS", len(stored) - 1)
    assert reader_pool.few_stored(disk_store.blobs) is None
