"""The history of a thread: prompt context, summaries, replays, graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.agents.prompt import EarlierStep
from casfs.errors import Conflict, NotFound
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from casfs.threads.workflow_path import END
from engine.runtime import compaction
from engine.threads import graph, history, lifecycle, transitions
from engine.threads.agent_binding import Binding
from engine.threads.history import EarlierSteps
from engine.threads.lifecycle import CompactPolicy, ThreadRequest
from engine.threads.reroute import compare_routes
from engine.workflow import registry as workflows
from tests.support.engine import (
    ONE,
    STATUS,
    Cli,
    begin,
    carry_on,
    fork,
    loop,
    resumed,
    rule,
    says,
    steps,
    workflow,
)

FLOW = workflow(
    [
        rule("__start__", "a"),
        rule("a", "b", "$last('a').meta.status = 'done'"),
        rule("a", "__end__"),
        rule("b", "__end__"),
    ],
    "flow",
    a=STATUS,
    b=None,
)
WORDS = {"a": says({"status": "done"}, "echo I am a."), "b": says({}, "echo I am b.")}


class Counting:
    """A store that counts the nodes that are read."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = store.node

        def node(*arguments: Any) -> Any:
            self.count += 1
            return read(*arguments)

        monkeypatch.setattr(store, "node", node)


async def long(store: Store, length: int = 40) -> Thread:
    return await carry_on(store, begin(store, loop(length), {"a": says({})}))


