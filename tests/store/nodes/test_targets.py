"""What a node says of the blobs it refers to: sizes, modes and times, a thread's parent. The same
checks hold for put, import and fsck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs.digest import Digest
from casfs.errors import Corrupt, Invalid
from casfs.maintenance import archive, fsck
from casfs.store.store import Store
from tests.support.helpers import put_unchecked, set_head
from tests.support.maintenance import export
from tests.support.new_store import init_store
from tests.support.thread_example import make_thread


def listing(**lists: Any) -> dict[str, Any]:
    return {"files": [], "directories": [], "symlinks": [], **lists}


def file(digest: Digest, size: int | None = None, **more: Any) -> dict[str, Any]:
    stated = {
        "hash": digest.hash,
        "size_bytes": digest.size_bytes if size is None else size,
    }
    return {"name": "a", "digest": stated, "is_executable": False, **more}


def planted(store: Store, type: str, payload: Any) -> str:
    """A node as an older casfs would have stored it, under a head."""
    hash = put_unchecked(store, type, payload)
    set_head(store, "kept/planted", hash)
    return hash


def bad_directories(store: Store) -> list[tuple[dict[str, Any], str]]:
    blob, below = store.put(b"2\n"), store.put_node("directory", listing())
    stated = {"hash": below.hash, "size_bytes": below.size_bytes + 1}
    time = {"seconds": 1, "nanos": 10**9}
    return [
        (listing(files=[file(blob, 3000)]), r"files\[0\].digest: size_bytes is 3000.*is 2"),
        (listing(directories=[{"name": "d", "digest": stated}]), r"directories\[0\].digest: size"),
        (listing(files=[file(blob, mtime=time)]), "nanos"),
        (listing(mtime=time), "nanos"),
        (listing(files=[file(blob, unix_mode=1 << 32)]), "permission bits"),
        (listing(unix_mode=0o10000), "permission bits"),
        (listing(symlinks=[{"name": "l", "target": "x", "unix_mode": 1 << 40}]), "permission bits"),
    ]


def test_put_refuses_wrong_sizes_modes_and_times(store: Store) -> None:
    for payload, fault in bad_directories(store):
        with pytest.raises(Invalid, match=fault):
            store.put_node("directory", payload)
    with store.batch() as batch:
        blob = batch.put(b"staged in the same batch")
        assert batch.put_node("directory", listing(files=[file(blob)]))
        with pytest.raises(Invalid, match="size_bytes is 1"):
            batch.put_node("directory", listing(files=[file(blob, 1)]))


def test_fsck_finds_wrong_sizes_modes_and_times(tmp_path: Path) -> None:
    for number in range(7):
        store = init_store(tmp_path / str(number))
        payload, fault = bad_directories(store)[number]
        hash = planted(store, "directory", payload)
        (found,) = fsck.check(store, quarantine=False).faults
        assert (found.hash, found.takes) == (hash, ["kept/planted"])
        assert fault.split(".*")[0].replace("\\", "") in found.message
        store.close()


def test_import_refuses_wrong_sizes_modes_and_times(tmp_path: Path) -> None:
    for number in range(7):
        store, other = init_store(tmp_path / f"{number}"), init_store(tmp_path / f"{number}o")
        payload, fault = bad_directories(store)[number]
        hash = planted(store, "directory", payload)
        export(store, tmp_path / "bad.tar", hash)
        with pytest.raises(Corrupt, match=fault):
            archive.load(other, tmp_path / "bad.tar")
        assert not other.blobs.info([hash])
        store.close()
        other.close()


def test_a_parent_is_a_step_or_a_start(store: Store) -> None:
    """Fails before: any node was taken as `parentState`."""
    thread = make_thread(store)
    start = store.node(thread.start).payload
    step = thread.step("planner", "one")
    for parent in (None, thread.start, step):
        assert store.put_node("thread-start", {**start, "parentState": parent, "depth": 1})
    for parent in (start["input"], start["workflow"], store.put(b"plain").hash):
        with pytest.raises(Invalid, match=r"parentState: refers to a .*, and must be a step"):
            store.put_node("thread-start", {**start, "parentState": parent})
