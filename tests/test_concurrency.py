"""Many processes on one store: no update lost, no error but those that are meant, and no blob
taken from under a writer. SCALE=10 in the environment makes the long run of it.

What is meant, beside a gc that leaves no grace: `publish` raises NotFound where it counts on
a blob that no head held when the writer met it (an earlier part of its batch, a dedup hit
that was never staged, a hash that somebody remembered) and that was collected before the
head moved. No head has moved then, and the writer does it again.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from casfs.backend.protocols import Head, Swap
from casfs.errors import Conflict, NotFound
from casfs.maintenance import fsck, gc
from casfs.store import graph
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from tests.support.helpers import LARGE, private_files

SCALE = int(os.environ.get("SCALE", "1"))
WRITERS = 8
TURNS = 40 * SCALE
FORK = multiprocessing.get_context("fork")


# -- eight writers, a reader and a gc -----------------------------------------------------------


def again(action: Callable[[], None]) -> int:
    """Do it until nobody is in the way; returns how often somebody was."""
    tries = 0
    while True:
        try:
            action()
            return tries
        except (Conflict, NotFound):
            tries += 1


def write(root: Path, number: int) -> None:
    with Store.open(root) as store:
        for turn in range(TURNS):
            again(lambda turn=turn: put_tree(store, number, turn))
            again(lambda turn=turn: count(store, f"{number}-{turn}"))
            if turn % 3 == 2:
                store.backend.publish([], [drop(store, f"trees/{number}-{turn - 1}")])


def put_tree(store: Store, number: int, turn: int) -> None:
    """The same blobs as the others and one of its own, a tree of them, a head of its own."""
    with store.batch() as batch:
        shared = [batch.put(b"shared %d " % n * (1 + n * 100)) for n in range(turn % 5, 8)]
        own = batch.put(b"%d of %d" % (turn, number) + LARGE * (turn % 2))
        if turn % 4 == 3:
            batch.commit()  # what came so far is garbage until the head moves
        inner = batch.put_node("directory", directory.encode(files(shared)))
        tree = batch.put_node("directory", directory.encode([*files([own]), below(inner)]))
        batch.swap(f"trees/{number}-{turn}", None, Head(tree.hash, {"own": own.hash}))
    assert store.get(own.hash)  # a head holds it: no gc may have it


def files(digests: list[Any]) -> list[directory.Entry]:
    return [File(b"f%d" % n, digest) for n, digest in enumerate(digests)]


def below(digest: Any) -> directory.Entry:
    return directory.Subdirectory(b"below", digest)


def count(store: Store, text: str) -> None:
    """One more link in the chain that all writers share."""
    old = store.heads.get("counter")
    with store.batch() as batch:
        links = [old.hash] if old else []
        node = batch.put_node("content", {"text": text, "artifacts": links})
        n = old.record["n"] + 1 if old else 1
        batch.swap("counter", old, Head(node.hash, {"n": n}))


def drop(store: Store, name: str) -> Swap:
    return Swap(name, store.heads.get(name), None)


def read(root: Path, stop: Any) -> None:
    with Store.open(root) as store:
        while not stop.is_set():
            for name, head in store.heads.list():
                try:
                    for hash in graph.walk(store, [head.hash]):
                        assert store.get(hash)
                except NotFound:
                    # A head that moved on leaves garbage to a reader that is still there.
                    assert store.heads.get(name) != head, f"{name} was collected under its head"


def collect(root: Path, stop: Any) -> None:
    with Store.open(root) as store:
        turn = 0
        while not stop.is_set():
            gc.collect(store, grace=turn % 2)
            turn += 1


def guarded(action: Callable[..., None], told: Any, *arguments: Any) -> None:
    try:
        action(*arguments)
    except BaseException:
        told.put(traceback.format_exc())
        raise


def run(writers: list[Any], others: list[Any]) -> list[str]:
    """Run all; the others are told to stop when the writers are done. What went wrong."""
    told, stop = FORK.Queue(), FORK.Event()
    ours = [FORK.Process(target=guarded, args=(one[0], told, *one[1:])) for one in writers]
    rest = [FORK.Process(target=guarded, args=(one[0], told, *one[1:], stop)) for one in others]
    for process in [*ours, *rest]:
        process.start()
    for process in ours:
        process.join()
    stop.set()
    for process in rest:
        process.join()
    failed = sum(process.exitcode != 0 for process in [*ours, *rest])
    return [told.get(timeout=10) for _ in range(failed)]


def test_writers_a_reader_and_a_gc_do_not_hurt_each_other(tmp_path: Path) -> None:
    root = tmp_path / "store"
    Store.init(root).close()
    writers = [(write, root, number) for number in range(WRITERS)]
    assert run(writers, [(read, root), (collect, root)]) == []
    with Store.open(root) as store:
        assert fsck.check(store, quarantine=False).faults == []
        counter = store.heads.get("counter")
        assert counter is not None
        assert counter.record["n"] == WRITERS * TURNS
        assert sorted(chain(store, counter.hash)) == sorted(
            f"{number}-{turn}" for number in range(WRITERS) for turn in range(TURNS)
        )
        kept = set(range(TURNS)) - {turn - 1 for turn in range(TURNS) if turn % 3 == 2}
        names = [name for name, _ in store.heads.list("trees/")]
        assert names == sorted(f"trees/{n}-{turn}" for n in range(WRITERS) for turn in kept)
        assert private_files(root) == []


def chain(store: Store, hash: str) -> Iterator[str]:
    links = [hash]
    while links:
        payload = store.node(links[0], "content").payload
        yield payload["text"]
        links = payload["artifacts"]


def init(root: Path) -> None:
    Store.init(root).close()


def open_early(root: Path, stop: Any) -> None:
    """A store is not there, or it is whole."""
    while not stop.is_set():
        try:
            with Store.open(root) as store:
                assert len(list(store.heads.list("schemas/"))) == SCHEMAS
        except NotFound:
            continue


with Store.memory() as _empty:
    SCHEMAS = len(list(_empty.heads.list("schemas/")))


def test_a_store_can_be_made_by_many_at_once(tmp_path: Path) -> None:
    for turn in range(2 * SCALE):
        root = tmp_path / f"{turn}"
        assert run([(init, root)] * 6, [(open_early, root)]) == []
        with Store.open(root) as store:
            assert fsck.check(store).faults == []
