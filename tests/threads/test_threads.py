from __future__ import annotations

import pytest

from casfs.errors import Conflict, Corrupt, NotFound
from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.threads.threads import StepRef
from tests.support.helpers import put_unchecked, set_head
from tests.support.thread_example import STARTED, Example, make_thread

OTHER = "01JD000000000000000000000Z"


@pytest.fixture
def example(store: Store) -> Example:
    return make_thread(store)


def grow(example: Example, count: int) -> None:
    for n in range(count):
        example.step(f"role{n % 3}", f"output {n}")


def test_ids_sort_by_the_time_they_were_made() -> None:
    made = [threads.new_id() for _ in range(2000)]
    assert made == sorted(set(made))
    assert {len(id) for id in made} == {26}


def test_a_thread_as_it_stands(store: Store, example: Example) -> None:
    thread = threads.get(store, example.id)
    assert thread.id == example.id
    assert thread.name == f"threads/{example.id}"
    assert thread.status == "running"
    assert thread.hash == example.start
    assert thread.head == example.head
    assert thread.record["updatedAt"] == STARTED
    assert threads.start(store, thread).hash == example.start
    assert threads.end(store, thread) is None
    assert threads.last_step(store, thread) is None
    assert threads.steps(store, thread) == []
    assert list(threads.backwards(store, thread)) == []


def test_an_old_thread_value_does_not_move(store: Store, example: Example) -> None:
    before = threads.get(store, example.id)
    grow(example, 1)
    assert threads.last_step(store, before) is None
    assert threads.last_step(store, threads.get(store, example.id)) == example.steps[0]


def test_an_ended_thread(store: Store, example: Example) -> None:
    grow(example, 2)
    end = example.end()
    thread = threads.get(store, example.id)
    found = threads.end(store, thread)
    assert found is not None
    assert found.hash == end
    assert thread.status == "ended"
    assert threads.last_step(store, thread) == example.steps[-1]
    assert [ref.hash for ref in threads.steps(store, thread)] == example.steps


def test_a_thread_may_end_without_a_step(store: Store, example: Example) -> None:
    example.end()
    thread = threads.get(store, example.id)
    assert threads.last_step(store, thread) is None
    assert threads.steps(store, thread) == []


def test_steps_are_listed_first_to_newest(store: Store, example: Example) -> None:
    grow(example, 13)
    found = threads.steps(store, threads.get(store, example.id))
    expected = [StepRef(n + 1, f"role{n % 3}", hash) for n, hash in enumerate(example.steps)]
    assert found == expected
    backwards = threads.backwards(store, threads.get(store, example.id))
    assert [node.hash for node in backwards] == example.steps[::-1]


