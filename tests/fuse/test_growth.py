"""Long threads and many of them: what a listing costs grows as its length does, and no more.

Costs are counted in calls of functions, which no other load on the machine changes.
"""

from __future__ import annotations

import cProfile
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from casfs.backend.protocols import Head
from casfs.fuse.inode_table import ROOT
from casfs.fuse.session import Session
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory, File
from casfs.store.store import Store
from casfs.system.log import silent
from tests.support.fuse import at
from tests.support.helpers import put_tree
from tests.support.new_store import init_store
from tests.support.thread_example import Example, make_thread

STEPS = 5_000
THREADS = 20_000
FACTOR = 10
MAX_RATIO = 1.3  # to linear growth; a constant part lowers it
MAX_MORE_BYTES = 4 << 20  # bytes
MAX_BYTES_OF_A_STEP = 3000  # bytes
BATCH_THREADS = 10_000
READ_BYTES = 1 << 17  # bytes
NAMES = 10_000
NAMES_READ = 30


def calls(do: Callable[[], object]) -> int:
    """How many calls of functions it makes."""
    profile = cProfile.Profile()
    profile.runcall(do)
    return sum(entry.callcount for entry in profile.getstats())


def held(do: Callable[[], object]) -> int:
    """The most bytes that it holds at once."""
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def list_all(store: Store, path: str, count: int) -> None:
    """`ls -l` there, by a mount that has seen nothing yet."""
    directory = at(store, path, root(StoreReader(store), Stats()))
    assert isinstance(directory, Directory)
    assert sum(vnode.attr().mode > 0 for _, vnode in directory.entries()) == count


def read_all(store: Store, path: str) -> None:
    file = at(store, path, root(StoreReader(store), Stats()))
    assert isinstance(file, File)
    size = file.attr().size
    assert sum(len(file.read(at, READ_BYTES)) for at in range(0, size, READ_BYTES)) == size > 0


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    with init_store(tmp_path_factory.mktemp("growth") / "store") as store:
        yield make_thread(store)


def grow(thread: Example, count: int) -> None:
    """Take steps, all alike, until there are so many."""
    store = thread.store
    first = thread.step("planner", "text") if not thread.steps else thread.steps[0]
    payload = store.node(first).payload
    with store.batch() as batch:
        for index in range(len(thread.steps) + 1, count + 1):
            steps = thread.steps
            node = {**payload, "index": index, "previous": steps[-1]}
            node["ancestors"] = steps[-11:-1][::-1]
            steps.append(batch.put_node("thread-step", node).hash)
    thread.move(thread.steps[-1])


def test_a_thread_of_many_steps(example: Example) -> None:
    store, steps = example.store, f"threads/{example.id}/steps"
    grow(example, STEPS // FACTOR)
    less = calls(lambda: list_all(store, steps, STEPS // FACTOR))
    grow(example, STEPS)
    assert calls(lambda: list_all(store, steps, STEPS)) < less * FACTOR * MAX_RATIO
    assert held(lambda: list_all(store, steps, STEPS)) < STEPS * MAX_BYTES_OF_A_STEP


def fill(thread: Example, start: int, count: int) -> None:
    """More threads like this one: one in two has ended."""
    record = thread.head.record
    for first in range(start, count, BATCH_THREADS):
        with thread.store.batch() as batch:
            for number in range(first, min(first + BATCH_THREADS, count)):
                status = ("running", "ended")[number % 2]
                head = Head(thread.start, {**record, "status": status})
                batch.swap(f"threads/{number:026d}", None, head)


def test_many_threads(example: Example) -> None:
    store = example.store
    fill(example, 0, THREADS // FACTOR)
    directory = at(store, "history")
    assert isinstance(directory, Directory)
    (day,) = (name.decode() for name, _ in directory.entries())
    files = ["threads.json", f"history/{day}"]
    less = [calls(lambda name=name: read_all(store, name)) for name in files]
    less.append(calls(lambda: list_all(store, "threads", THREADS // FACTOR + 1)))
    least = held(lambda: list_all(store, "threads", THREADS // FACTOR + 1))
    fill(example, THREADS // FACTOR, THREADS)
    more = [calls(lambda name=name: read_all(store, name)) for name in files]
    more.append(calls(lambda: list_all(store, "threads", THREADS + 1)))
    assert all(many < few * FACTOR * MAX_RATIO for few, many in zip(less, more, strict=True))
    assert held(lambda: list_all(store, "threads", THREADS + 1)) < least + MAX_MORE_BYTES


def test_listing_a_large_directory_from_within(store: Store) -> None:
    """Several processes that list it at once each resume at their own offset."""
    entries = {b"f%05d" % number: b"" for number in range(NAMES)}
    tree = put_tree(store, entries)
    view = root(StoreReader(store), Stats())
    session = Session(view, Stats(), silent, store=None, xattr=False, handles=False)
    trees = session.lookup(ROOT, b"trees").ino
    ino = session.lookup(trees, tree.encode()).ino

    def read(start: int) -> list[bytes]:
        found = []
        for item in islice(session.listing(ino, start), NAMES_READ):
            found.append(item.name)
        return found

    once = calls(lambda: read(0))
    assert calls(lambda: read(NAMES // 2)) < MAX_RATIO * once
    assert read(0)[:3] == [b".", b"..", b"f00000"]
    assert read(1)[:2] == [b"..", b"f00000"]
    assert read(2)[0] == b"f00000"
    assert read(NAMES) == [b"f%05d" % (NAMES - 2), b"f%05d" % (NAMES - 1)]
    assert read(NAMES + 2) == []
