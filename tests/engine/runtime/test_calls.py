"""Threads that call threads: links in both directions; suspended, resumed and ended together."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.agents.notation import AgentSpec
from casfs.cli.thread import show
from casfs.errors import CasfsError, Conflict, Invalid, NotFound, Refused
from casfs.store.graph import walk
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import CANCELLED, ENDED, RUNNING, SUSPENDED, Thread
from casfs.trees.recorded_state import RecordedState
from engine.moderator.decision import Next
from engine.threads import agent_binding, lifecycle, suspension, transitions
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.threads.record import ALLOWS_SECRETS, Budget
from engine.threads.suspension import Suspension
from engine.workflow import registry as workflows
from tests.scanner import samples
from tests.support.engine import (
    ONE,
    STATUS,
    Cli,
    alive,
    carry_on,
    daemon,
    kill,
    loop,
    pids,
    rule,
    says,
    steps,
    until,
    workflow,
)
from tests.support.helpers import put_tree, read_tree
from tests.support.restores import restore_tree

TWO = workflow(
    [rule("__start__", "p"), rule("p", "c"), rule("c", "__end__")], "two", p=None, c=None
)


def child_flow(store: Store, name: str = "inner", steps: int = 2) -> None:
    workflows.add(store, {**loop(steps, STATUS), "name": name})


def calling(agent: dict[str, Any], *names: str) -> Binding:
    agents = {"a": {"name": "command", "config": agent}}
    calls = [{"workflow": name, "agents": agents, "input": f"task {name}"} for name in names]
    return Binding("workflow", calls[0] if len(calls) == 1 else {"calls": calls})


def start(store: Store, agent: Binding, workspace: str | None = None) -> Thread:
    hash, _ = workflows.add(store, TWO)
    bound = {"p": Binding("command", says({})), "c": agent}
    return lifecycle.create(
        store, ThreadRequest(hash, "Do it.", bound, workspace and RecordedState(workspace))
    )


def children(store: Store, parent: Thread) -> list[Thread]:
    return [one for one in threads.list_threads(store) if one.record["parent"] == parent.id]


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
    assert show.step_name(disk_store, ended.id, begun["parentState"]) == f"{ended.id}@1"
    assert (begun["depth"], begun["workspace"]) == (1, first["workspace"])
    assert ended.record["children"] == [child.id]
    assert second["meta"]["status"] == "done"
    assert second["workspace"] == steps(disk_store, child)[-1]["workspace"]
    restore_tree(disk_store, second["workspace"], tmp_path / "out")
    assert read_tree(tmp_path / "out") == {b"log": b"start\n1\n2\n"}
    assert child.hash in set(walk(disk_store, [ended.hash]))
    assert f"casfs thread context {ended.id}" in side.read_text()
    assert begun["parentState"] in side.read_text()


async def test_a_secret_of_the_child_alone(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config of the caller's agent names it, too: it is in no node of either."""
    child_flow(disk_store, steps=1)
    monkeypatch.setenv("INNER_KEY", "task inner")
    agent = calling({**says({"status": "done"}), "secrets": ["INNER_KEY"]}, "inner")
    hidden = agent_binding.redacting_store(disk_store, {"c": agent}, os.environ)
    ended = await carry_on(disk_store, start(hidden, agent))
    (child,) = children(disk_store, ended)
    begun = threads.start(disk_store, child).payload
    assert disk_store.node(begun["input"]).payload["text"] == "$INNER_KEY"
    assert not said_anywhere(disk_store, b"task inner")


