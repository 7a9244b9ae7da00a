"""Leases at the level of the backend: who may take a thread, and what a former owner may write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread as OsThread

import pytest

from casfs.backend.capabilities import Lease, Leases, Leasing
from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.protocols import HeadName
from casfs.errors import Conflict
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.threads import threads
from engine.threads import suspension, transitions
from engine.threads.suspension import Suspension
from tests.support.engine import ONE, begin, says
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import join, make_store

EXPIRE = "UPDATE casfs.leases SET expires = now() - interval '1 ms'"


@pytest.fixture
def store(tmp_path: Path, database_url: str, s3: S3Server) -> Iterator[Store]:
    with make_store(tmp_path / "a", database_url, s3) as made:
        yield made


@pytest.fixture
def other(store: Store, tmp_path: Path, database_url: str) -> Iterator[Store]:
    with join(tmp_path / "b", database_url) as made:
        yield made


def backend(store: Store) -> PostgresBackend:
    assert isinstance(store.backend, PostgresBackend)
    assert isinstance(store.backend, Leasing)
    return store.backend


def leases(store: Store, owner: str) -> Leases:
    return backend(store).leases(owner)


def make(store: Store, count: int) -> list[HeadName]:
    """The names of new threads, oldest first."""
    return sorted(begin(store, ONE, {"a": says({})}).name for _ in range(count))


def of(lease: Lease) -> threads.Thread:
    return threads.of_head(lease.thread, lease.head)


def test_the_oldest_come_first_and_each_has_one_owner(store: Store, other: Store) -> None:
    names = make(store, 5)
    first, second = leases(store, "first"), leases(other, "second")
    taken = first.claim(3)
    assert [one.thread for one in taken] == names[:3]
    assert [one.thread for one in second.claim(9)] == names[3:]
    assert first.claim(9) == second.claim(9) == []
    for one in taken:
        head = store.heads.get(one.thread)
        assert head == one.head
        assert head_kinds.fault(one.thread, one.head) is None
        assert one.head.record["lease"] == one.token == 1


def test_a_claim_is_in_the_journal(store: Store) -> None:
    (name,) = make(store, 1)
    before = store.heads.moves()[-1].seq
    leases(store, "first").claim(1)
    assert [move.name for move in store.heads.moves(before)] == [name]


def test_a_former_owner_is_in_conflict(store: Store, other: Store) -> None:
    make(store, 1)
    first, second = leases(store, "first"), leases(other, "second")
    (old,) = first.claim(1)
    assert second.claim(1) == []
    backend(store).pool.run(EXPIRE)
    (new,) = second.claim(1)
    assert new.token == old.token + 1
    with pytest.raises(Conflict):
        transitions.update_record(store, of(old), reason="late")
    with pytest.raises(Conflict):
        suspension.suspend(store, of(old), Suspension("late"))
    assert first.renew([old.thread]).lost == {old.thread}
    assert first.check([old.thread]).lost == {old.thread}
    first.release([old.thread])  # of what it does not hold any more
    assert second.renew([new.thread]) == (set(), set())
    assert store.heads.get(new.thread) == new.head
    transitions.update_record(other, of(new), reason="in time")


def test_an_expired_lease_is_not_renewed(store: Store) -> None:
    make(store, 2)
    held = [one.thread for one in leases(store, "first").claim(2)]
    first = leases(store, "again")
    held = [one.thread for one in first.claim(2)]
    backend(store).pool.run(f"{EXPIRE} WHERE thread = %s", [held[0]])
    assert first.renew(held) == ({held[0]}, set())
    assert [one.token for one in first.claim(2)] == [3]


def test_a_thread_that_was_stopped_elsewhere(store: Store, other: Store) -> None:
    make(store, 2)
    first = leases(store, "first")
    one, two = first.claim(2)
    suspension.suspend(other, of(one), Suspension("by another machine"))
    assert first.check([one.thread, two.thread]) == (set(), {one.thread})
    assert first.renew([one.thread, two.thread]) == (set(), {one.thread})


def test_a_restarted_daemon_has_its_threads_at_once(store: Store, other: Store) -> None:
    names = make(store, 2)
    first, second = leases(store, "first"), leases(other, "second")
    assert len(first.claim(1)) == len(second.claim(1)) == 1
    again = leases(store, "first again")
    assert [(one.thread, one.token) for one in again.claim(9)] == [(names[0], 2)]
    assert second.renew([names[1]]) == (set(), set())


def test_released_threads_are_free_and_tokens_grow(store: Store, other: Store) -> None:
    (name,) = make(store, 1)
    first, second = leases(store, "first"), leases(other, "second")
    for token, one in enumerate([first, second, first], start=1):
        assert [lease.token for lease in one.claim(1)] == [token]
        one.release([name])
    assert backend(store).pool.run("SELECT thread FROM casfs.leases") == []


def test_a_claim_whose_answer_was_lost_is_made_again(store: Store, other: Store) -> None:
    names = make(store, 2)
    first, second = leases(store, "first"), leases(other, "second")
    (lost,) = first.claim(1)
    (held,) = first.claim(1, held=[lost.thread])
    assert [held.thread, lost.thread] == names[::-1]
    assert second.claim(9, held=[]) == first.claim(9) == []
    (found,) = first.claim(9, held=[held.thread])
    assert (found.thread, found.token) == (lost.thread, lost.token + 1)
    assert first.claim(9, held=names) == []


def test_only_and_wanted(store: Store) -> None:
    names = make(store, 3)
    first = leases(store, "first")
    assert [one.thread for one in first.claim(1, only=names[1])] == [names[1]]
    assert first.claim(1, only=names[1]) == []
    assert [one.thread for one in first.claim(9, wanted=lambda found: [*found][1:])] == [names[2]]


def test_more_candidates_than_a_page(store: Store) -> None:
    """Those that are not wanted do not hide the others."""
    name = make(store, 1)[0]
    row = "SELECT 'threads/' || lpad(n::text, 26, '0'), hash, record FROM casfs.heads"
    copies = f"{row}, generate_series(1, 200) n WHERE name = %s"
    backend(store).pool.run(f"INSERT INTO casfs.heads {copies}", [name])
    first = leases(store, "first")
    assert [one.thread for one in first.claim(9, wanted=lambda found: {name} & {*found})] == [name]
    assert len(first.claim(150)) == 150
    assert len(first.claim(150)) == 50


def test_many_claim_at_once(store: Store, other: Store) -> None:
    names = make(store, 24)
    owners = [leases(one, f"owner {number}") for number, one in enumerate([store, other] * 3)]
    taken: list[Lease] = []

    def claim(owner: Leases) -> None:
        for _ in range(50):
            taken.extend(owner.claim(1))

    tasks = [OsThread(target=claim, args=(owner,)) for owner in owners]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert sorted(one.thread for one in taken) == names
    assert {one.token for one in taken} == {1}
