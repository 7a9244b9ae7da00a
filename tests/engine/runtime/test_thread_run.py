"""A thread's run on a disk store, with agents that are real commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.digest import TreeHash
from casfs.errors import Conflict
from casfs.store.graph import walk
from casfs.store.nodes import directory
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ENDED, RUNNING, SUSPENDED, Thread
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from engine.moderator.decision import Next
from engine.runtime.workspace import thread_workspace
from engine.threads import lifecycle, transitions
from engine.threads.agent_binding import Binding
from tests.support.engine import (
    ONE,
    STATUS,
    alive,
    begin,
    carry_on,
    fork,
    loop,
    pids,
    resumed,
    rule,
    says,
    shell,
    steps,
    workflow,
)

BLOCK = "printf '%s\\n' '```json' '{\"status\": \"done\"}' '```'"


@pytest.fixture
def side(tmp_path: Path) -> Path:
    """A file outside the workspace, where agents leave traces."""
    return tmp_path / "side"


@pytest.fixture
def project(disk_store: Store, tmp_path: Path) -> str:
    """The root of a small tree."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "log").write_text("start\n")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    with disk_store.batch() as batch:
        return walker.snapshot(batch, folder, IgnoreRules()).node.hash


def end_of(store: Store, thread: Thread) -> Any:
    found = threads.end(store, thread)
    assert found is not None
    return found.payload


def workspaces(store: Store) -> list[str]:
    return os.listdir(store.root / "workspaces")


def file(store: Store, root: str, name: bytes) -> bytes:
    entry = tree.resolve(store, root, name)
    assert isinstance(entry, directory.File)
    return store.get(entry.digest.hash)


def in_flight(store: Store, thread: Thread) -> bool:
    """Is an agent's process known to the head?"""
    intent = threads.get(store, thread.id).record["intent"]
    return intent is not None and intent["pid"] is not None


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # the test as a whole has a limit
        await trio.sleep(0.01)


# -- a chain ------------------------------------------------------------------------------


async def test_a_chain_from_start_to_end(disk_store: Store, project: str) -> None:
    agents = {"a": says({"status": "done"}, 'echo "$CASFS_STEP" >>log')}
    made = begin(disk_store, loop(13, STATUS), agents, project)
    ended = await carry_on(disk_store, made)
    assert (ended.status, end_of(disk_store, ended)["returnCode"]) == (ENDED, 0)
    assert threads.get(disk_store, made.id) == ended
    found = steps(disk_store, ended)
    hashes = [ref.hash for ref in threads.steps(disk_store, ended)]
    assert [step["index"] for step in found] == list(range(1, 14))
    assert [step["previous"] for step in found] == [None, *hashes[:-1]]
    for place, step in enumerate(found):
        assert step["ancestors"] == hashes[: max(0, place - 1)][::-1][:10]
        assert step["start"] == made.record["start"]
        assert step["startedAt"] <= step["completedAt"]
        assert (step["role"], step["meta"]) == ("a", {"status": "done"})
        assert (step["extraction"], step["attempts"]) == ("block", [])
    assert end_of(disk_store, ended)["lastStep"] == hashes[-1]


async def test_what_happened_to_the_workspace(disk_store: Store, project: str) -> None:
    change = 'echo "$CASFS_STEP" >>log; [ "$CASFS_STEP" = 1 ] || chmod -x run'
    ended = await carry_on(disk_store, begin(disk_store, loop(2), {"a": says({}, change)}, project))
    first, second = steps(disk_store, ended)
    assert file(disk_store, first["workspace"], b"log") == b"start\n1\n"
    assert file(disk_store, second["workspace"], b"log") == b"start\n1\n2\n"
    assert disk_store.get(first["changes"]) == (
        b"diff --git a/log b/log\n--- a/log\n+++ b/log\n@@ -1 +1,2 @@\n start\n+1\n"
    )
    assert disk_store.get(second["changes"]).endswith(
        b"diff --git a/run b/run\nold mode 100755\nnew mode 100644\n"
    )
    assert file(disk_store, project, b"log") == b"start\n"
    assert workspaces(disk_store) == []