async def test_a_secret_of_the_caller_is_one_below(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_flow(disk_store, steps=1)
    monkeypatch.setenv("OUTER_KEY", "hunter2-hunter2")
    workflows.add(disk_store, TWO)
    hash = workflows.find(disk_store, "two")
    bound = {
        "p": Binding("command", {**says({}), "secrets": ["OUTER_KEY"]}),
        "c": calling(says({"status": "done"}, 'echo "$OUTER_KEY"'), "inner"),
    }
    ended = await carry_on(
        disk_store, lifecycle.create(disk_store, ThreadRequest(hash, "x", bound))
    )
    (child,) = children(disk_store, ended)
    (step,) = steps(disk_store, child)
    assert disk_store.node(step["content"]).payload["text"].startswith("$OUTER_KEY\n")
    assert not said_anywhere(disk_store, b"hunter2-hunter2")


async def test_what_the_caller_may_record_the_called_thread_may(disk_store: Store) -> None:
    child_flow(disk_store, steps=1)
    workflows.add(disk_store, TWO)
    token = samples.github_token()
    bound = {
        "p": Binding("command", says({})),
        "c": calling(says({"status": "done"}, f"echo {token}"), "inner"),
    }
    request = ThreadRequest(workflows.find(disk_store, "two"), "x", bound, allow_secret=True)
    ended = await carry_on(disk_store, lifecycle.create(disk_store, request))
    (child,) = children(disk_store, ended)
    assert child.record[ALLOWS_SECRETS]
    (step,) = steps(disk_store, child)
    assert disk_store.node(step["content"]).payload["text"].startswith(token)


def said_anywhere(store: Store, text: bytes) -> bool:
    return any(text in store.get(hash) for _, hash, _ in store.blobs.iterate())


@pytest.mark.parametrize(
    ("inner", "error", "said"),
    [
        ({"name": "command", "config": {}}, Invalid, "config.argv is required"),
        ({"name": "command", "config": {"argv": ["x"]}, "version": ">99"}, Refused, ">99"),
        ({"name": "nobody"}, NotFound, "no agent or profile 'nobody'"),
    ],
)
def test_agents_of_a_call_are_checked_when_the_caller_starts(
    inner: dict[str, Any], error: type[CasfsError], said: str, store: Store
) -> None:
    child_flow(store)
    one = {"workflow": "inner", "agents": {"a": inner}}
    for config in (one, {"calls": [one]}):
        with pytest.raises(error, match=said):
            start(store, Binding("workflow", config))
    assert threads.list_threads(store) == []


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (5, r"config.agents.a: must be of type string or object"),
        ("nobdy", "no agent or profile 'nobdy'"),
        ("comand:true", "did you mean command"),
        ({"package": "command", "confg": {}}, r"config.agents.a: .*'confg' was unexpected"),
        ({"package": "command", "config": 5}, r"config.agents.a.config: 5 is not"),
    ],
)
def test_an_agent_of_a_call_is_written_as_in_a_workflow_file(
    inner: object, said: str, store: Store
) -> None:
    child_flow(store)
    with pytest.raises(CasfsError, match=said):
        start(store, Binding("workflow", {"workflow": "inner", "agents": {"a": inner}}))


async def test_a_child_takes_the_agents_of_its_own_file(disk_store: Store) -> None:
    child_flow(disk_store)
    config = says({"status": "done"}, "echo own >file")
    own = AgentSpec(name="command", version="", config=config)
    flow = workflows.definition(disk_store, workflows.find(disk_store, "inner"))
    workflows.add(disk_store, flow, {"a": own})
    tree = put_tree(disk_store, {})
    ended = await carry_on(
        disk_store, start(disk_store, Binding("workflow", {"workflow": "inner"}), tree)
    )
    assert ended.status == ENDED
    (child,) = children(disk_store, ended)
    agent = disk_store.node(threads.agents(disk_store, child)["a"]).payload
    assert (agent["package"], agent["config"]) == ("command", config)
    other = {"package": "command", "config": says({"status": "done"}, "echo other >file")}
    call = Binding("workflow", {"workflow": "inner", "agents": {"a": other}})
    (child,) = children(disk_store, await carry_on(disk_store, start(disk_store, call, tree)))
    assert (
        disk_store.node(threads.agents(disk_store, child)["a"]).payload["config"] == other["config"]
    )


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
    suspended = await carry_on(disk_store, start(disk_store, agent))
    (child,) = children(disk_store, suspended)
    assert (child.status, child.record["cause"]) == (SUSPENDED, "failure")
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, "child")
    assert child.id in suspended.record["reason"]
    luck.touch()
    again = suspension.resume(disk_store, suspended)
    assert threads.get(disk_store, child.id).status == RUNNING
    ended = await carry_on(disk_store, again)
    assert ended.status == ENDED
    assert len(children(disk_store, ended)) == 1, "no second child"
    assert len(steps(disk_store, ended)[1]["childThreads"]) == 1