async def test_the_last_steps_cost_no_more_than_they_are(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await long(disk_store)
    counting = Counting(disk_store, monkeypatch)
    found = threads.last_steps(disk_store, thread, 3)
    assert [node.payload["index"] for node in found] == [38, 39, 40]
    assert counting.count <= 5
    assert len(threads.last_steps(disk_store, thread, None)) == 40
    assert len(threads.last_steps(disk_store, thread, None, 38)) == 2


async def test_a_step_is_found_by_its_index(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await long(disk_store)
    counting = Counting(disk_store, monkeypatch)
    assert threads.step_at(disk_store, thread, 1).payload["index"] == 1
    assert counting.count <= 2 + 40 // 11 + 1
    for index in range(1, 41):
        assert threads.step_at(disk_store, thread, index).payload["index"] == index
    for index in (0, 41):
        with pytest.raises(NotFound):
            threads.step_at(disk_store, thread, index)


async def test_a_fork_by_hash_reads_that_step_alone(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await long(disk_store)
    other = await carry_on(disk_store, begin(disk_store, ONE, {"a": says({"x": 1})}))
    step = threads.step_at(disk_store, thread, 2).hash
    counting = Counting(disk_store, monkeypatch)
    made = fork(disk_store, thread, step)
    assert (made.hash, made.record["fork"]["step"]) == (step, 2)
    assert counting.count <= 3
    with pytest.raises(NotFound, match="not a step of thread"):
        fork(disk_store, other, step)


# -- summaries ----------------------------------------------------------------------------


async def test_a_summary_stands_for_what_was_before(disk_store: Store, tmp_path: Path) -> None:
    seen, luck = tmp_path / "seen", tmp_path / "luck"
    second = says({}, f"cat >{seen}; [ -e {luck} ] || exit 1")
    suspended = await carry_on(disk_store, begin(disk_store, FLOW, {**WORDS, "b": second}))
    assert (suspended.status, "I am a." in seen.read_text()) == (SUSPENDED, True)
    made = compaction.put_summary(disk_store, "a has spoken.")
    suspended = transitions.compact(disk_store, suspended, made.content, suspended.hash)
    assert history.prompt_history(disk_store, suspended).summary == "a has spoken."
    luck.touch()
    ended = await resumed(disk_store, suspended)
    prompt = seen.read_text()
    assert "## Summary\n\na has spoken." in prompt
    assert "I am a." not in prompt
    assert [step["compact"] for step in steps(disk_store, ended)] == [None, made.content]
    past = history.prompt_history(disk_store, ended)
    assert (past.summary, [turn.role for turn in past.steps]) == ("a has spoken.", ["b"])
    with pytest.raises(Conflict, match="no step comes after it"):
        transitions.compact(disk_store, ended, made.content, ended.hash)


async def test_a_long_past_is_summarised_by_itself(disk_store: Store) -> None:
    hash, _ = workflows.add(disk_store, loop(6))
    writer = Binding("command", says({"summary": "all of it"}))
    agents = {"a": Binding("command", says({}, "head -c 400 /dev/zero | tr '\\0' x; echo"))}
    request = ThreadRequest(hash, "Do it.", agents, compact=CompactPolicy(200, writer))
    ended = await carry_on(disk_store, lifecycle.create(disk_store, request))
    assert ended.status == ENDED
    found = [step["compact"] is not None for step in steps(disk_store, ended)]
    assert found == [False, False, True, False, True, False]
    kept = disk_store.node(steps(disk_store, ended)[4]["compact"], "content").payload
    assert kept["text"] == "all of it"
    assert disk_store.node(kept["artifacts"][0]).type == "command-detail"


async def test_a_summariser_is_told_no_secret(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "Do it, now.")
    seen = tmp_path / "seen"
    hash, _ = workflows.add(disk_store, loop(3))
    config = {**says({"summary": "all of it"}, f"cat >{seen}"), "secrets": ["KEY"]}
    request = ThreadRequest(
        hash,
        "Do it, now.",
        {"a": Binding("command", says({}))},
        compact=CompactPolicy(1, Binding("command", config)),
    )
    ended = await carry_on(disk_store, lifecycle.create(disk_store, request))
    assert ended.status == ENDED
    assert "# Task\n\n$KEY" in seen.read_text()


# -- replay -------------------------------------------------------------------------------


async def test_a_replay_by_the_same_workflow_differs_nowhere(disk_store: Store) -> None:
    ended = await carry_on(disk_store, begin(disk_store, FLOW, WORDS))
    rows = await compare_routes(disk_store, ended)
    assert [(row.role, row.recorded, row.now) for row in rows] == [
        ("__start__", "a", "a"),
        ("a", "b", "b"),
        ("b", END, END),
    ]
    assert not any(row.differs for row in rows)


async def test_a_replay_shows_where_another_workflow_goes_elsewhere(disk_store: Store) -> None:
    ended = await carry_on(disk_store, begin(disk_store, FLOW, WORDS))
    strict = {"name": "strict", "type": "object", "required": ["more"]}
    rules = [rule("__start__", "a"), rule("a", "__end__"), rule("b", "a"), rule("a", "b")]
    other, _ = workflows.add(disk_store, workflow(rules, "other", a=STATUS, b=strict))
    rows = await compare_routes(disk_store, ended, other)
    assert [row.differs for row in rows] == [False, True, True]
    assert (rows[1].recorded, rows[1].now) == ("b", END)
    assert rows[2].fault is not None
    assert "does not fit any more" in rows[2].fault


async def test_the_replay_agent_says_what_was_said(disk_store: Store) -> None:
    ended = await carry_on(disk_store, begin(disk_store, FLOW, WORDS))
    flow = threads.start(disk_store, ended).payload["workflow"]
    again = Binding("replay", {"thread": ended.id})
    made = lifecycle.create(disk_store, ThreadRequest(flow, "Do it.", {"a": again, "b": again}))
    copy = await carry_on(disk_store, made)
    assert copy.status == ENDED
    for key in ("content", "detail", "meta"):
        assert [step[key] for step in steps(disk_store, copy)] == [
            step[key] for step in steps(disk_store, ended)
        ]
    short = lifecycle.create(
        disk_store,
        ThreadRequest(workflows.add(disk_store, loop(2, STATUS))[0], "x", {"a": again}),
    )
    suspended = await carry_on(disk_store, short)
    assert "has 1 steps of a" in suspended.record["reason"]


# -- graph --------------------------------------------------------------------------------


async def test_the_graph_shows_the_path(disk_store: Store) -> None:
    hash, _ = workflows.add(disk_store, FLOW)
    flow = workflows.load(disk_store, hash)
    text = graph.mermaid(flow, ["a", "b"], True)
    assert text.startswith("flowchart TD\n")
    assert '    r0["a ×1"]' in text
    assert "    start_ ==> r0" in text
    assert "    r1 ==> end_" in text
    assert "r0 ==>|\"$last('a').meta.status = 'done'\"| r1" in text
    assert "    r0 --> end_" in text
    assert "class r0 running" in graph.mermaid(flow, [], False, "a")


async def test_the_outline_shows_the_path(cli: Cli, disk_store: Store) -> None:
    hash, _ = workflows.add(disk_store, FLOW)
    flow = workflows.load(disk_store, hash)
    assert graph.outline(flow, ["a", "b"], True).splitlines()[:4] == [
        "start",
        "  ==> a",
        "a ×1",
        "  ==> b  when $last('a').meta.status = 'done'",
    ]
    assert "a  (running)\n" in graph.outline(flow, [], False, "a")
    made = begin(disk_store, ONE, {"a": says({})})
    shown = cli("thread", "graph", made.id, "--outline").text
    assert shown == "start\n  --> a\na\n  --> end\n"


# -- the command line ---------------------------------------------------------------------


def test_the_command_line_shows_the_past(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    made = begin(disk_store, FLOW, WORDS)
    ended = trio.run(carry_on, disk_store, made)
    cli = Cli(disk_store.root, monkeypatch, capfdbinary)
    printed = cli("thread", "context", ended.id)
    assert printed.text.startswith("# Task\n\nDo it.\n\n## Step 1: a\n\nI am a.")
    drawn = cli("thread", "graph", ended.id, "--json").json
    assert (drawn["path"], drawn["mermaid"].split()[0]) == (["a", "b"], "flowchart")
    table = cli("thread", "replay", ended.id)
    assert table.text.endswith("0 of 3 decisions differ\n")
    assert cli("thread", "rm", ended.id).word == ended.id
    cli("thread", "show", ended.id, code=3)


def test_turns_are_shared_and_stay_what_they_were() -> None:
    one, two, three = (EarlierStep(index, "a", str(index), {}) for index in (1, 2, 3))
    first = EarlierSteps([one])
    second, other = first.then(two), first.then(three)
    assert (list(first), list(second), list(other)) == ([one], [one, two], [one, three])
    assert (first[-1], second[-1], second[:1], len(second)) == (one, two, [one], 2)
    with pytest.raises(IndexError):
        first[1]
