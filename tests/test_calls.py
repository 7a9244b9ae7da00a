"""Threads that call threads: the links both ways, how they rest, go on and end together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from engine_helpers import ONE, STATUS, carry_on, loop, rule, says, steps, workflow
from helpers import put_tree, read_tree

from casfs import threads
from casfs.errors import Conflict
from casfs.store import Store
from casfs.threads import CANCELLED, ENDED, RUNNING, SUSPENDED, Thread
from casfs.trees.restore import restore
from casfs.walk import walk
from engine import catalog
from engine.moderator import Next
from engine.threads import journal, origin
from engine.threads.binding import Binding
from engine.threads.origin import Request

TWO = workflow(
    [rule("__start__", "p"), rule("p", "c"), rule("c", "__end__")], "two", p=None, c=None
)


def child_flow(store: Store, name: str = "inner", steps: int = 2) -> None:
    catalog.add(store, {**loop(steps, STATUS), "name": name})


def calling(agent: dict[str, Any], *names: str) -> Binding:
    agents = {"a": {"name": "command", "config": agent}}
    calls = [{"workflow": name, "agents": agents, "input": f"task {name}"} for name in names]
    return Binding("workflow", calls[0] if len(calls) == 1 else {"calls": calls})


def start(store: Store, agent: Binding, workspace: str | None = None) -> Thread:
    hash, _ = catalog.add(store, TWO)
    bound = {"p": Binding("command", says({})), "c": agent}
    return origin.create(store, Request(hash, "Do it.", bound, workspace))


def children(store: Store, parent: Thread) -> list[Thread]:
    return [one for one in threads.listing(store) if one.record["parent"] == parent.id]


async def test_the_links_go_both_ways(disk_store: Store, tmp_path: Path) -> None:
    child_flow(disk_store)
    side = tmp_path / "side"
    agent = calling(says({"status": "done"}, f"cat >{side}; echo $CASFS_STEP >>log"), "inner")
    tree = put_tree(disk_store, {"log": b"start\n"})
    ended = await carry_on(disk_store, start(disk_store, agent, tree))
    assert ended.status == ENDED
    first, second = steps(disk_store, ended)
    (child,) = children(disk_store, ended)
    assert second["childThreads"] == [child.hash]
    assert disk_store.node(child.hash, "thread-end").payload["returnCode"] == 0
    begun = threads.start(disk_store, child).payload
    assert begun["parentState"] == second["previous"]
    assert (begun["depth"], begun["workspace"]) == (1, first["workspace"])
    assert ended.record["children"] == [child.id]
    assert second["meta"]["status"] == "done"
    assert second["workspace"] == steps(disk_store, child)[-1]["workspace"]
    restore(disk_store, second["workspace"], tmp_path / "out")
    assert read_tree(tmp_path / "out") == {b"log": b"start\n1\n2\n"}
    assert child.hash in set(walk(disk_store, [ended.hash]))
    assert f"casfs thread context {ended.id}" in side.read_text()
    assert begun["parentState"] in side.read_text()


async def test_several_from_one_step(disk_store: Store) -> None:
    child_flow(disk_store, "one")
    child_flow(disk_store, "two-inner")
    agent = calling(says({"status": "done"}, "echo $CASFS_THREAD >>log"), "one", "two-inner")
    tree = put_tree(disk_store, {})
    ended = await carry_on(disk_store, start(disk_store, agent, tree))
    second = steps(disk_store, ended)[1]
    made = children(disk_store, ended)
    assert second["childThreads"] == [one.hash for one in made]
    assert len(made) == 2
    (log,) = disk_store.node(second["workspace"]).payload["files"]
    lines = disk_store.get(log["digest"]["hash"]).decode().split()
    assert lines == [made[0].id] * 2 + [made[1].id] * 2
    detail = disk_store.node(second["detail"], "call-detail").payload
    assert detail["ends"] == second["childThreads"]


async def test_a_suspended_child_suspends_its_parent_and_resume_walks_down(
    disk_store: Store, tmp_path: Path
) -> None:
    child_flow(disk_store)
    luck = tmp_path / "luck"
    agent = calling(says({"status": "done"}, f"[ -e {luck} ] || exit 1"), "inner")
    rests = await carry_on(disk_store, start(disk_store, agent))
    (child,) = children(disk_store, rests)
    assert (child.status, child.record["cause"]) == (SUSPENDED, "failure")
    assert (rests.status, rests.record["cause"]) == (SUSPENDED, "child")
    assert child.id in rests.record["reason"]
    luck.touch()
    again = journal.resume(disk_store, rests)
    assert threads.get(disk_store, child.id).status == RUNNING
    ended = await carry_on(disk_store, again)
    assert ended.status == ENDED
    assert len(children(disk_store, ended)) == 1, "no second child"
    assert len(steps(disk_store, ended)[1]["childThreads"]) == 1


async def test_resuming_the_child_resumes_its_callers(disk_store: Store, tmp_path: Path) -> None:
    child_flow(disk_store)
    agents = {"a": {"name": "human"}}
    outer = Binding("workflow", {"workflow": "inner", "agents": agents})
    rests = await carry_on(disk_store, start(disk_store, outer))
    for _ in range(2):
        (child,) = children(disk_store, rests)
        with pytest.raises(Conflict, match="waits for an answer"):
            journal.resume(disk_store, rests)
        top = journal.resume(disk_store, child, '{"status": "done"}')
        assert top.id == rests.id
        rests = await carry_on(disk_store, top)
    assert rests.status == ENDED


async def test_cancel_walks_down(disk_store: Store) -> None:
    child_flow(disk_store)
    agent = calling(says({"status": "done"}, "exit 1"), "inner")
    rests = await carry_on(disk_store, start(disk_store, agent))
    ended = journal.cancel(disk_store, rests)
    (child,) = children(disk_store, rests)
    assert (ended.status, child.status) == (CANCELLED, CANCELLED)
    assert threads.end(disk_store, child)


async def test_calls_are_only_so_deep(disk_store: Store) -> None:
    hash, _ = catalog.add(disk_store, {**ONE, "name": "again"})
    config: dict[str, Any] = {"workflow": "again", "agents": {}}
    for _ in range(origin.MAX_DEPTH + 1):
        config = {"workflow": "again", "agents": {"a": {"name": "workflow", "config": config}}}
    made = origin.create(disk_store, Request(hash, "x", {"a": Binding("workflow", config)}))
    rests = await carry_on(disk_store, made)
    assert rests.record["cause"] == "child"
    deepest = threads.listing(disk_store)[-1]
    assert f"calls are {origin.MAX_DEPTH} deep" in deepest.record["reason"]
    assert len(threads.listing(disk_store)) == 1 + origin.MAX_DEPTH


async def test_a_crash_makes_no_second_child(disk_store: Store, tmp_path: Path) -> None:
    """As if the daemon had died while the child ran: both heads say `running`."""
    child_flow(disk_store)
    side = tmp_path / "side"
    agent = calling(
        says({"status": "done"}, f"echo >>{side}; [ -e {side}.go ] || sleep 600"), "inner"
    )
    made = start(disk_store, agent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry_on, disk_store, made)
        while not side.exists():
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    now = threads.get(disk_store, made.id)
    (child,) = children(disk_store, made)
    assert (now.status, child.status) == (RUNNING, RUNNING)
    assert now.record["intent"]["calls"] == [child.id]
    Path(f"{side}.go").touch()
    ended = await carry_on(disk_store, now)
    assert ended.status == ENDED
    assert [one.id for one in children(disk_store, ended)] == [child.id]
    assert side.read_text() == "\n" * 3


async def test_a_failed_try_takes_its_children_with_it(disk_store: Store) -> None:
    child_flow(disk_store)
    made = start(disk_store, calling(says({"status": "done"}), "inner"))
    running = journal.begin(disk_store, made, Next("c"), 1, 100, 1)
    hash = catalog.find(disk_store, "inner")
    request = Request(hash, "x", {"a": Binding("command", says({}))})
    parent, child = origin.call(disk_store, running, request, {})
    again, same = origin.call(disk_store, parent, request, {})
    assert (again, same) == (parent, child)
    _, other = origin.call(disk_store, parent, request, {child.id: None})
    assert other.id != child.id
    rests = journal.suspend(disk_store, threads.get(disk_store, made.id), "no")
    assert rests.record["intent"]["calls"] == []
