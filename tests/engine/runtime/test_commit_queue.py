"""The commit queue: groups of steps, each of which succeeds or fails alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from casfs.backend.protocols import Head, HeadName
from casfs.errors import Conflict, Invalid
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from engine.runtime import commit_queue
from engine.runtime.commit_queue import CommitQueue
from tests.support.helpers import ABSENT


@dataclass
class Made:
    batch: Batch
    number: int
    thread: int


def makes(store: Store, number: int, old: Head | None = None) -> Callable[[], Made]:
    """Prepares a blob and a head that leads to it."""

    def prepare() -> Made:
        batch = store.batch()
        digest = batch.put_node("content", {"text": f"{number}", "artifacts": []})
        batch.swap(HeadName(f"n/{number}"), old, Head(digest.hash))
        return Made(batch, number, threading.get_ident())

    return prepare


async def commit_all(
    queue: CommitQueue, prepares: list[Callable[[], Made]]
) -> list[Made | BaseException]:
    """Commits all at once: they are queued before the first is taken."""
    results: dict[int, Made | BaseException] = {}
    gate = threading.Event()

    async def one(place: int, prepare: Callable[[], Made]) -> None:
        try:
            results[place] = await queue.commit(prepare)
        except Exception as error:
            results[place] = error

    def first() -> Made:
        gate.wait()
        return prepares[0]()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, 0, first)
        await trio.testing.wait_all_tasks_blocked()
        for place, prepare in enumerate(prepares[1:], 1):
            nursery.start_soon(one, place, prepare)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
    return [results[place] for place in range(len(prepares))]


def names(store: Store) -> list[str]:
    return [name for name, _ in store.heads.list("n/")]


def test_more_than_a_group_holds_is_committed_in_one_thread(disk_store: Store) -> None:
    count = 3 * commit_queue.GROUP_MAX_STEPS + 1
    before = disk_store.backend.version()  # type: ignore[attr-defined]  # of the disk backend
    made = trio.run(commit_all, CommitQueue(), [makes(disk_store, n) for n in range(count)])
    assert before != disk_store.backend.version()  # type: ignore[attr-defined]
    found = [one for one in made if isinstance(one, Made)]
    assert [one.number for one in found] == [*range(count)]
    assert len({one.thread for one in found}) == 1
    assert len(names(disk_store)) == count


def test_one_that_fails_leaves_the_others_alone(store: Store) -> None:
    def refuses() -> Made:
        raise Invalid("no")

    wrong = makes(store, 1, Head(ABSENT))  # the head is not there
    prepares = [makes(store, 0), wrong, refuses, makes(store, 2)]
    made = trio.run(commit_all, CommitQueue(), prepares)
    assert isinstance(made[0], Made)
    assert isinstance(made[1], Conflict)
    assert isinstance(made[2], Invalid)
    assert isinstance(made[3], Made)
    assert names(store) == ["n/0", "n/2"]


def test_a_bug_while_publishing_does_not_stop_the_queue(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(backend: object, group: object) -> None:
        raise RuntimeError("a bug")

    queue = CommitQueue()
    with monkeypatch.context() as patched:
        patched.setattr(commit_queue, "publish_group", breaks)
        made = trio.run(commit_all, queue, [makes(store, 0), makes(store, 1)])
    assert [type(one) for one in made] == [RuntimeError, RuntimeError]
    assert isinstance(trio.run(queue.commit, makes(store, 2)), Made)


def test_a_cancelled_task_waits_for_its_commit(store: Store) -> None:
    queue, gate = CommitQueue(), threading.Event()
    done: list[Made] = []

    def slow() -> Made:
        gate.wait()
        return makes(store, 0)()

    async def run() -> None:
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                done.append(await queue.commit(slow))

            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            gate.set()

    trio.run(run)
    assert [one.number for one in done] == [0]
    assert names(store) == ["n/0"]


def test_a_cancelled_task_queues_nothing(store: Store) -> None:
    async def run() -> bool:
        with trio.CancelScope() as scope:
            scope.cancel()
            await CommitQueue().commit(makes(store, 0))
        return scope.cancelled_caught

    assert trio.run(run)
    assert names(store) == []
