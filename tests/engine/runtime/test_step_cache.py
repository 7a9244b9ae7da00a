"""Steps of roles marked cacheable: what the key covers, what may be kept, what a hit gives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.actions import cache as actions
from casfs.agents.prompt import EarlierStep, Prompt
from casfs.errors import Failed, Invalid
from casfs.maintenance import gc
from casfs.payloads import Intent
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, RUNNING, SUSPENDED, Thread
from casfs.trees.recorded_state import RecordedState
from engine.runtime import step_cache, step_runner
from engine.runtime.single_flight import SingleFlight
from engine.runtime.step_cache import StepInputs
from engine.workflow import registry as workflows
from tests.support.engine import (
    ONE,
    STATUS,
    Answer,
    Cli,
    begin,
    carry_on,
    daemon,
    pids,
    rule,
    says,
    shell,
    start_thread,
    steps,
    until,
    workflow,
)
from tests.support.helpers import put_tree, read_tree
from tests.support.maintenance import age
from tests.support.restores import restore_tree


def cacheable(definition: dict[str, Any], *names: str) -> dict[str, Any]:
    """The definition with these roles marked, or all."""
    roles = {
        name: {**role, "cacheable": True} if name in (names or definition["roles"]) else role
        for name, role in definition["roles"].items()
    }
    return {**definition, "roles": roles}


def counted(side: Path, meta: Any, first: str = "true") -> dict[str, Any]:
    """An agent that leaves its process id in the file `side`."""
    return says(meta, f"echo $$ >>{side}; {first}")


class Events:
    """A log that is kept."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **fields: Any) -> None:
        self.seen.append((event, fields))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.seen if name == event]


@pytest.fixture
def side(tmp_path: Path) -> Path:
    """Where agents leave traces."""
    return tmp_path / "side"


# -- a hit --------------------------------------------------------------------------------


async def test_an_equal_question_is_asked_once(disk_store: Store, side: Path) -> None:
    part = disk_store.put(b"part").hash
    schema = {
        "name": "refs",
        "type": "object",
        "properties": {"part": {"type": "string", "format": "cas_ref"}},
    }
    flow = cacheable(workflow([rule("__start__", "a"), rule("a", "__end__")], a=schema))
    agent = counted(
        side, {"part": part}, "printf '\\377\\n'; echo more >>log; chmod -x tool; rm old"
    )
    project = put_tree(disk_store, {"log": b"start\n", "old": b"", "tool": b"#!/bin/sh\n"})
    events = Events()
    ended = [
        await carry_on(disk_store, begin(disk_store, flow, {"a": agent}, project), log=events)
        for _ in range(2)
    ]
    assert [one.status for one in ended] == [ENDED, ENDED]
    assert len(pids(side)) == 1
    (first,), (second,) = (steps(disk_store, one) for one in ended)
    assert "cached" not in first
    own = ("startedAt", "completedAt", "containment")
    assert {k: v for k, v in second.items() if k not in ("cached", *own)} == {
        k: v for k, v in first.items() if k not in own
    }
    assert second["workspace"] != project
    assert len(disk_store.node(second["content"]).payload["artifacts"]) == 2
    (entry,) = actions.list_entries(disk_store)
    assert (second["cached"]["action"], entry.argv0) == (entry.action, "role a")
    result = actions.load(disk_store, entry.result)
    assert 0 <= second["cached"]["savedMs"] <= result.duration_ms
    (miss,), (hit,) = events.of("miss"), events.of("hit")
    assert miss["reason"] == "no earlier run of this role is cached"
    assert (hit["thread"], hit["action"]) == (ended[1].id, entry.action)
    assert hit["savedMs"] == second["cached"]["savedMs"]


