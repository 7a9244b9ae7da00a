"""Names move forward only; two writers at once lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from casfs.errors import CasfsError, Conflict
from casfs.remotes.remote import Settings
from tests.support.helpers import blobs
from tests.support.remotes import Site
from tests.support.thread_example import Example, make_thread

Sites = Callable[[Settings], Site]


def continued(one: Site, thread: Example) -> Example:
    """The thread as another store pulled it."""
    head = one.store.heads.get(thread.name)  # type: ignore[arg-type]
    assert head is not None
    return Example(
        one.store, thread.id, head, thread.start, thread.workflow, thread.agent, thread.tree,
        [*thread.steps],
    )  # fmt: skip


@pytest.fixture
def both(directory: Settings, sites: Sites) -> tuple[Site, Example, Site, Example]:
    """A thread with a step, in two stores and their remote."""
    here, there = sites(directory), sites(directory)
    mine = make_thread(here.store, status="suspended")
    mine.step("planner", "One.")
    here.push(mine.id)
    there.pull(mine.id)
    return here, mine, there, continued(there, mine)


def test_a_thread_goes_on_elsewhere_and_comes_back(
    both: tuple[Site, Example, Site, Example],
) -> None:
    here, mine, there, theirs = both
    theirs.step("planner", "Two, elsewhere.")
    theirs.end()
    there.push(mine.id)
    with pytest.raises(Conflict, match="pull"):
        mine_is_older(here, mine)
    with pytest.raises(Conflict, match="--replace"):
        here.pull(mine.id)
    here.pull(mine.id, replace=True)
    assert here.heads("threads/") == there.heads("threads/")
    assert here.contents(mine.name) == there.contents(mine.name)


def mine_is_older(here: Site, mine: Example) -> None:
    assert here.heads("threads/")[mine.name] == mine.steps[0]
    here.push(mine.id)


def test_a_thread_that_moved_on_both_sides(both: tuple[Site, Example, Site, Example]) -> None:
    here, mine, there, theirs = both
    mine.step("planner", "Two.")
    theirs.step("planner", "Two, another way.")
    other = there.checkpoint("app", {"a": b"1"})
    there.push(mine.id, "app")
    before = here.heads()
    for refused in (
        lambda: here.push(mine.id),
        lambda: here.pull(mine.id),
        lambda: here.pull(mine.id, replace=True),
    ):
        with pytest.raises(Conflict, match=f"{mine.id} has moved"):
            refused()
        assert here.heads() == before
    assert here.refs()[mine.name]["hash"] == theirs.steps[-1]
    done = here.pull()  # what is not in conflict can be had
    assert (done.refs, [*done.stayed]) == ([other], [mine.name])
    assert here.heads("threads/") == {mine.name: mine.steps[-1]}


def test_a_thread_that_runs_here_is_not_replaced(both: tuple[Site, Example, Site, Example]) -> None:
    here, mine, there, theirs = both
    theirs.step("planner", "Two, elsewhere.")
    there.push(mine.id)
    mine.move(mine.steps[-1], status="running")
    with pytest.raises(Conflict, match="runs here"):
        here.pull(mine.id, replace=True)
    here.trust()
    assert "runs here" in here.pull().stayed[mine.name]


def test_an_older_value_is_not_pulled_over_a_newer_one(
    both: tuple[Site, Example, Site, Example],
) -> None:
    here, mine, _, _ = both
    mine.step("planner", "Two.")
    assert here.pull().refs == []
    assert here.heads("threads/")[mine.name] == mine.steps[-1]
    assert here.push(mine.id).refs == [mine.name]


def test_a_workflow_moves_forward(directory: Settings, sites: Sites) -> None:
    from engine.workflow import registry as workflows
    from tests.support.engine import loop

    here, there, other = sites(directory), sites(directory), sites(directory)
    workflows.add(here.store, loop(1))
    here.push("workflows/sample")
    there.pull()
    workflows.add(here.store, loop(2))
    assert here.push("sample").refs == ["workflows/sample"]
    assert there.pull().refs == ["workflows/sample"]
    workflows.add(other.store, loop(3))
    with pytest.raises(Conflict, match="sample has moved"):
        other.push("sample")
    assert other.pull().renamed == {"workflows/sample": "workflows/origin.sample"}


def at_once(*calls: Callable[[], object]) -> list[object]:
    start = Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        start.wait()
        try:
            return call()
        except CasfsError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_other_names_at_once_all_arrive(anywhere: Settings, sites: Sites) -> None:
    writers, reader = [sites(anywhere) for _ in range(5)], sites(anywhere)
    shared = {str(n): b"%d" % n * 500 for n in range(20)}
    names = [
        one.checkpoint(f"app{n}", {**shared, "own": b"%d" % n}) for n, one in enumerate(writers)
    ]
    done = at_once(*(lambda one=one, n=n: one.push(f"app{n}") for n, one in enumerate(writers)))
    assert [one.refs for one in done] == [[name] for name in names]  # type: ignore[attr-defined]
    assert sorted(reader.pull().refs) == sorted(names)
    for name, writer in zip(names, writers, strict=True):
        assert reader.contents(name) == writer.contents(name)


def test_one_of_two_values_of_a_name_wins(anywhere: Settings, sites: Sites) -> None:
    one, two, reader = (sites(anywhere) for _ in range(3))
    first = make_thread(one.store, status="suspended")
    one.push(first.id)
    two.pull()
    second = continued(two, first)
    first.step("planner", "One way.")
    second.step("planner", "Another way.")
    done = at_once(lambda: one.push(first.id), lambda: two.push(first.id))
    lost = [result for result in done if isinstance(result, Conflict)]
    assert len(lost) == 1
    assert lost[0].exit_code == 4
    winner = first if done[1] is lost[0] else second
    reader.pull()
    assert reader.heads("threads/") == {first.name: winner.steps[-1]}
    assert {*first.steps} <= blobs(one.store)
    assert {*second.steps} <= blobs(two.store)


def test_several_processes_of_one_store_push_at_once(directory: Settings, sites: Sites) -> None:
    """They share the local state of the remote."""
    here, reader = sites(directory), sites(directory)
    names = [here.checkpoint(f"app{n}", {"own": b"%d" % n * 3000}) for n in range(4)]
    done = at_once(*(lambda n=n: here.push(f"app{n}") for n in range(4)))
    assert [one.refs for one in done] == [[name] for name in names]  # type: ignore[attr-defined]
    assert sorted(reader.pull().refs) == sorted(names)