def test_a_thread_that_grew_costs_what_is_new(
    store: Store, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(example, 30)
    assert len(threads.steps(store, threads.get(store, example.id))) == 30
    grow(example, 2)
    loaded: list[str] = []
    get = store.blobs.get
    monkeypatch.setattr(store.blobs, "get", lambda hash: (loaded.append(hash), get(hash))[1])
    found = threads.steps(store, threads.get(store, example.id))
    assert [ref.hash for ref in found] == example.steps
    assert set(loaded) == {*example.steps[-3:]}


def test_steps_of_an_older_head_and_then_of_a_newer(store: Store, example: Example) -> None:
    grow(example, 2)
    old = threads.get(store, example.id)
    grow(example, 3)
    for thread, count in ((threads.get(store, example.id), 5), (old, 2), (old, 2)):
        assert [ref.hash for ref in threads.steps(store, thread)] == example.steps[:count]


def test_steps_that_do_not_count_from_one_are_corrupt(store: Store, example: Example) -> None:
    grow(example, 2)
    payload = {**store.node(example.steps[-1]).payload, "index": 7}
    example.move(put_unchecked(store, "thread-step", payload))
    with pytest.raises(Corrupt, match=example.id):
        threads.steps(store, threads.get(store, example.id))


def test_ancestors_are_up_to_ten_before_the_previous_newest_first(
    store: Store, example: Example
) -> None:
    assert threads.links([]) == {"previous": None, "ancestors": []}
    for count in range(14):
        example.step("planner", str(count))
        *ancestors, previous = example.steps
        assert threads.links(example.steps) == {
            "previous": previous,
            "ancestors": ancestors[::-1][:10],
        }


# -- finding ------------------------------------------------------------------------------


def test_listing_is_oldest_first(store: Store, example: Example) -> None:
    set_head(store, f"threads/{OTHER}", example.start, **example.head.record)
    assert [thread.id for thread in threads.list_threads(store)] == [example.id, OTHER]


def test_one_broken_thread_does_not_break_the_listing(store: Store, example: Example) -> None:
    set_head(store, f"threads/{OTHER}", store.put(b"no node").hash)
    found = threads.list_threads(store)
    assert [thread.status for thread in found] == ["running", "broken"]


@pytest.mark.parametrize("text", ["01JD0000000000000000000000", "01JD0", "01jd0", "0"])
def test_a_unique_prefix_in_any_case_is_expanded(store: Store, example: Example, text: str) -> None:
    assert lookup.find(store, text) == threads.get(store, example.id)


@pytest.mark.parametrize(
    "text", ["", "1", "01JD0000000000000000000001", "01JD0" * 9, "\udcff", "/"]
)
def test_what_is_no_prefix_is_not_found(disk_store: Store, text: str) -> None:
    make_thread(disk_store)
    with pytest.raises(NotFound, match="thread list"):
        lookup.find(disk_store, text)


def test_a_prefix_of_two_is_a_conflict(store: Store, example: Example) -> None:
    set_head(store, f"threads/{OTHER}", example.start, **example.head.record)
    with pytest.raises(Conflict, match="ambiguous"):
        lookup.find(store, "01JD")
    assert lookup.find(store, OTHER).id == OTHER


def test_a_part_of_the_random_end(store: Store, example: Example) -> None:
    """Ids of the same minutes have the same beginning."""
    for id in ("01JD00000087654ABCDEFGHJKM", "01JD00000087654NPQRSTVWXYZ"):
        set_head(store, f"threads/{id}", example.start, **example.head.record)
    assert lookup.find(store, "abcd").id == "01JD00000087654ABCDEFGHJKM"
    assert lookup.find(store, "WXYZ").id == "01JD00000087654NPQRSTVWXYZ"
    with pytest.raises(NotFound):
        lookup.find(store, "xyz")
    with pytest.raises(Conflict, match=r"7654 is ambiguous: 01JD00000087654A.*, 01JD00000087654N"):
        lookup.find(store, "7654")


def test_a_name_and_the_newest(store: Store, example: Example) -> None:
    set_head(store, f"threads/{OTHER}", example.start, **example.head.record)
    example.move(example.start, name="01JD")
    assert lookup.find(store, "01JD").id == example.id, "a name is no part of an id"
    assert lookup.find(store, "@last").id == OTHER


def test_there_is_no_newest(store: Store) -> None:
    with pytest.raises(NotFound, match="no thread '@last'"):
        lookup.find(store, "@last")


def test_a_thread_that_is_not_there(store: Store) -> None:
    with pytest.raises(NotFound, match="no thread 'x'"):
        threads.get(store, "x")


# -- leaps --------------------------------------------------------------------------------


@pytest.mark.parametrize(("index", "back"), [(1, 1), (2, 1), (3, 3), (13, 3), (30, 15), (31, 31)])
def test_the_least_part_of_an_index(index: int, back: int) -> None:
    assert threads.leap(index) == back


def test_a_leap_is_named_where_the_ancestors_do_not_reach() -> None:
    hashes = [f"{number:064x}" for number in range(1, 70)]
    for index in range(1, 70):
        links = threads.links(hashes[: index - 1])
        target = index - threads.leap(index)
        if index - target > 11 and target:
            assert links["leap"] == hashes[target - 1]
        else:
            assert "leap" not in links


def test_any_step_of_a_long_thread_is_a_few_reads_away(
    store: Store, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    example.step("planner", "first")
    first = store.node(example.steps[0], "thread-step").payload
    with store.batch() as batch:
        for index in range(2, 3001):
            payload = {**first, "index": index, **threads.links(example.steps)}
            example.steps.append(batch.put_node("thread-step", payload).hash)
    example.move(example.steps[-1])
    thread = threads.get(store, example.id)
    loaded: list[str] = []
    get = store.blobs.get
    monkeypatch.setattr(store.blobs, "get", lambda hash: (loaded.append(hash), get(hash))[1])
    for index in (1, 2, 100, 1500, 2047, 2048, 2999, 3000):
        loaded.clear()
        assert threads.step_at(store, thread, index).hash == example.steps[index - 1]
        assert len(loaded) <= 30
