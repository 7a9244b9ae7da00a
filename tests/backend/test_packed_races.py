"""Publications of packs beside a gc that deletes, punches and rewrites packs."""

from __future__ import annotations

import random
import threading
import traceback
from pathlib import Path

import pytest

from casfs.backend import tiers
from casfs.backend.disk import DiskBackend
from casfs.backend.hot_packs import MIN_BLOBS
from casfs.backend.protocols import Head, HeadName, Swap
from casfs.errors import Conflict, Invalid, NotFound
from casfs.maintenance import fsck, gc
from casfs.store.store import Store
from tests.support.new_store import init_store

ROUNDS = 12
WRITERS = 2


def write(root: Path, number: int, failures: list[str]) -> None:
    """Puts sets of blobs that others put as well; what a head holds must be readable."""
    chance, name = random.Random(number), HeadName(f"kept/{number}")
    try:
        with Store.open(root) as store:
            for _ in range(ROUNDS):
                content = random.Random(chance.randrange(3))
                blobs = [content.randbytes(1100 + 61 * n) for n in range(MIN_BLOBS + 6)]
                if chance.random() < 0.5:
                    del blobs[:: chance.choice((2, 9, 30))]
                try:
                    with store.batch() as batch:
                        hashes = [batch.put(data).hash for data in blobs]
                        node = batch.put_node("content", {"text": name, "artifacts": hashes})
                        batch.swap(name, None, Head(node.hash))
                except (NotFound, Invalid):  # what the batch found stored was collected meanwhile
                    continue
                assert list(store.blobs.get_many(hashes)) == blobs
                store.backend.publish([], [Swap(name, store.heads.get(name), None)])
    except BaseException:
        failures.append(traceback.format_exc())


def collect(root: Path, done: threading.Event, failures: list[str]) -> None:
    try:
        with Store.open(root) as store:
            assert isinstance(store.backend, DiskBackend)
            while not done.is_set():
                with store.backend._db.write() as db:
                    db.execute("UPDATE blobs SET touched = 0")
                try:
                    gc.collect(store, grace=0)
                except Conflict:
                    continue
    except BaseException:
        failures.append(traceback.format_exc())


def test_packs_that_are_published_while_gc_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "FREED_MIN_BYTES", 0)
    root, failures, done = tmp_path / "store", list[str](), threading.Event()
    init_store(root).close()
    writers = [threading.Thread(target=write, args=(root, n, failures)) for n in range(WRITERS)]
    collector = threading.Thread(target=collect, args=(root, done, failures))
    for one in (*writers, collector):
        one.start()
    for one in writers:
        one.join()
    done.set()
    collector.join()
    assert failures == []
    with Store.open(root) as store:
        assert fsck.check(store).faults == []
        gc.collect(store, grace=0)
        assert fsck.check(store).faults == []
