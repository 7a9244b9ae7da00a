"""A caller's meta that an expression makes from the thread that it called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import CasfsError, Invalid
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from casfs.trees.recorded_state import RecordedState
from engine.threads import lifecycle, suspension
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.engine import Cli, carry_on, rule, says, steps, workflow
from tests.support.helpers import put_tree

FACTS = {
    "name": "facts",
    "type": "object",
    "properties": {
        "word": {"type": "string"},
        "files": {"type": "array"},
        "n": {"type": "integer"},
    },
    "required": ["word"],
    "additionalProperties": False,
    "default": {"word": "not reported"},
}
SAID = {"name": "said", "type": "object", "properties": {"word": {"type": "string"}}}
INNER = workflow(
    [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")], "inner", a=SAID, b=SAID
)
OUTER = workflow([rule("__start__", "c"), rule("c", "__end__")], "outer", c=FACTS)


def calling(side: Path, meta: str | None, name: str = "inner", **more: Any) -> Binding:
    """A call of INNER, whose agents note each of their runs in `side`."""
    note = f"echo $CASFS_ROLE >>{side}"
    agents = {
        "a": {"name": "command", "config": says({"word": "first"}, f"{note}; echo 1 >one")},
        "b": {"name": "command", "config": says({"word": "last"}, f"{note}; echo 2 >two")},
    }
    call = {"workflow": name, "agents": agents, "input": "Do it."}
    return Binding("workflow", {**call, **({} if meta is None else {"meta": meta}), **more})


def start(store: Store, agent: Binding, retries: int = 0) -> Thread:
    workflows.add(store, INNER)
    policy = {"policy": {"retries": retries}} if retries else {}
    roles = {"c": {**OUTER["roles"]["c"], **policy}}
    hash, _ = workflows.add(store, {**OUTER, "roles": roles})
    tree = put_tree(store, {"one": b"", "other": b""})
    return lifecycle.create(store, ThreadRequest(hash, "x", {"c": agent}, RecordedState(tree)))


def runs(side: Path) -> list[str]:
    return side.read_text().split() if side.exists() else []


@pytest.fixture
def side(tmp_path: Path) -> Path:
    return tmp_path / "side"


MADE = """{
    "word": $first('a').meta.word & '-' & end.meta.word & '-' & end.summary,
    "files": filesChanged,
    "n": $count(steps) + end.returnCode + $count(calls) + $length($trim($split(end.output, '`')[0]))
}"""


async def test_an_expression_makes_the_meta(disk_store: Store, side: Path) -> None:
    ended = await carry_on(disk_store, start(disk_store, calling(side, MADE)))
    assert ended.status == ENDED, ended.record["reason"]
    (step,) = steps(disk_store, ended)
    assert step["meta"] == {"word": "first-last-ended after b", "files": ["one", "two"], "n": 3}
    assert step["extraction"] == "block"
    assert runs(side) == ["a", "b"]


async def test_a_return_code_and_several_calls(disk_store: Store, side: Path) -> None:
    """The second call ends without a rule that matches; the third is not made."""
    stops = workflow([rule("__start__", "a"), rule("a", "__end__", "false")], "stops", a=SAID)
    workflows.add(disk_store, stops)
    calls = [calling(side, None).config, calling(side, None, "stops").config]
    del calls[1]["agents"]["b"]
    meta = """{"word": $join(calls.(meta.word & returnCode), ' '), "n": end.returnCode}"""
    agent = Binding("workflow", {"calls": [*calls, calls[0]], "meta": meta})
    ended = await carry_on(disk_store, start(disk_store, agent))
    assert ended.status == ENDED, ended.record["reason"]
    assert steps(disk_store, ended)[0]["meta"] == {"word": "last0 first1", "n": 1}
    assert runs(side) == ["a", "b", "a"]


FAULTS = [
    ("{'word': $number(end.output)}", "config.meta: evaluation failed"),
    ("{'word': 3}", "config.meta: its value does not fit: $.word: "),
    ("{'word': $last('a').meta.word, 'more': 1}", "config.meta: its value does not fit: $: "),
    ("'done'", "config.meta: its value does not fit: $: must be an object"),
    ("end.output[3]", "config.meta: its value does not fit: $: must be an object"),
    ("($f := function($x) { $f($x + 1) }; $f(0))", "config.meta: stopped after 1 s"),
    ("{'word': $pad('x', 1100000)}", "config.meta: its value has more than 1 MiB"),
]


@pytest.mark.parametrize(("meta", "fault"), FAULTS)
async def test_a_fault_fails_the_attempt_alone(
    meta: str, fault: str, disk_store: Store, side: Path
) -> None:
    """Neither a correction nor a retry runs the finished child again."""
    suspended = await carry_on(disk_store, start(disk_store, calling(side, meta), retries=1))
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, "failure")
    assert suspended.record["reason"].startswith(f"c: {fault}")
    assert runs(side) == ["a", "b"]
    assert len(suspended.record["attempts"]) == 2


async def test_a_mended_expression_reads_the_finished_child(disk_store: Store, side: Path) -> None:
    suspended = await carry_on(disk_store, start(disk_store, calling(side, "{'word': 1}")))
    mended = calling(side, "{'word': $last('b').meta.word}")
    again = suspension.resume(disk_store, suspended, agents={"c": mended})
    ended = await carry_on(disk_store, again)
    assert ended.status == ENDED, ended.record["reason"]
    assert steps(disk_store, ended)[0]["meta"] == {"word": "last"}
    assert runs(side) == ["a", "b"]
    (child,) = [one for one in threads.list_threads(disk_store) if one.record["parent"]]
    assert steps(disk_store, ended)[0]["childThreads"] == [child.hash]


async def test_resume_alone_runs_the_step_again(disk_store: Store, side: Path) -> None:
    suspended = await carry_on(disk_store, start(disk_store, calling(side, "{'word': 1}")))
    again = await carry_on(disk_store, suspension.resume(disk_store, suspended))
    assert again.status == SUSPENDED
    assert runs(side) == ["a", "b"] * 2


AT_START = [
    ("{'word': ", "does not parse at position"),
    ("{'word': $now()}", "$now is refused"),
    ("{'word': $lst('a')}", "$lst is not bound"),
    ("{'word': outpt}", "unknown name 'outpt'; there are calls, end, filesChanged"),
    ("{'word': $last('c').meta.word}", "no role is named 'c'; there are a, b"),
    ("{'word': $last('a').mta.word}", "a step has no field 'mta'"),
]


@pytest.mark.parametrize(("meta", "fault"), AT_START)
def test_it_is_checked_when_the_thread_starts(
    meta: str, fault: str, disk_store: Store, side: Path
) -> None:
    with pytest.raises(Invalid) as found:
        start(disk_store, calling(side, meta))
    assert fault in str(found.value)
    assert str(found.value).startswith("--agent c: config")
    assert threads.list_threads(disk_store) == []


def test_an_unknown_name_in_the_agent_of_a_called_thread(disk_store: Store, side: Path) -> None:
    workflows.add(disk_store, INNER)
    workflows.add(disk_store, {**OUTER, "name": "middle"})
    below = {"name": "workflow", "config": dict(calling(side, "{'word': $last('z')}").config)}
    agent = Binding("workflow", {"workflow": "middle", "agents": {"c": below}})
    with pytest.raises(CasfsError, match="no role is named 'z'; there are a, b"):
        start(disk_store, agent)


def test_a_default_agent_is_checked_when_the_workflow_is_added(
    disk_store: Store, side: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    cli = Cli(disk_store.root, monkeypatch, capfdbinary)
    config = calling(side, "{'word': $random()}").config
    roles = {"c": {**OUTER["roles"]["c"], "agent": {"package": "workflow", "config": config}}}
    data = json.dumps({**OUTER, "roles": roles}).encode()
    error = cli.refused("workflow", "add", "-", stdin=data, code=4)
    assert "$.roles.c.agent: config.meta: $random is refused" in error