async def test_what_a_resting_thread_called_does_not_run(disk_store: Store, tmp_path: Path) -> None:
    """A spent budget breaks the call off; nobody runs the child, and its status says so."""
    child_flow(disk_store)
    go, side = tmp_path / "go", tmp_path / "side"
    agent = calling(
        says({"status": "done"}, f"echo $$ >>{side}; [ -e {go} ] || sleep 600"), "inner"
    )
    hash, _ = workflows.add(disk_store, TWO)
    bound = {"p": Binding("command", says({})), "c": agent}
    made = lifecycle.create(
        disk_store, ThreadRequest(hash, "x", bound, budget=Budget(wall_ms=1000))
    )
    suspended = await carry_on(disk_store, made)
    (child,) = children(disk_store, suspended)
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, "budget")
    assert (child.status, child.record["cause"]) == (SUSPENDED, "caller")
    assert not alive(pids(side)[0])
    go.touch()
    ended = await carry_on(disk_store, suspension.resume(disk_store, suspended))
    assert ended.status == ENDED
    assert children(disk_store, ended) == [threads.get(disk_store, child.id)]
    assert threads.get(disk_store, child.id).status == ENDED


async def test_one_that_waits_lays_all_to_rest(disk_store: Store, tmp_path: Path) -> None:
    """Of two that are called at once one asks a person; resumed, both go on."""
    child_flow(disk_store, "one", 1)
    hash, _ = workflows.add(disk_store, ONE)
    made = lifecycle.create(
        disk_store, ThreadRequest(hash, "x", {"a": Binding("command", says({}))})
    )
    running = transitions.begin(disk_store, made, Next("a"), 0, 100, 1)
    inner = workflows.find(disk_store, "one")
    for role in (Binding("human"), Binding("command", says({"status": "done"}))):
        running, _ = lifecycle.call(disk_store, running, ThreadRequest(inner, "x", {"a": role}), {})
    asks, works = children(disk_store, made)
    await carry_on(disk_store, asks)
    suspended = suspension.suspend(disk_store, running, Suspension("no answer", "child"))
    assert threads.get(disk_store, works.id).record["cause"] == "caller"
    with pytest.raises(Conflict, match="waits for an answer"):
        suspension.resume(disk_store, suspended)
    suspension.resume(disk_store, suspended, "yes")
    found = [threads.get(disk_store, one.id) for one in (made, asks, works)]
    assert [one.status for one in found] == [RUNNING] * 3
    assert [one.record["answer"] is not None for one in found] == [False, True, False]


async def test_resuming_the_child_resumes_its_callers(disk_store: Store, tmp_path: Path) -> None:
    child_flow(disk_store)
    agents = {"a": {"name": "human"}}
    outer = Binding("workflow", {"workflow": "inner", "agents": agents})
    suspended = await carry_on(disk_store, start(disk_store, outer))
    for _ in range(2):
        (child,) = children(disk_store, suspended)
        with pytest.raises(Conflict, match="waits for an answer"):
            suspension.resume(disk_store, suspended)
        top = suspension.resume(disk_store, child, '{"status": "done"}')
        assert top.id == suspended.id
        suspended = await carry_on(disk_store, top)
    assert suspended.status == ENDED