async def test_a_step_that_changes_nothing_has_no_changes(disk_store: Store, project: str) -> None:
    ended = await carry_on(disk_store, begin(disk_store, ONE, {"a": says({})}, project))
    (step,) = steps(disk_store, ended)
    assert (step["workspace"], step["changes"]) == (project, None)


async def test_a_thread_without_a_workspace(disk_store: Store) -> None:
    ended = await carry_on(disk_store, begin(disk_store, ONE, {"a": says({})}))
    (step,) = steps(disk_store, ended)
    assert (step["workspace"], step["changes"]) == (None, None)


async def test_everything_is_reached_from_the_head(disk_store: Store, project: str) -> None:
    part = disk_store.put_node("content", {"text": "part", "artifacts": []}).hash
    blob = disk_store.put(b"reported").hash
    schema = {
        "name": "refs",
        "type": "object",
        "properties": {
            "part": {"type": "string", "format": "cas_ref", "cas_type": "content"},
            "more": {"type": "array", "items": {"type": "string", "format": "cas_ref"}},
        },
    }
    meta = {"part": part, "more": [blob, part]}
    agent = says(meta, "printf '\\377\\n'; echo >>log; echo >&2 err")
    flow = workflow(ONE["moderator"], a=schema)
    ended = await carry_on(disk_store, begin(disk_store, flow, {"a": agent}, project))
    (step,) = steps(disk_store, ended)
    content = disk_store.node(step["content"], "content").payload
    raw = content["artifacts"][-1]
    assert set(content["artifacts"]) == {part, blob, raw}
    assert disk_store.get(raw).startswith(b"\xff\n```json\n")
    assert content["text"].startswith("\ufffd")
    detail = disk_store.node(step["detail"], "command-detail").payload
    reached = set(walk(disk_store, [ended.hash]))
    assert {part, blob, raw, step["content"], step["detail"], step["agent"]} <= reached
    assert {step["workspace"], step["changes"], project, detail["stderr"]} <= reached
    assert {ended.record["start"], threads.start(disk_store, ended).payload["workflow"]} <= reached


async def test_later_roles_are_told_what_earlier_ones_said(disk_store: Store, side: Path) -> None:
    rules = [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")]
    agents = {"a": says({"word": "tulip"}, "echo I thought hard."), "b": says({}, f"cat >{side}")}
    await carry_on(disk_store, begin(disk_store, workflow(rules, a=None, b=None), agents))
    prompt = side.read_text()
    assert prompt.startswith("You are the b.\n\n# Task\n\nDo it.\n\n# What happened so far")
    assert "## Step 1: a\n\nI thought hard.\n```json" in prompt
    assert 'Recorded as:\n{\n  "word": "tulip"\n}' in prompt


async def test_an_ended_thread_is_left_alone(disk_store: Store, side: Path) -> None:
    ended = await carry_on(disk_store, begin(disk_store, ONE, {"a": says({}, f"echo >>{side}")}))
    assert await carry_on(disk_store, ended) == ended
    assert side.read_text() == "\n"


# -- other ends ---------------------------------------------------------------------------


async def test_max_rounds(disk_store: Store) -> None:
    made = begin(disk_store, loop(100), {"a": says({})}, max_steps=3)
    ends = transitions.update_record(disk_store, made, onLimit="end")
    ended = await carry_on(disk_store, ends)
    assert (ended.status, len(steps(disk_store, ended))) == (ENDED, 3)
    assert end_of(disk_store, ended)["returnCode"] == 2
    summary = end_of(disk_store, ended)["summary"]
    assert summary == "step limit (--max-steps) reached after 3 steps"


async def test_a_step_limit_suspends_and_is_granted_anew(disk_store: Store) -> None:
    suspended = await carry_on(disk_store, begin(disk_store, loop(8), {"a": says({})}, max_steps=3))
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, "rounds")
    assert suspended.record["reason"] == "step limit (--max-steps) reached after 3 steps"
    again = await resumed(disk_store, suspended)
    assert (again.record["cause"], len(steps(disk_store, again))) == ("rounds", 6)
    forked = await carry_on(disk_store, fork(disk_store, again, max_steps=7))
    assert (forked.record["cause"], len(steps(disk_store, forked))) == ("rounds", 7)
    ended = await resumed(disk_store, again)
    assert (ended.status, len(steps(disk_store, ended))) == (ENDED, 8)


