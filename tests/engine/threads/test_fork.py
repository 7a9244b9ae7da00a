"""A fork: a new thread from a step of an old one, sharing every node up to there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casfs import canonical
from casfs.backend.protocols import MAX_RECORD_BYTES
from casfs.errors import Invalid, NotFound, Refused
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, RUNNING, Thread
from engine.moderator.decision import Next
from engine.threads import suspension, transitions
from engine.threads.agent_binding import Binding
from engine.threads.suspension import Suspension
from engine.workflow import registry as workflows
from tests.support.engine import (
    STATUS,
    Cli,
    begin,
    carry_on,
    daemon,
    fork,
    loop,
    rule,
    says,
    start_thread,
    steps,
    until,
    workflow,
)
from tests.support.helpers import blobs, put_tree, read_tree
from tests.support.maintenance import age
from tests.support.restores import restore_tree


async def ended(store: Store, length: int = 4) -> Thread:
    """A thread of so many steps, each of which adds a line to the file `log`."""
    agents = {"a": says({"status": "done"}, 'echo "$CASFS_STEP" >>log')}
    made = begin(store, loop(length, STATUS), agents, put_tree(store, {"log": b"start\n"}))
    return await carry_on(store, made)


def held(store: Store, step: dict[str, object], where: Path) -> dict[bytes, object]:
    restore_tree(store, str(step["workspace"]), where)
    return read_tree(where)


@pytest.mark.parametrize("at", [0, 1, 3, 4])
async def test_it_goes_on_from_that_step(disk_store: Store, at: int, tmp_path: Path) -> None:
    old = await ended(disk_store)
    place = at
    before = blobs(disk_store)
    made = fork(disk_store, old, at)
    assert blobs(disk_store) == before, "no node is copied"
    assert made.id != old.id
    assert made == threads.get(disk_store, made.id)
    assert made.record["fork"] == {"thread": old.id, "step": place}
    assert (made.status, made.record["start"]) == (RUNNING, old.record["start"])
    assert (made.record["parent"], made.record["children"]) == (None, [])
    kept = [ref.hash for ref in threads.steps(disk_store, old)][:place]
    assert [ref.hash for ref in threads.steps(disk_store, made)] == kept
    end = await carry_on(disk_store, made)
    assert (end.status, end.record["returnCode"]) == (ENDED, 0)
    hashes = [ref.hash for ref in threads.steps(disk_store, end)]
    assert len(hashes) == 4
    assert hashes[:place] == kept
    last = steps(disk_store, end)[-1]
    assert held(disk_store, last, tmp_path / "out") == {b"log": b"start\n1\n2\n3\n4\n"}
    assert threads.get(disk_store, old.id) == old


async def test_a_fork_can_go_another_way(disk_store: Store, tmp_path: Path) -> None:
    """The agent does something else the second time."""
    side = tmp_path / "side"
    rules = [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")]
    agents = {"a": says({}, "echo a >>log"), "b": says({}, f"cat {side} >>log")}
    side.write_text("first\n")
    root = put_tree(disk_store, {})
    old = await carry_on(
        disk_store, begin(disk_store, workflow(rules, a=None, b=None), agents, root)
    )
    side.write_text("second\n")
    new = await carry_on(disk_store, fork(disk_store, old, 1))
    logs = [
        held(disk_store, steps(disk_store, one)[-1], tmp_path / one.id)[b"log"]
        for one in (old, new)
    ]
    assert logs == [b"a\nfirst\n", b"a\nsecond\n"]


async def test_nothing_is_left_to_run_after_the_end(disk_store: Store) -> None:
    old = await ended(disk_store)
    with pytest.raises(Refused, match="nothing is left to run after its last step; give --at STEP"):
        fork(disk_store, old)
    assert threads.list_threads(disk_store) == [old]


@pytest.mark.parametrize("at", [-1, 5, 1000])
async def test_there_must_be_such_a_step(disk_store: Store, at: int) -> None:
    old = await ended(disk_store)
    with pytest.raises(NotFound, match=f"no step {at}; it has 4"):
        fork(disk_store, old, at)
    assert len(threads.list_threads(disk_store)) == 1


# -- other agents -------------------------------------------------------------------------

CHAIN = workflow([rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")], a=None, b=None)


def says_name(name: str) -> Binding:
    return Binding("command", says({}, f"echo {name} >>log"))


async def chain(store: Store) -> Thread:
    agents = {name: says({}, f"echo {name} >>log") for name in "ab"}
    return await carry_on(store, begin(store, CHAIN, agents, put_tree(store, {})))


async def test_other_agents_play_from_there_on(disk_store: Store, tmp_path: Path) -> None:
    old = await chain(disk_store)
    made = fork(disk_store, old, 1, {"b": says_name("other")})
    assert made.record["start"] == old.record["start"]
    assert made.record["fork"] == {"thread": old.id, "step": 1}
    end = await carry_on(disk_store, made)
    (first, second), (_, before) = steps(disk_store, end), steps(disk_store, old)
    assert held(disk_store, second, tmp_path / "out") == {b"log": b"a\nother\n"}
    ran = disk_store.node(first["agent"], "agent").payload
    bound = disk_store.node(threads.agents(disk_store, old)["a"], "agent").payload
    assert {**ran, "version": ""} == bound
    assert second["agent"] not in (first["agent"], before["agent"])
    config = disk_store.node(second["agent"], "agent").payload
    assert (config["package"], config["version"][:2]) == ("command", "==")
    assert config["config"] == says_name("other").config
    now = threads.agents(disk_store, end)
    assert now["a"] == threads.agents(disk_store, old)["a"]
    assert disk_store.node(now["b"], "agent").payload == {**config, "version": ""}


async def test_a_fork_of_a_fork_keeps_its_agents(disk_store: Store, tmp_path: Path) -> None:
    first = fork(disk_store, await chain(disk_store), 0, {"b": says_name("other")})
    again = fork(disk_store, first, 0)
    assert again.record["agents"] == first.record["agents"]
    (_, last) = steps(disk_store, await carry_on(disk_store, again))
    assert held(disk_store, last, tmp_path / "1") == {b"log": b"a\nother\n"}
    third = fork(disk_store, again, 0, {"a": says_name("first")})
    (_, last) = steps(disk_store, await carry_on(disk_store, third))
    assert held(disk_store, last, tmp_path / "2") == {b"log": b"first\nother\n"}


async def test_gc_keeps_the_agents_of_a_fork(disk_store: Store) -> None:
    old = await chain(disk_store)
    made = fork(disk_store, old, 1, {"b": says_name("other")})
    age(disk_store)
    gc.collect(disk_store, limits=gc.Limits(max_bytes=0))
    assert (await carry_on(disk_store, made)).status == ENDED


async def test_its_record_has_room_however_many_agents(disk_store: Store) -> None:
    names = [f"{'r' * 60}{n:03}" for n in range(60)]
    rules = [rule("__start__", names[0]), *(rule(name, "__end__") for name in names)]
    flow = workflow(rules, **dict.fromkeys(names))
    old = begin(disk_store, flow, {name: says({}) for name in names})
    made = fork(disk_store, old, 0, {name: says_name(name) for name in names})
    begun = transitions.begin(disk_store, made, Next(names[0]), 0, 100, 99)
    failed = [disk_store.put(bytes([n])).hash for n in range(30)]
    suspended = suspension.suspend(
        disk_store, begun, Suspension("\U0001f525" * 5000, failed=failed)
    )
    assert len(canonical.encode(dict(suspended.record))) < MAX_RECORD_BYTES - 100


@pytest.mark.parametrize(
    ("others", "error", "said"),
    [
        ({"c": Binding("command", {"argv": ["true"]})}, Invalid, "no role 'c'; it has a, b"),
        ({"b": Binding("nobody")}, NotFound, "no agent or profile 'nobody'"),
        ({"b": Binding("command", {})}, Invalid, "config.argv is required"),
    ],
)
async def test_nothing_is_made_with_an_agent_that_does_not_fit(
    disk_store: Store, others: dict[str, Binding], error: type[Exception], said: str
) -> None:
    old = await chain(disk_store)
    before = blobs(disk_store)
    with pytest.raises(error, match=said):
        fork(disk_store, old, 1, others)
    assert blobs(disk_store) == before
    assert len(threads.list_threads(disk_store)) == 1


def test_the_command_line(cli: Cli, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Store.open(cli.root) as store:
        workflows.add(store, loop(3))
    agent = says({}, f"[ $CASFS_STEP != 3 ] || [ -e {go} ] || exit 1")
    with daemon(cli.root):
        id = start_thread(cli.root, "sample", {"a": agent})
        until(lambda: daemon_socket.request(cli.root, "wait", id=id)["status"] == "suspended")
        go.touch()
        made = cli("thread", "fork", id[:20], "--at", "1", "--wait").text.split()
        new = cli("thread", "show", made[0], "--json").json
        assert (new["status"], len(new["steps"])) == ("succeeded", 3)
        assert cli("thread", "show", id, "--json").json["status"] == "suspended"
        said = cli("thread", "fork", id, "--json").json
        assert (said["thread"], said["step"]) == (id, 2)
        assert "no step 9" in cli("thread", "fork", id, "--at", "9", code=3).err
        assert "--at" in cli("thread", "fork", id, "--at", "-1", code=2).err
        other = f"a=command:{json.dumps(says({'who': 'other'}))}"
        forked = cli("thread", "fork", id, "--at", "1", "--agent", other, "--wait", "--json").json
        shown = cli("thread", "show", forked["id"], "--json").json["steps"]
        assert [step["meta"] for step in shown] == [{}, {"who": "other"}, {"who": "other"}]
        assert len({step["agent"] for step in shown}) == 2
        assert "no role 'b'" in cli("thread", "fork", id, "--agent", "b=command", code=4).err
        assert "no agent or profile" in cli("thread", "fork", id, "--agent", "b", code=3).err
        hinted = cli("thread", "fork", id, "--at", "1", "--hint", "Be *kind*.", "--wait").text[:26]
        prompts = [cli("thread", "prompt", f"{hinted}@{at}").text for at in (1, 2, 3)]
        assert ["# Hint\n\nBe *kind*." in prompt for prompt in prompts] == [False, True, False]
