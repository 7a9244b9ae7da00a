"""Ways out of a suspended thread: another agent by `resume`, another workflow by `fork`."""

from __future__ import annotations

import json

import pytest

from casfs.errors import Conflict, Invalid, NotFound
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from engine.threads import lifecycle, suspension
from engine.threads.agent_binding import Binding
from engine.workflow import registry as workflows
from tests.support.engine import (
    ONE,
    Cli,
    begin,
    carry_on,
    daemon,
    fork,
    loop,
    role,
    rule,
    says,
    start_thread,
    steps,
    workflow,
)
from tests.support.maintenance import age


async def suspended(store: Store) -> Thread:
    """A thread whose second step fails."""
    agent = says({}, "[ $CASFS_STEP = 1 ] || exit 1")
    found = await carry_on(store, begin(store, loop(3), {"a": agent}))
    assert found.status == SUSPENDED
    return found


async def test_resume_takes_another_agent_from_then_on(disk_store: Store) -> None:
    found = await suspended(disk_store)
    other = Binding("command", says({"by": "other"}))
    moved = suspension.resume(disk_store, found, agents={"a": other})
    ended = await carry_on(disk_store, moved)
    assert (ended.status, ended.record["returnCode"]) == (ENDED, 0)
    first, second, third = steps(disk_store, ended)
    assert [step["meta"] for step in (first, second, third)] == [
        {},
        {"by": "other"},
        {"by": "other"},
    ]
    assert second["agent"] == third["agent"] != first["agent"]
    assert len(second["attempts"]) == 1, "the failed attempt is kept"


async def test_resume_refuses_an_agent_for_no_role(disk_store: Store) -> None:
    found = await suspended(disk_store)
    for agents, error, said in (
        ({"z": Binding("command", says({}))}, Invalid, "no role 'z'; it has a"),
        ({"a": Binding("nobody")}, NotFound, "no agent or profile 'nobody'"),
    ):
        with pytest.raises(error, match=said):
            suspension.resume(disk_store, found, agents=agents)
    assert threads.get(disk_store, found.id) == found


async def test_another_agent_needs_no_answer_to_the_question_of_the_first(
    disk_store: Store,
) -> None:
    flow, _ = workflows.add(disk_store, ONE)
    asks = {"a": Binding("human", {"question": "Well?"})}
    made = lifecycle.create(disk_store, lifecycle.ThreadRequest(flow, "x", asks))
    found = await carry_on(disk_store, made)
    with pytest.raises(Conflict, match="waits for an answer"):
        suspension.resume(disk_store, found)
    other = {"a": Binding("command", says({}))}
    ended = await carry_on(disk_store, suspension.resume(disk_store, found, agents=other))
    assert (ended.status, len(steps(disk_store, ended))) == (ENDED, 1)


FAULTY = workflow(
    [rule("__start__", "a"), rule("a", "__end__", "$last('a').content - 1 > 0")], a=None
)
MENDED = {
    **workflow([rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")], "mended", a=None),
    "roles": {"a": role("a"), "b": role("b")},
}


async def faulty(store: Store) -> Thread:
    found = await carry_on(store, begin(store, FAULTY, {"a": says({})}))
    assert (found.status, found.record["cause"]) == (SUSPENDED, "rule")
    return found


async def test_fork_takes_another_workflow_for_a_faulty_rule(disk_store: Store) -> None:
    found = await faulty(disk_store)
    new, _ = workflows.add(disk_store, MENDED)
    more = {"b": Binding("command", says({}))}
    made = fork(disk_store, found, replacements=more, workflow=new)
    assert (made.record["workflow"], threads.workflow(disk_store, made)) == ("mended", new)
    with disk_store.batch() as batch:
        head = disk_store.heads.get(workflows.head_name("mended"))
        batch.swap(workflows.head_name("mended"), head, None)
    age(disk_store)
    gc.collect(disk_store, limits=gc.Limits(max_bytes=0))
    ended = await carry_on(disk_store, made)
    assert [step["role"] for step in steps(disk_store, ended)] == ["a", "b"]
    assert ended.record["returnCode"] == 0
    again = fork(disk_store, ended, 1)
    assert threads.workflow(disk_store, again) == new


async def test_the_new_workflow_has_the_roles_and_agents(disk_store: Store) -> None:
    found = await faulty(disk_store)
    new, _ = workflows.add(disk_store, MENDED)
    with pytest.raises(Invalid, match="no agent for b"):
        fork(disk_store, found, workflow=new)
    rules = [rule("__start__", "b"), rule("b", "__end__")]
    without, _ = workflows.add(disk_store, workflow(rules, "without", b=None))
    more = {"b": Binding("command", says({}))}
    with pytest.raises(Invalid, match="no role 'a', of step 1"):
        fork(disk_store, found, replacements=more, workflow=without)
    made = fork(disk_store, found, 0, more, workflow=without)
    ended = await carry_on(disk_store, made)
    assert [step["role"] for step in steps(disk_store, ended)] == ["b"]
    assert len(threads.list_threads(disk_store)) == 2


def test_the_command_line(cli: Cli) -> None:
    with Store.open(cli.root) as store:
        workflows.add(store, FAULTY)
        workflows.add(store, MENDED)
        workflows.add(store, {**ONE, "name": "one"})
    good = f"command:{json.dumps(says({}))}"
    with daemon(cli.root):
        id = start_thread(cli.root, "one", {"a": says({}, "exit 1")})
        daemon_socket.request(cli.root, "wait", id=id)
        cli("thread", "resume", id, "--agent", f"a={good}", "--wait")
        other = start_thread(cli.root, "sample", {"a": says({})})
        daemon_socket.request(cli.root, "wait", id=other)
        cli("thread", "fork", other, "--workflow", "mended", "--agent", f"b={good}", "--wait")