async def test_no_rule(disk_store: Store) -> None:
    rules = [rule("__start__", "a"), rule("a", "__end__", "$steps[-1].meta.status = 'failed'")]
    made = begin(disk_store, workflow(rules, a=STATUS), {"a": says({"status": "done"})})
    ended = await carry_on(disk_store, made)
    assert (ended.status, end_of(disk_store, ended)["returnCode"]) == (ENDED, 1)
    assert end_of(disk_store, ended)["summary"] == "no rule matches after a"


async def test_a_rule_that_fails_suspends_and_is_named(disk_store: Store) -> None:
    rules = [
        rule("__start__", "a"),
        rule("a", "a", "$steps[0].meta.word + 1 > 2"),
        rule("a", "__end__"),
    ]
    made = begin(disk_store, workflow(rules, a=None), {"a": says({"word": "tulip"})})
    suspended = await carry_on(disk_store, made)
    assert (suspended.status, suspended.record["intent"]) == (SUSPENDED, None)
    assert suspended.record["reason"].startswith(
        "moderator rule 1 (a to a, when $steps[0].meta.word"
    )
    assert len(steps(disk_store, suspended)) == 1
    again = await resumed(disk_store, suspended)
    assert (again.status, again.record["reason"]) == (SUSPENDED, suspended.record["reason"])
    assert len(steps(disk_store, again)) == 1


# -- agents that fail ---------------------------------------------------------------------


async def test_a_failed_agent_suspends_and_can_be_resumed(disk_store: Store, side: Path) -> None:
    script = f"[ -e {side} ] || {{ echo no such luck >&2; exit 9; }}"
    made = begin(disk_store, loop(2), {"a": says({}, script)})
    suspended = await carry_on(disk_store, made)
    assert suspended.status == SUSPENDED
    assert suspended.record["reason"] == "a: sh exited with 9: no such luck"
    assert (suspended.record["intent"]["role"], suspended.record["intent"]["index"]) == ("a", 1)
    (detail,) = suspended.record["attempts"]
    assert disk_store.node(detail, "command-detail").payload["exitCode"] == 9
    assert await carry_on(disk_store, suspended) == suspended
    side.touch()
    ended = await resumed(disk_store, suspended)
    assert ended.status == ENDED
    assert [step["attempts"] for step in steps(disk_store, ended)] == [[detail], []]
    assert detail in set(walk(disk_store, [ended.hash]))


async def test_a_failed_try_leaves_nothing_in_the_workspace(
    disk_store: Store, project: str, side: Path
) -> None:
    agent = says({}, f"ls >>{side}.ls; echo >half; [ -e {side} ] || exit 1; rm half")
    suspended = await carry_on(disk_store, begin(disk_store, ONE, {"a": agent}, project))
    assert suspended.status == SUSPENDED
    side.touch()
    ended = await resumed(disk_store, suspended)
    assert Path(f"{side}.ls").read_text() == "log\nrun\n" * 2
    assert steps(disk_store, ended)[0]["workspace"] == project


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"argv": ["/no/such"]}, "a: cannot run /no/such: No such file or directory"),
        ({"argv": ["sleep", "600"], "timeoutS": 0.1}, "a: sleep took longer than 0.1 s"),
        ({"argv": ["a\0b"]}, "a: ValueError: embedded null byte"),
    ],
)
async def test_what_cannot_run_suspends(
    config: dict[str, Any], reason: str, disk_store: Store
) -> None:
    suspended = await carry_on(disk_store, begin(disk_store, ONE, {"a": config}))
    assert (suspended.status, suspended.record["reason"]) == (SUSPENDED, reason)