async def test_cancel_walks_down(disk_store: Store) -> None:
    child_flow(disk_store)
    agent = calling(says({"status": "done"}, "exit 1"), "inner")
    suspended = await carry_on(disk_store, start(disk_store, agent))
    ended = transitions.cancel(disk_store, suspended)
    (child,) = children(disk_store, suspended)
    assert (ended.status, child.status) == (CANCELLED, CANCELLED)
    assert threads.end(disk_store, child)


async def test_calls_are_only_so_deep(disk_store: Store) -> None:
    hash, _ = workflows.add(disk_store, {**ONE, "name": "again"})
    config: dict[str, Any] = {"workflow": "again", "agents": {"a": {"name": "human"}}}
    for _ in range(lifecycle.MAX_CALL_DEPTH + 1):
        config = {"workflow": "again", "agents": {"a": {"name": "workflow", "config": config}}}
    made = lifecycle.create(
        disk_store, ThreadRequest(hash, "x", {"a": Binding("workflow", config)})
    )
    suspended = await carry_on(disk_store, made)
    assert suspended.record["cause"] == "child"
    deepest = threads.list_threads(disk_store)[-1]
    assert f"calls are {lifecycle.MAX_CALL_DEPTH} deep" in deepest.record["reason"]
    assert len(threads.list_threads(disk_store)) == 1 + lifecycle.MAX_CALL_DEPTH


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


async def test_what_a_step_in_flight_called_keeps_its_name(disk_store: Store) -> None:
    child_flow(disk_store, "one", 1)
    made = start(disk_store, calling(says({"status": "done"}), "one"))
    running = transitions.begin(disk_store, made, Next("c"), 1, 100, 1)
    hash = workflows.find(disk_store, "one")
    request = ThreadRequest(hash, "x", {"a": Binding("command", says({"status": "done"}))})
    parent, child = lifecycle.call(disk_store, running, request, {})
    ended = await carry_on(disk_store, child)
    with pytest.raises(Conflict, match=f"thread {made.id} has a pending step that called"):
        lifecycle.remove(disk_store, ended)
    transitions.cancel(disk_store, parent)
    lifecycle.remove(disk_store, ended)
    assert [one.id for one in threads.list_threads(disk_store)] == [made.id]


async def test_a_failed_try_takes_its_children_with_it(disk_store: Store) -> None:
    child_flow(disk_store)
    made = start(disk_store, calling(says({"status": "done"}), "inner"))
    running = transitions.begin(disk_store, made, Next("c"), 1, 100, 1)
    hash = workflows.find(disk_store, "inner")
    request = ThreadRequest(hash, "x", {"a": Binding("command", says({}))})
    parent, child = lifecycle.call(disk_store, running, request, {})
    again, same = lifecycle.call(disk_store, parent, request, {})
    assert (again, same) == (parent, child)
    _, other = lifecycle.call(disk_store, parent, request, {child.id: None})
    assert other.id != child.id
    suspended = suspension.suspend(disk_store, threads.get(disk_store, made.id), Suspension("no"))
    assert suspended.record["intent"]["calls"] == []


# -- with a daemon ------------------------------------------------------------------------


def ask(store: Store, agent: Binding) -> str:
    """Start a thread of TWO and return its id."""
    workflows.add(store, TWO)
    bound = {
        "p": {"name": "command", "config": says({})},
        "c": {"name": agent.name, "config": agent.config},
    }
    asked = {"workflow": "two", "input": "Do it.", "agents": bound}
    return str(daemon_socket.request(root_of(store), "start", **asked)["id"])


def root_of(store: Store) -> Path:
    return store.root


