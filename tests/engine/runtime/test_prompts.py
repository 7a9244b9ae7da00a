"""The prompt of a step, read later byte for byte, though no step stores it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs import canonical
from casfs.store.store import Store
from casfs.threads import prompts, threads
from casfs.threads.prompts import DIFFERS, UNRECORDED
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from engine import content
from engine.threads import lifecycle, suspension, transitions
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.engine import (
    STATUS,
    Cli,
    begin,
    carry_on,
    fork,
    loop,
    rule,
    says,
    shell,
    steps,
    workflow,
)


@pytest.fixture
def got(tmp_path: Path) -> Path:
    """Where the agents put what they got on stdin."""
    (tmp_path / "got").mkdir()
    return tmp_path / "got"


def reads(got: Path, meta: Any = None, more: str = "true") -> dict[str, Any]:
    """An agent that keeps its stdin in `got`, as ROLE-STEP."""
    return says(meta or {}, f"cat >{got}/$CASFS_ROLE-$CASFS_STEP; {more}")


def check(store: Store, thread: Thread, got: Path, first: int = 1) -> list[str]:
    """Every prompt from step `first` on is what the agent got; returns all of them."""
    found = threads.last_steps(store, thread, None, first - 1)
    rebuilt = [prompts.of_step(store, thread, node) for node in found]
    for node, prompt in zip(found, rebuilt, strict=True):
        name = f"{node.payload['role']}-{node.payload['index']}"
        data = (got / name).read_bytes()
        assert (prompt.fault, prompt.text.encode()) == (None, data), name
        assert node.payload["prompt"]["size"] == len(data)
    return [prompt.text for prompt in rebuilt]


TWO = workflow(
    [
        rule("__start__", "a"),
        rule("a", "b"),
        rule("b", "a", "$count($steps) < 6"),
        rule("b", "__end__"),
    ],
    a=None,
    b=None,
)


async def test_every_prompt_is_read_again(disk_store: Store, got: Path) -> None:
    """Also the history in it, whose meta has an order and numbers that canonical JSON changes."""
    meta = {"z": 1.0, "a": {"ü": [1e21, 2]}, "B": None}
    thread = begin(disk_store, TWO, {"a": reads(got, meta), "b": reads(got)})
    ended = await carry_on(disk_store, thread)
    assert ended.status == ENDED
    texts = check(disk_store, ended, got)
    assert len(texts) == 6
    assert [text.count("## Step") for text in texts] == list(range(6))


async def test_a_restarted_daemon_gives_the_same_prompt(disk_store: Store, got: Path) -> None:
    meta = {"z": 1.0, "a": 1}
    script = f"cat >{got}/a-$CASFS_STEP; [ $CASFS_STEP = 1 ] || [ -e {got}/go ] || exit 1"
    thread = begin(disk_store, loop(3), {"a": says(meta, script)})
    failed = await carry_on(disk_store, thread)
    assert failed.status == SUSPENDED
    live = (got / "a-2").read_text()
    pending = prompts.of_pending_step(disk_store, failed)
    assert pending is not None
    assert pending.text == live
    (got / "go").touch()
    ended = await carry_on(disk_store, suspension.resume(disk_store, failed, hint="Try `x`."))
    assert live.split("# What to report")[0] in (got / "a-2").read_text()
    assert "# Hint\n\nTry `x`." in check(disk_store, ended, got)[1]


async def test_a_correction_and_an_answer_are_in_it(disk_store: Store, got: Path) -> None:
    asks = (
        f'cat >{got}/a-$CASFS_STEP; [ -n "$CASFS_ANSWER" ] || {{ echo Which?; exit 75; }};'
        """ printf '```json\\n{"status": "done"}\\n```'"""
    )
    wrong = (
        f"cat >{got}/b-$CASFS_STEP; grep -q '^# Correction' {got}/b-$CASFS_STEP || exit 0;"
        """ printf '```json\\n{"status": "done"}\\n```'"""
    )
    flow = workflow([*TWO["moderator"][:2], rule("b", "__end__")], a=STATUS, b=STATUS)
    thread = begin(disk_store, flow, {"a": shell(asks), "b": shell(wrong)})
    asked = await carry_on(disk_store, thread)
    assert asked.record["cause"] == "human"
    ended = await carry_on(disk_store, suspension.resume(disk_store, asked, answer="the blue one"))
    one, two = check(disk_store, ended, got)
    assert one.endswith("# Answer to your question\n\nthe blue one\n")
    assert "# Correction\n\nYour last output was not usable: " in two
    assert steps(disk_store, ended)[1]["extraction"] == "correction"


async def test_a_summary_stands_for_the_steps_before(disk_store: Store, got: Path) -> None:
    flow, _ = workflows.add(disk_store, loop(4))
    bound = {"a": Binding("command", reads(got))}
    thread = lifecycle.create(disk_store, ThreadRequest(flow, "x", bound, max_steps=2))
    limited = await carry_on(disk_store, thread)
    assert limited.record["cause"] == "rounds"
    summary = content.put(disk_store, "All is well.")
    transitions.compact(disk_store, limited, summary, limited.hash)
    limited = threads.get(disk_store, limited.id)
    ended = await carry_on(disk_store, suspension.resume(disk_store, limited))
    texts = check(disk_store, ended, got)
    assert [text.count("All is well.") for text in texts] == [0, 0, 1, 1]
    assert [text.count("## Step") for text in texts] == [0, 1, 0, 1]


async def test_a_fork_under_another_workflow(disk_store: Store, got: Path) -> None:
    """The steps that it shares had the prompts of the first one."""
    old = await carry_on(disk_store, begin(disk_store, loop(2), {"a": reads(got)}))
    changed = loop(4)
    changed["roles"]["a"]["systemPrompt"] = "You are someone else."
    new, _ = workflows.add(disk_store, changed)
    ended = await carry_on(disk_store, fork(disk_store, old, 1, workflow=new))
    texts = check(disk_store, ended, got, 2)
    assert all(text.startswith("You are someone else.") for text in texts)
    first = threads.step_at(disk_store, ended, 1)
    assert prompts.of_step(disk_store, ended, first).text == (got / "a-1").read_text()


async def test_a_called_thread_is_told_who_asks(disk_store: Store, got: Path) -> None:
    workflows.add(disk_store, {**loop(1), "name": "inner"})
    config = {"workflow": "inner", "agents": {"a": {"name": "command", "config": reads(got)}}}
    outer, _ = workflows.add(disk_store, loop(1))
    bound = {"a": Binding("workflow", config)}
    caller = await carry_on(
        disk_store, lifecycle.create(disk_store, ThreadRequest(outer, "x", bound))
    )
    assert caller.status == ENDED
    (child,) = [one for one in threads.list_threads(disk_store) if one.id != caller.id]
    (text,) = check(disk_store, child, got)
    assert f"This thread was called by thread {caller.id}" in text


async def test_a_text_that_is_not_proved_says_so(disk_store: Store, got: Path) -> None:
    ended = await carry_on(disk_store, begin(disk_store, loop(1), {"a": reads(got)}))
    (node,) = threads.last_steps(disk_store, ended, None)
    bare = {key: value for key, value in node.payload.items() if key != "prompt"}
    damaged = {**bare, "prompt": {**node.payload["prompt"], "hash": "0" * 64}}
    for payload, fault in ((damaged, DIFFERS), (bare, UNRECORDED)):
        other = disk_store.node(disk_store.put_node("thread-step", payload).hash)
        found = prompts.of_step(disk_store, ended, other)
        assert found.fault == fault
        assert found.marked().startswith(f"[casfs: this prompt is {fault}]\n\nYou are the a.")


async def test_a_step_has_no_more_bytes_however_long_the_thread(disk_store: Store) -> None:
    ended = await carry_on(disk_store, begin(disk_store, loop(40), {"a": says({})}))
    sizes = []
    for step in steps(disk_store, ended):
        bare = {key: value for key, value in step.items() if key != "prompt"}
        sizes.append(len(canonical.encode(step)) - len(canonical.encode(bare)))
    assert max(sizes) <= 100
    assert sizes[-1] - sizes[12] <= 2, "digits of its length"


async def test_a_store_of_an_older_casfs_goes_on(disk_store: Store, got: Path) -> None:
    """Its type of steps has no such field until `casfs init`."""
    document = json.loads(
        json.dumps(disk_store.registry.document(disk_store.registry.current("thread-step")))
    )
    del document["properties"]["prompt"]
    with disk_store.batch() as batch:
        batch.put_schema(document, builtin=True)
    with Store.open(disk_store.root) as old:
        ended = await carry_on(old, begin(old, loop(2), {"a": reads(got)}))
        assert ended.status == ENDED
        found = prompts.of_step(old, ended, threads.step_at(old, ended, 2))
        assert (found.fault, found.text) == (UNRECORDED, (got / "a-2").read_text())


def test_the_command_line(cli: Cli, got: Path) -> None:
    with Store.open(cli.root) as store:
        fails = "[ $CASFS_STEP = 1 ] || exit 1"
        made = trio.run(carry_on, store, begin(store, loop(2), {"a": reads(got, None, fails)}))
    assert cli("thread", "prompt", f"{made.id}@1").text == (got / "a-1").read_text()
    assert cli("thread", "prompt", made.id).text == (got / "a-2").read_text()
    value = cli("thread", "prompt", f"{made.id[-8:]}@1", "--json").json
    assert (value["step"], value["fault"]) == (1, None)
    assert "has no step 2" in cli("thread", "prompt", f"{made.id}@2", code=3).err