async def test_a_workspace_that_went_away_suspends_and_comes_back(
    disk_store: Store, project: str, side: Path
) -> None:
    agent = says({}, f'[ -e {side} ] || rm -r "$PWD"')
    suspended = await carry_on(disk_store, begin(disk_store, ONE, {"a": agent}, project))
    assert suspended.status == SUSPENDED
    assert "no directory" in suspended.record["reason"]
    side.touch()
    assert (await resumed(disk_store, suspended)).status == ENDED


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("raise LookupError('lost')", "a: LookupError: lost ({file}:6)"),
        ("raise SystemExit(3)", "a: SystemExit: 3 ({file}:6)"),
        (
            "return AgentResult('x' * ((64 << 20) + 1), Digest('0' * 64, 1))",
            "a: its output has more than 64 MiB",
        ),
        ("return 'done'", "a: TypeError: str is not an AgentResult with a text"),
        (
            "return AgentResult('```json\\n{}\\n```', Digest('0' * 64, 1))",
            f"refers to {'0' * 64}, which is not in this store; put it first",
        ),
    ],
)
async def test_an_agent_from_elsewhere_may_do_anything(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, reason: str
) -> None:
    info = tmp_path / "strange-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[casfs.agents]\nstrange = run_strange\n")
    (tmp_path / "run_strange.py").write_text(
        "from casfs.digest import Digest\n"
        "from casfs.agents import AgentResult\n"
        "package_descriptor = {}\n"
        "def create_agent(config):\n"
        "    async def agent(context):\n"
        f"        {does}\n"
        "    return agent\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "run_strange", raising=False)
    hash = threads.start(disk_store, begin(disk_store, ONE, {"a": says({})})).payload["workflow"]
    request = lifecycle.ThreadRequest(hash, "Do it.", {"a": Binding("strange")})
    suspended = await carry_on(disk_store, lifecycle.create(disk_store, request))
    reason = reason.replace("{file}", str(tmp_path / "run_strange.py"))
    assert (suspended.status, suspended.record["reason"]) == (SUSPENDED, reason)


# -- output that does not fit -------------------------------------------------------------


async def test_unusable_output_is_corrected_twice_then_suspends(
    disk_store: Store, side: Path
) -> None:
    script = f"cat >{side}.$$; ls {side}.* | wc -l >{side}; echo try $(cat {side})"
    made = begin(disk_store, workflow(ONE["moderator"], a=STATUS), {"a": shell(script)})
    suspended = await carry_on(disk_store, made)
    assert suspended.status == SUSPENDED
    assert suspended.record["reason"] == (
        "a: no usable output after 2 corrections: it has no fenced JSON block and no front matter"
    )
    details = [disk_store.node(hash).payload for hash in suspended.record["attempts"]]
    said = [disk_store.get(detail["stdout"]) for detail in details]
    assert said == [b"try 1\n", b"try 2\n", b"try 3\n"]
    prompts = sorted(path.read_text().count("# Correction") for path in side.parent.glob("side.*"))
    assert prompts == [0, 1, 1]


async def test_a_correction_that_fits(disk_store: Store, side: Path) -> None:
    script = f'if [ -e {side} ]; then {BLOCK}; else echo >{side}; echo "hm"; fi'
    made = begin(disk_store, workflow(ONE["moderator"], a=STATUS), {"a": shell(script)})
    ended = await carry_on(disk_store, made)
    (step,) = steps(disk_store, ended)
    assert (step["extraction"], step["meta"]) == ("correction", {"status": "done"})
    (attempt,) = step["attempts"]
    assert disk_store.get(disk_store.node(attempt).payload["stdout"]) == b"hm\n"


async def test_resuming_after_corrections_keeps_every_try(disk_store: Store, side: Path) -> None:
    script = f"if [ -e {side} ]; then {BLOCK}; else date +%N; fi"
    made = begin(disk_store, workflow(ONE["moderator"], a=STATUS), {"a": shell(script)})
    suspended = await carry_on(disk_store, made)
    side.touch()
    (step,) = steps(disk_store, await resumed(disk_store, suspended))
    assert (step["attempts"], step["extraction"]) == (suspended.record["attempts"], "block")
    assert len(step["attempts"]) == 3


# -- what a crash leaves ------------------------------------------------------------------


async def test_a_broken_off_step_is_run_again_from_the_tree_before_it(
    disk_store: Store, project: str, side: Path
) -> None:
    """As if the daemon had been killed while the agent of step 1 was at work."""
    agents = {"a": says({}, f"cat log >>{side}; echo more >>log")}
    made = begin(disk_store, ONE, agents, project)
    broken = transitions.begin(disk_store, made, Next("a"), 0, 100, 1)
    half = thread_workspace(disk_store, made)
    half.reset(RecordedState(TreeHash(project)))
    (half.path / "log").write_text("half written")
    (half.path / "junk").touch()
    log: list[dict[str, Any]] = []
    orphan = await trio.lowlevel.open_process(
        ["sleep", "600"], env={**os.environ, "CASFS_RUN": broken.record["intent"]["run"]}
    )
    try:
        ended = await carry_on(
            disk_store, broken, log=lambda event, **more: log.append({"event": event, **more})
        )
        await orphan.wait()
    finally:
        orphan.kill()
    assert orphan.returncode == -9
    assert side.read_text() == "start\n"
    (step,) = steps(disk_store, ended)
    assert file(disk_store, step["workspace"], b"log") == b"start\nmore\n"
    assert {entry.name for entry in tree.load(disk_store, step["workspace"]).values()} == {
        b"log",
        b"run",
    }
    assert [line["attempt"] for line in log if line["event"] == "step"] == [2]
    (trace,) = step["attempts"]
    trace_text = disk_store.node(trace, "content").payload["text"]
    assert trace_text == "attempt 1 of a was interrupted"


async def test_the_intent_names_the_process_while_it_runs(disk_store: Store, side: Path) -> None:
    agent = says({}, f"echo $$ >{side}; while [ ! -e {side}.go ]; do sleep 0.01; done")
    made = begin(disk_store, ONE, {"a": agent})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry_on, disk_store, made)
        await until(lambda: in_flight(disk_store, made))
        now = threads.get(disk_store, made.id)
        assert (now.status, now.hash) == (RUNNING, made.hash)
        intent = now.record["intent"]
        await until(lambda: pids(side))
        assert (intent["pid"], intent["attempt"]) == (pids(side)[0], 1)
        assert intent["pidStart"] > 0
        Path(f"{side}.go").touch()
    assert threads.get(disk_store, made.id).status == ENDED