async def test_what_follows_a_hit_works_on_its_workspace(
    disk_store: Store, side: Path, tmp_path: Path
) -> None:
    rules = [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")]
    flow = cacheable(workflow(rules, a=None, b=None), "a")
    agents = {
        "a": counted(side, {}, "mkdir made; echo a >made/a"),
        "b": counted(side, {}, "cat made/a >>log; echo b >>log"),
    }
    project = put_tree(disk_store, {"log": b"start\n"})
    for run_ in (1, 2):
        ended = await carry_on(disk_store, begin(disk_store, flow, agents, project))
        first, second = steps(disk_store, ended)
        assert ("cached" in first, "cached" in second) == (run_ == 2, False)
        assert read_tree(restored(disk_store, second["workspace"], tmp_path / str(run_))) == {
            b"log": b"start\na\nb\n",
            b"made": {b"a": b"a\n"},
        }
    assert len(pids(side)) == 3


def restored(store: Store, root: str, where: Path) -> Path:
    restore_tree(store, root, where)
    return where


async def test_a_thread_without_a_workspace(disk_store: Store, side: Path) -> None:
    for _ in range(2):
        made = begin(disk_store, cacheable(ONE), {"a": counted(side, {})})
        (step,) = steps(disk_store, await carry_on(disk_store, made))
        assert (step["workspace"], step["changes"]) == (None, None)
    assert "cached" in step
    assert len(pids(side)) == 1


async def test_only_a_marked_role_is_cached(disk_store: Store, side: Path) -> None:
    for _ in range(2):
        await carry_on(disk_store, begin(disk_store, ONE, {"a": counted(side, {})}))
    assert len(pids(side)) == 2
    assert actions.list_entries(disk_store) == []


async def test_another_workspace_is_another_question(disk_store: Store, side: Path) -> None:
    events = Events()
    for content in (b"1", b"2", b"1"):
        root = put_tree(disk_store, {"in": content})
        made = begin(disk_store, cacheable(ONE), {"a": counted(side, {})}, root)
        await carry_on(disk_store, made, log=events)
    assert len(pids(side)) == 2
    assert [miss["reason"] for miss in events.of("miss")] == [
        "no earlier run of this role is cached",
        "input tree differs: in",
    ]


# -- the key ------------------------------------------------------------------------------


def question(store: Store, definition: dict[str, Any] = ONE) -> StepInputs:
    hash, _ = workflows.add(store, definition)
    role = workflows.load(store, hash).roles["a"]
    agent = {"package": "command", "version": "==1", "config": says({})}
    prompt = Prompt(role.system_prompt, "Do it.", (), role.extract_prompt, role.schema)
    node = store.put_node("agent", agent).hash
    return StepInputs(role, "a", 1, 0, node, prompt, None, {"PATH": "/bin", "HOME": "/root"})


def changed(store: Store) -> list[StepInputs]:
    """What differs from `question` in one thing each."""
    base = question(store)
    config = {"package": "command", "version": "==1", "config": {**says({}), "timeoutS": 9}}
    other_role = {**ONE, "roles": {"a": {**ONE["roles"]["a"], "description": "Another."}}}
    turn = EarlierStep(1, "b", "said", {"n": 1})
    return [
        base,
        replace(base, role=question(store, other_role).role),
        replace(base, name="b"),
        replace(base, index=2),
        replace(base, depth=1),
        replace(base, agent=store.put_node("agent", config).hash),
        replace(base, workspace=RecordedState(put_tree(store, {}))),
        replace(base, workspace=RecordedState(put_tree(store, {"a": b""}))),
        replace(
            base, workspace=RecordedState(put_tree(store, {"a": b""}), put_tree(store, {"b": b""}))
        ),
        replace(base, env={"PATH": "/usr/bin"}),
        replace(base, env={}),
        replace(base, prompt=replace(base.prompt, task="Do it!")),
        replace(base, prompt=replace(base.prompt, history=(turn,))),
        replace(base, prompt=replace(base.prompt, history=(replace(turn, output="said "),))),
        replace(base, prompt=replace(base.prompt, history=(replace(turn, meta={"n": 2}),))),
    ]


def test_all_that_an_agent_is_given_is_in_the_key(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [step_cache.identify(store, one).hash for one in changed(store)]
    same = replace(question(store), env={"PATH": "/bin", "TERM": "dumb"})
    assert step_cache.identify(store, same).hash == keys[0]
    monkeypatch.setattr(step_cache, "host_platform", lambda: {"os": "x", "arch": "y", "libc": "z"})
    keys.append(step_cache.identify(store, question(store)).hash)
    package = replace(step_cache.loader.load("command"), version="99")
    monkeypatch.setattr(step_cache.loader, "load", lambda name: package)
    keys.append(step_cache.identify(store, question(store)).hash)
    assert len(set(keys)) == len(keys)


def test_the_prompt_can_be_read_in_the_key(store: Store) -> None:
    asked = question(store)
    step = step_cache.identify(store, asked).payload["step"]
    assert store.node(step["prompt"], "content").payload["text"] == asked.prompt.text()
    assert (step["role"], step["name"]) == (asked.role.hash, "a")


# -- what is kept -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "agent",
    [
        shell("printf '%s\\n' '```json' '{\"status\": \"done\"}' '```'; exit 1"),
        shell("echo nothing of use"),
        {**shell("sleep 60"), "timeoutS": 0.05},
    ],
)
async def test_a_failure_is_not_kept(disk_store: Store, agent: dict[str, Any]) -> None:
    flow = cacheable(workflow([rule("__start__", "a"), rule("a", "__end__")], a=STATUS))
    suspended = await carry_on(disk_store, begin(disk_store, flow, {"a": agent}))
    assert suspended.status == SUSPENDED
    assert actions.list_entries(disk_store) == []


async def test_a_corrected_answer_is_kept(disk_store: Store, side: Path) -> None:
    first = f"[ $(wc -l <{side}) -gt 1 ] || exit 0"
    agents = {"a": counted(side, {"status": "done"}, first)}
    flow = cacheable(workflow([rule("__start__", "a"), rule("a", "__end__")], a=STATUS))
    ended = [await carry_on(disk_store, begin(disk_store, flow, agents)) for _ in range(2)]
    (slow,), (fast,) = (steps(disk_store, one) for one in ended)
    assert len(pids(side)) == 2
    assert (slow["extraction"], len(slow["attempts"])) == ("correction", 1)
    assert (fast["extraction"], fast["attempts"]) == ("block", [])
    assert fast["content"] == slow["content"]


async def test_that_nothing_can_be_kept_fails_no_step(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise Failed("the disk is full")

    monkeypatch.setattr(step_runner.step_cache, "save", full)
    events = Events()
    made = begin(disk_store, cacheable(ONE), {"a": says({})})
    assert (await carry_on(disk_store, made, log=events)).status == ENDED
    assert [one["error"] for one in events.of("not cached")] == ["the disk is full"]


async def test_a_step_keeps_what_it_took_from_an_evicted_result(
    disk_store: Store, side: Path, tmp_path: Path
) -> None:
    agents = {"a": counted(side, {}, "printf '\\377\\n'; echo >made")}
    root = put_tree(disk_store, {})

    async def once() -> Thread:
        return await carry_on(disk_store, begin(disk_store, cacheable(ONE), agents, root))

    await once()
    second = await once()
    (entry,) = actions.list_entries(disk_store)
    for one in threads.list_threads(disk_store):
        if one.id != second.id:
            with disk_store.batch() as batch:
                batch.swap(one.name, one.head, None)
    age(disk_store)
    gone = gc.collect(disk_store, limits=gc.Limits(max_bytes=0))
    assert gone.evicted == [actions.HEADS + entry.action]
    assert not disk_store.blobs.info([entry.result, entry.action])
    (step,) = steps(disk_store, second)
    (artifact,) = disk_store.node(step["content"]).payload["artifacts"]
    assert disk_store.get(artifact).startswith(b"\377\n")
    assert disk_store.node(step["detail"]).type == "command-detail"
    assert read_tree(restored(disk_store, step["workspace"], tmp_path / "out")) == {b"made": b"\n"}
    await once()
    assert len(pids(side)) == 2, "a miss again"


async def test_a_result_that_cannot_be_read_is_a_miss(disk_store: Store, side: Path) -> None:
    agents = {"a": counted(side, {}, "head -c 100000 /dev/zero | tr '\\0' x; echo")}
    await carry_on(disk_store, begin(disk_store, cacheable(ONE), agents))
    (entry,) = actions.list_entries(disk_store)
    large = actions.load(disk_store, entry.result).stdout
    file = disk_store.root / "objects" / large[:2] / large[2:]
    file.chmod(0o600)
    file.write_bytes(b"damaged")
    made = begin(disk_store, cacheable(ONE), agents)
    (step,) = steps(disk_store, await carry_on(disk_store, made))
    assert "cached" not in step
    assert len(pids(side)) == 2


# -- at the same time ---------------------------------------------------------------------


async def both(store: Store, agents: dict[str, dict[str, Any]]) -> list[Thread]:
    """Two equal threads, run together as one daemon would."""
    flight, ended = SingleFlight(), []

    async def one(made: Thread) -> None:
        ended.append(await carry_on(store, made, single_flight=flight))

    async with trio.open_nursery() as nursery:
        for made in [begin(store, cacheable(ONE), agents) for _ in range(2)]:
            nursery.start_soon(one, made)
    return ended


async def test_two_that_ask_the_same_run_it_once(disk_store: Store, side: Path) -> None:
    ended = await both(disk_store, {"a": counted(side, {}, "sleep 0.2")})
    assert [one.status for one in ended] == [ENDED, ENDED]
    assert len(pids(side)) == 1
    found = [steps(disk_store, one)[0] for one in ended]
    assert sorted("cached" in step for step in found) == [False, True]


async def test_when_the_first_fails_the_second_asks_itself(disk_store: Store, side: Path) -> None:
    fails = f"sleep 0.1; [ $(wc -l <{side}) -gt 1 ] || exit 1"
    ended = await both(disk_store, {"a": counted(side, {}, fails)})
    assert sorted(one.status for one in ended) == [ENDED, SUSPENDED]
    assert len(pids(side)) == 2


async def test_who_waits_can_be_cancelled(disk_store: Store, side: Path, tmp_path: Path) -> None:
    flight, go = SingleFlight(), tmp_path / "go"
    agents = {"a": counted(side, {}, f"while [ ! -e {go} ]; do sleep 0.01; done")}
    first, second = (begin(disk_store, cacheable(ONE), agents) for _ in range(2))
    async with trio.open_nursery() as nursery:

        async def one() -> None:
            await carry_on(disk_store, first, single_flight=flight)

        nursery.start_soon(one)
        while not pids(side):
            await trio.sleep(0.01)
        with trio.move_on_after(0.3) as limit:
            await carry_on(disk_store, second, single_flight=flight)
        assert limit.cancelled_caught
        go.touch()
    assert len(pids(side)) == 1
    assert threads.get(disk_store, first.id).status == ENDED
    waiting: Intent = threads.get(disk_store, second.id).record["intent"]
    assert (threads.get(disk_store, second.id).status, waiting["pid"]) == (RUNNING, None)


# -- definitions --------------------------------------------------------------------------


def test_a_mark_is_true_or_not_there(store: Store) -> None:
    plain, _ = workflows.add(store, ONE)
    marked, _ = workflows.add(store, cacheable(ONE))
    assert plain != marked
    assert workflows.definition(store, marked) == cacheable(ONE)
    assert workflows.load(store, marked).roles["a"].cacheable
    assert not workflows.load(store, plain).roles["a"].cacheable
    for value in (False, None, 1, "yes"):
        role = {**ONE["roles"]["a"], "cacheable": value}
        with pytest.raises(Invalid, match=r"\$\.roles\.a\.cacheable: must be true"):
            workflows.add(store, {**ONE, "roles": {"a": role}})


# -- the daemon and the command line ------------------------------------------------------


@pytest.fixture
def cli(cli: Cli) -> Cli:
    with Store.open(cli.root) as store:
        workflows.add(store, cacheable(ONE))
    return cli


def test_a_second_thread_prints_the_hit(cli: Cli, side: Path) -> None:
    agent = f"a=command:{json.dumps(counted(side, {}))}"

    def start(*more: str) -> Answer:
        begun = ("thread", "start", "sample", "--input", "x", "--agent", agent)
        return cli(*begun, "--wait", *more)

    with daemon(cli.root):
        first = start()
        assert "hit" not in first.err
        second = start()
        (entry,) = cli("action", "list", "--json").json
        line = f"hit {entry['action'][:12]}: "
        last = second.err.splitlines()[-1]  # behind "started", if that was seen
        assert last.startswith("casfs: step 1 a: finished, ")
        assert f" s, {line}" in last
        assert second.err.endswith(" s saved\n")
        assert line in cli("thread", "show", second.word).text
        assert line in cli("thread", "log", second.word).text
        assert "hit" not in cli("thread", "log", first.word).text
        shown = cli("thread", "show", second.word, "--json").json
        assert shown["steps"][0]["cached"]["action"] == entry["action"]
        assert cli("thread", "show", first.word, "--json").json["steps"][0]["cached"] is None
        third = start("--json").json["id"]
        (step,) = cli("thread", "show", third, "--json").json["steps"]
        assert step["cached"]["action"] == entry["action"]
    log = [json.loads(text) for text in (cli.root / "log/daemon.jsonl").read_text().splitlines()]
    hits = [event for event in log if event["event"] == "hit"]
    assert [event["action"] for event in hits] == [entry["action"]] * 2
    assert len(pids(side)) == 1


def test_threads_of_one_daemon_take_turns(cli: Cli, side: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    agent = counted(side, {}, f"while [ ! -e {go} ]; do sleep 0.01; done")
    with daemon(cli.root):
        ids = [start_thread(cli.root, "sample", {"a": agent}) for _ in range(3)]
        with Store.open(cli.root) as store:
            until(lambda: all(threads.get(store, id).record["intent"] for id in ids))
        daemon_socket.request(cli.root, "cancel", id=ids[2])
        go.touch()
        for id in ids[:2]:
            assert daemon_socket.request(cli.root, "wait", id=id)["status"] == ENDED
    assert len(pids(side)) == 1