def test_a_called_thread_takes_no_place(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    """Calls three deep, and one thread at a time."""
    monkeypatch.setenv("CASFS_RUNS_LIMIT", "1")
    child_flow(disk_store, "inner", 1)
    workflows.add(disk_store, {**ONE, "name": "middle"})
    inner = calling(says({"status": "done"}), "inner")
    agents = {"a": {"name": "workflow", "config": inner.config}}
    with daemon(root_of(disk_store)):
        id = ask(disk_store, Binding("workflow", {"workflow": "middle", "agents": agents}))
        assert daemon_socket.request(root_of(disk_store), "wait", id=id)["status"] == ENDED
    top, middle, last = threads.list_threads(disk_store)
    assert [one.record["parent"] for one in (middle, last)] == [top.id, middle.id]
    cli = Cli(root_of(disk_store), monkeypatch, capfdbinary)
    lines = cli("thread", "show", id).text.splitlines()
    assert lines[-2:] == [
        f"calls {middle.id}  middle  succeeded",
        f"  calls {last.id}  inner  succeeded",
    ]
    shown = cli("thread", "show", id, "--json").json["calls"]
    assert [shown[0]["id"], shown[0]["calls"][0]["id"]] == [middle.id, last.id]


def test_cancel_ends_what_runs_below(disk_store: Store, tmp_path: Path) -> None:
    root, side = root_of(disk_store), tmp_path / "side"
    child_flow(disk_store)
    script = f"sleep 600 & echo $! >>{side}; setsid sleep 600 & echo $! >>{side}; wait"
    with daemon(root):
        id = ask(disk_store, calling(says({}, script), "inner"))
        until(lambda: len(pids(side)) == 2, "the agent of the child")
        top, child = threads.list_threads(disk_store)
        now = daemon_socket.request(root, "status")
        assert (now["running"], now["called"]) == ([top.id], [child.id])
        daemon_socket.request(root, "cancel", id=id)
        assert not any(map(alive, pids(side)))
        assert daemon_socket.request(root, "status")["running"] == []
    assert [one.status for one in threads.list_threads(disk_store)] == [CANCELLED] * 2


def test_a_child_can_be_cancelled_by_itself(disk_store: Store, tmp_path: Path) -> None:
    root, side = root_of(disk_store), tmp_path / "side"
    child_flow(disk_store)
    with daemon(root):
        id = ask(disk_store, calling(says({}, f"echo $$ >>{side}; sleep 600"), "inner"))
        until(lambda: pids(side), "the agent of the child")
        child = threads.list_threads(disk_store)[1]
        daemon_socket.request(root, "cancel", id=child.id)
        assert daemon_socket.request(root, "wait", id=id)["status"] == ENDED
        assert not alive(pids(side)[0])
    last = steps(disk_store, threads.get(disk_store, id))[-1]
    assert (last["meta"]["status"], last["meta"]["returnCode"]) == ("failed", 130)


def test_resume_reaches_the_child_of_a_daemon_that_was_killed(
    disk_store: Store, tmp_path: Path
) -> None:
    root, luck, side = root_of(disk_store), tmp_path / "luck", tmp_path / "side"
    child_flow(disk_store, "inner", 1)
    agent = calling(says({"status": "done"}, f"echo >>{side}; [ -e {luck} ] || exit 1"), "inner")
    with daemon(root) as pid:
        id = ask(disk_store, agent)
        assert daemon_socket.request(root, "wait", id=id)["status"] == SUSPENDED
        kill(pid)
    with daemon(root):
        assert daemon_socket.request(root, "status")["running"] == []
        luck.touch()
        daemon_socket.request(root, "resume", id=id)
        assert daemon_socket.request(root, "wait", id=id)["status"] == ENDED
    assert [one.status for one in threads.list_threads(disk_store)] == [ENDED] * 2
    assert side.read_text() == "\n\n"


def test_a_resumed_child_is_waited_for(disk_store: Store) -> None:
    """The caller is launched first; the child has no task yet when it is waited for."""
    root = root_of(disk_store)
    child_flow(disk_store, "inner", 1)
    agents = {"a": {"name": "human"}}
    with daemon(root):
        for _ in range(3):
            id = ask(disk_store, Binding("workflow", {"workflow": "inner", "agents": agents}))
            assert daemon_socket.request(root, "wait", id=id)["status"] == SUSPENDED
            (child,) = children(disk_store, threads.get(disk_store, id))
            daemon_socket.request(root, "resume", id=child.id, input='{"status": "done"}')
            assert daemon_socket.request(root, "wait", id=child.id)["status"] == ENDED
            assert daemon_socket.request(root, "wait", id=id)["status"] == ENDED


async def test_the_innermost_cause_comes_first(disk_store: Store) -> None:
    agent: dict[str, Any] = {"name": "command", "config": says({}, "echo broken >&2; exit 1")}
    child_flow(disk_store, "inner", 1)
    for number in range(lifecycle.MAX_CALL_DEPTH):
        name = "inner" if number == 0 else f"w{number}"
        agent = {"name": "workflow", "config": {"workflow": name, "agents": {"a": agent}}}
        workflows.add(disk_store, {**ONE, "name": f"w{number + 1}"})
    suspended = await carry_on(disk_store, start(disk_store, Binding("workflow", agent["config"])))
    assert len(threads.list_threads(disk_store)) == 1 + lifecycle.MAX_CALL_DEPTH
    assert suspended.record["reason"].startswith("a: sh exited with 1: broken (in thread ")


SHIPPED = Path(workflows.__file__).parents[1] / "workflows"


async def shipped(store: Store, committed: dict[str, Any]) -> Thread:
    """Runs `solve-issue`, whose developer is `develop`."""
    for name in ("develop", "solve-issue"):
        workflows.add(store, json.loads((SHIPPED / f"{name}.json").read_text()))
    phase = store.put_node("content", {"text": "All of it.", "artifacts": []}).hash
    planned = {"status": "planned", "phases": [{"hash": phase, "title": "one"}]}
    develop = {
        "planner": says(planned),
        "coder": says({"completedPhase": phase, "status": "completed"}, "echo new >file"),
        "reviewer": says({"status": "approved"}),
        "tester": says({"status": "passed"}),
        "committer": says(committed),
    }
    nested = {role: {"name": "command", "config": config} for role, config in develop.items()}
    tools = dict.fromkeys(("packageManager", "testCommand", "lintCommand", "buildCommand"))
    place = {"repoPath": ".", "defaultBranch": "main", "conventions": None, "toolchain": tools}
    bound = {
        "preparer": Binding("command", says(place)),
        "developer": Binding("workflow", {"workflow": "develop", "agents": nested}),
        "submitter": Binding("command", says({"status": "submitted", "prUrl": "u"})),
    }
    flow = workflows.find(store, "solve-issue")
    tree = put_tree(store, {"file": b"old", "other": b""})
    return await carry_on(
        store, lifecycle.create(store, ThreadRequest(flow, "x", bound, RecordedState(tree)))
    )


async def test_the_shipped_workflows_work_together(disk_store: Store) -> None:
    """Fails before: three runs of `develop`, and no usable output after 2 corrections."""
    committed = {"status": "committed", "branch": "fix", "commitSha": "ab" * 20}
    ended = await shipped(disk_store, committed)
    assert ended.status == ENDED, ended.record["reason"]
    meta = steps(disk_store, ended)[1]["meta"]
    assert (meta["branch"], meta["filesChanged"]) == ("fix", ["file"])
    assert len(children(disk_store, ended)) == 1


async def test_a_result_that_does_not_fit_is_not_asked_for_again(disk_store: Store) -> None:
    """Fails before: the called thread was run three times."""
    suspended = await shipped(disk_store, {"status": "failed", "error": "no git"})
    assert suspended.status == SUSPENDED
    assert "result of the called workflow does not fit" in suspended.record["reason"]
    assert len(children(disk_store, suspended)) == 1