async def test_a_head_moved_by_somebody_else_ends_the_run(disk_store: Store, side: Path) -> None:
    agent = says({}, f"echo $$ >{side}; while [ ! -e {side}.go ]; do sleep 0.01; done")
    made = begin(disk_store, loop(5), {"a": agent})
    raised: list[Conflict] = []

    async def running() -> None:
        try:
            await carry_on(disk_store, made)
        except Conflict as error:
            raised.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(running)
        await until(lambda: in_flight(disk_store, made))
        moved = transitions.cancel(disk_store, threads.get(disk_store, made.id))
        Path(f"{side}.go").touch()
    assert len(raised) == 1
    assert threads.get(disk_store, made.id) == moved
    assert steps(disk_store, moved) == []


async def test_a_cancelled_run_can_be_carried_on(
    disk_store: Store, project: str, side: Path
) -> None:
    """As when the daemon is told to end while an agent works."""
    script = f"echo $$ >>{side}; echo x >>log; [ -e {side}.go ] || sleep 600"
    made = begin(disk_store, ONE, {"a": says({}, script)}, project)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry_on, disk_store, made)
        await until(lambda: pids(side))
        nursery.cancel_scope.cancel()
    assert not alive(pids(side)[0])
    now = threads.get(disk_store, made.id)
    assert (now.status, now.record["intent"]["attempt"]) == (RUNNING, 1)
    Path(f"{side}.go").touch()
    ended = await carry_on(disk_store, made)
    (step,) = steps(disk_store, ended)
    assert file(disk_store, step["workspace"], b"log") == b"start\nx\n"


async def test_metas_may_hold_any_json(disk_store: Store) -> None:
    meta = {"ünïcode": [None, True, 1.5, {"deep": [[]]}], "status": ["odd"]}
    ended = await carry_on(disk_store, begin(disk_store, ONE, {"a": says(meta)}))
    assert json.dumps(steps(disk_store, ended)[0]["meta"]) == json.dumps(dict(sorted(meta.items())))
