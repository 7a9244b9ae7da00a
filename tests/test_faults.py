"""A full disk and a broken one: one clear line each, and a store that is good afterwards.

The full disk is real, a tmpfs of a few MiB; so is SQLite's `disk I/O error`, which a limit
on the size of files brings about. Only what the kernel cannot be made to do, EIO from a
single call, is put in its place.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from casfs.backend import objects, sqlite_connection
from casfs.backend.derived import start_gc
from casfs.backend.protocols import Head
from casfs.checkpoints import checkpoint, create
from casfs.errors import CasfsError, Failed
from casfs.maintenance import archive, fsck, gc
from casfs.store.graph import walk
from casfs.store.store import Store
from tests.support.helpers import LARGE, blobs, private_files, put_tree, write_tree
from tests.support.restores import restore_tree

SIZE = 4 << 20  # of the small disk
FREE_BYTES = 96 << 10  # what "full" leaves: enough to begin, never to finish
State = tuple[set[str], dict[str, Head]]


def state(store: Store) -> State:
    return blobs(store), dict(store.heads.list())


def check_good(root: Path, before: State) -> None:
    """The store as a new process sees it: swept, sound, and nothing of `before` is lost."""
    with Store.open(root) as store:
        assert private_files(root) == []
        assert fsck.check(store, quarantine=False).faults == []
        had, heads = before
        assert had <= blobs(store)
        for name, head in heads.items():
            assert list(walk(store, [head.hash]))
            assert store.heads.get(name) is not None


def assert_message(error: pytest.ExceptionInfo[CasfsError], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert any(word in message for word in words), message


# -- a full disk ------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def root(disk: Path) -> Path:
    """A store on the small disk, with a file, a row and a head."""
    with Store.init(disk / "store") as store:
        tree = put_tree(store, {"a": LARGE, "b": b"small"})
        with store.batch() as batch:
            batch.swap("held", None, Head(tree))
    return disk / "store"


@contextmanager
def full(disk: Path, leave: int = FREE_BYTES) -> Iterator[None]:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as out:
        while os.statvfs(disk).f_bavail:
            out.write(bytes(4096))
        out.truncate(max(out.tell() - leave, 0))
    try:
        yield
    finally:
        ballast.unlink()


def put_large(store: Store) -> None:
    store.put(os.urandom(1 << 20))


def put_many_nodes(store: Store) -> None:
    with store.batch() as batch:
        for n in range(3000):
            batch.put_node("content", {"text": f"{n:0500}", "artifacts": []})


def put_in_parts(store: Store) -> None:
    for n in range(1000):
        store.put_node("content", {"text": f"{n:05000}", "artifacts": []})


def move_heads(store: Store) -> None:
    for n in range(3000):
        with store.batch() as batch:
            name = f"move/{n}"
            batch.swap(name, None, Head(store.heads.get("held").hash, {"fill": "x" * 3000}))


def take_checkpoint(store: Store) -> None:
    folder = store.root.parent.parent / "work"
    write_tree(folder, {f"{n}": os.urandom(20_000) for n in range(40)})
    create.create(store, "name", folder)


WRITES = [put_large, put_many_nodes, put_in_parts, move_heads, take_checkpoint]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@pytest.mark.parametrize("leave", [0, FREE_BYTES])
def test_a_full_disk_is_told_and_does_no_harm(
    write: Callable[[Store], None], leave: int, disk: Path, root: Path
) -> None:
    with Store.open(root) as store:
        before = state(store)
        with full(disk, leave):
            with pytest.raises(Failed) as error:
                write(store)
            assert_message(error, "No space left", "is full")
            assert store.get(next(iter(before[0])))  # reading goes on
        assert checkpoint.listing(store) == []
        store.put(LARGE * 2)  # with room again, the same process goes on
    check_good(root, before)


@pytest.mark.parametrize("leave", [0, FREE_BYTES])
def test_a_store_can_be_opened_and_read(leave: int, disk: Path, root: Path) -> None:
    with full(disk, leave), Store.open(root) as store:
        hash = store.heads.get("held").hash
        assert len([store.get(found) for found in walk(store, [hash])]) > 3
    check_good(root, (set(), {}))


def test_a_store_opened_on_a_full_disk_says_why_it_cannot_write(disk: Path, root: Path) -> None:
    with full(disk, leave=0), Store.open(root) as store:
        with pytest.raises(Failed) as error:
            store.put(b"small")
        assert_message(error, "its disk is full")
    check_good(root, (set(), {}))


@pytest.mark.parametrize("leave", [0, FREE_BYTES // 3, FREE_BYTES])
def test_an_init_on_a_full_disk_can_be_repeated(leave: int, disk: Path) -> None:
    with full(disk, leave), pytest.raises(Failed) as error:
        Store.init(disk / "new")
    assert_message(error, "new")
    Store.init(disk / "new").close()
    check_good(disk / "new", (set(), {}))
    assert [path for path in (disk / "new").iterdir() if path.name.startswith(".")] == []


def test_a_restore_to_a_full_disk_leaves_nothing(disk: Path, disk_store: Store) -> None:
    tree = put_tree(disk_store, {"a": {"b": os.urandom(1 << 20)}, "c": os.urandom(1000)})
    with full(disk):
        with pytest.raises(Failed) as error:
            restore_tree(disk_store, tree, disk / "target")
        assert_message(error, "No space left")
        assert [path.name for path in disk.iterdir()] == ["ballast"]
    restore_tree(disk_store, tree, disk / "target")


def test_an_import_into_a_full_store_changes_nothing(
    disk: Path, root: Path, disk_store: Store, tmp_path: Path
) -> None:
    tree = put_tree(disk_store, {"a": os.urandom(1 << 20), "b": b"b"})
    file = tmp_path / "export.tar"
    with file.open("wb") as target:
        archive.export(disk_store, [tree], [], target)
    with Store.open(root) as store:
        before = state(store)
        with full(disk), pytest.raises(Failed) as error:
            archive.load(store, file)
        assert_message(error, "No space left", "is full")
        assert dict(store.heads.list()) == before[1]
        archive.load(store, file)
        assert store.get(tree)
    check_good(root, before)


def damage_row(root: Path, hash: str) -> None:
    with sqlite3.connect(root / "store.db") as db:
        key = bytes.fromhex(hash)
        db.execute("UPDATE blobs SET data = CAST(data || 'x' AS BLOB) WHERE hash = ?", (key,))
    db.close()


def test_a_quarantine_that_has_no_room_loses_nothing(disk: Path, root: Path) -> None:
    with Store.open(root) as store:
        text = random.Random(1).randbytes(300_000).hex()  # does not compress to nothing
        hash = store.put_node("content", {"text": text, "artifacts": []}).hash
    damage_row(root, hash)
    with Store.open(root) as store:
        with full(disk), pytest.raises(Failed) as error:
            fsck.check(store)
        assert_message(error, "quarantine")
        found = fsck.check(store)
        assert found.quarantined == [hash]
        assert (root / "quarantine" / hash).stat().st_size > 300_000
    check_good(root, (set(), {}))


def test_a_gc_on_a_full_disk_makes_room_or_says_that_it_cannot(disk: Path, root: Path) -> None:
    with Store.open(root) as store:
        held = state(store)[1]
        hashes = [store.put(os.urandom(100_000)).hash for _ in range(10)]
        make_old(root)
        with full(disk, leave=0), suppress(Failed):
            gc.collect(store, grace=3600)
        gc.collect(store, grace=3600)
        assert store.blobs.info(hashes) == {}
    check_good(root, (set(), held))


def make_old(root: Path) -> None:
    with sqlite3.connect(root / "store.db") as db:
        db.execute("UPDATE blobs SET touched = touched - 7200")
    db.close()


# -- a broken disk ----------------------------------------------------------------------------


def broken(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class BrokenLibc:
    @staticmethod
    def syncfs(fd: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1


ONE_FILE, SYNCFS_FILES = 1, objects.FSYNC_MAX_FILES + 1
BROKEN = {
    "write": (ONE_FILE, os, "write", broken),
    "fchmod": (ONE_FILE, os, "fchmod", broken),
    "fsync": (ONE_FILE, os, "fsync", broken),
    "rename": (ONE_FILE, Path, "rename", broken),
    "syncfs": (SYNCFS_FILES, ctypes, "CDLL", lambda *_, **__: BrokenLibc),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_error_of_the_disk_is_told_and_does_no_harm(
    what: str, disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, owner, name, action = BROKEN[what]
    before = state(disk_store)

    def write() -> str:
        with disk_store.batch() as batch:
            last = [batch.put(LARGE + b"%d" % n) for n in range(count)][-1]
            batch.put_node("content", {"text": "t", "artifacts": [last.hash]})
            batch.swap("name", None, Head(last.hash))
            return last.hash

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, action)
        with pytest.raises(Failed) as error:
            write()
    assert_message(error, "Input/output error")
    assert state(disk_store) == before
    hash = write()
    assert disk_store.get(hash).startswith(LARGE)
    root = disk_store.root
    disk_store.close()
    check_good(root, before)


def test_an_error_of_sqlite_is_told_and_does_no_harm(disk_store: Store) -> None:
    """SQLite cannot write beyond a size: its `disk I/O error`."""
    before = state(disk_store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, hard))
    try:
        with pytest.raises(Failed) as error:
            put_many_nodes(disk_store)
        with pytest.raises(Failed):
            disk_store.put(bytes(range(256)) * 2048)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_message(error, "store.db: disk I/O error")
    assert state(disk_store) == before
    put_many_nodes(disk_store)
    root = disk_store.root
    disk_store.close()
    check_good(root, before)


def test_a_lock_that_is_not_given_up_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    Store.init(root).close()
    monkeypatch.setattr(sqlite_connection, "WRITE_LOCK_TIMEOUT_S", 0.05)
    other = sqlite3.connect(root / "store.db", isolation_level=None)
    with Store.open(root) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Failed, match="locked"):
            store.put(b"content")
        other.execute("ROLLBACK")
        other.close()
        assert store.get(store.put(b"content").hash) == b"content"


def test_a_gc_that_could_not_begin_is_not_in_the_way_of_the_next(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_connection.Database, "write", broken)
        with pytest.raises(OSError, match="Input/output"):
            start_gc(disk_store.backend)
    gc.collect(disk_store)
