"""The moves of a thread's head: what each one records, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casfs import canonical
from casfs.backend.derived import version_of
from casfs.backend.protocols import MAX_RECORD_BYTES, Head
from casfs.errors import Conflict, Invalid, NotFound, Refused
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import CANCELLED, ENDED, RUNNING, SUSPENDED, Thread
from casfs.trees.recorded_state import RecordedState
from engine.moderator.decision import Decision, End, Next, RuleFailed
from engine.threads import lifecycle, suspension, transitions
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.threads.suspension import Suspension
from engine.workflow import registry as workflows
from tests.support.engine import ONE, STATUS, begin, rule, says, workflow

COMMAND = Binding("command", {"argv": ["true"]})
TWO = workflow([rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")], a=None, b=None)


@pytest.fixture
def thread(store: Store) -> Thread:
    return begin(store, ONE, {"a": says({})})


def contents(store: Store) -> tuple[int, list[tuple[str, Head]]]:
    return sum(1 for _ in store.blobs.iterate()), list(store.heads.list())


def end_of(store: Store, thread: Thread) -> Any:
    found = threads.end(store, thread)
    assert found is not None
    return found.payload


def commit_step(
    store: Store, thread: Thread, payload: dict[str, Any], decision: Decision, rounds: int
) -> Thread:
    with store.batch() as batch:
        return transitions.finish_step(batch, thread, payload, decision, rounds)


def put_step(store: Store, thread: Thread, **changes: Any) -> dict[str, Any]:
    """The payload of a first step."""
    content = store.put_node("content", {"text": "t", "artifacts": []}).hash
    return {
        "index": 1,
        "role": "a",
        "meta": {},
        "content": content,
        "detail": content,
        "agent": threads.start(store, thread).payload["agents"]["a"],
        "start": thread.record["start"],
        "previous": None,
        "ancestors": [],
        "compact": None,
        "childThreads": [],
        "attempts": [],
        "extraction": "block",
        "workspace": None,
        "changes": None,
        "startedAt": 1,
        "completedAt": 2,
        **changes,
    }


def test_a_new_thread_stands_at_its_start_and_nothing_is_in_flight(
    store: Store, thread: Thread
) -> None:
    assert threads.get(store, thread.id) == thread
    start = threads.start(store, thread)
    assert thread.hash == start.hash
    assert start.payload == {
        "workflow": workflows.find(store, "sample"),
        "input": store.put_node("content", {"text": "Do it.", "artifacts": []}).hash,
        "depth": 0,
        "parentState": None,
        "agents": {"a": start.payload["agents"]["a"]},
        "workspace": None,
        "maxRounds": 100,
        "budget": None,
    }
    record = dict(thread.record)
    assert record.pop("updatedAt") > 0
    assert record == {
        "status": RUNNING,
        "start": start.hash,
        "workflow": "sample",
        "reason": None,
        "cause": None,
        "question": None,
        "answer": None,
        "intent": None,
        "attempts": [],
        "spent": {"tokens": 0, "wallMs": 0},
        "compact": None,
        "parent": None,
        "children": [],
        "fork": None,
        "agents": None,
        "key": None,
    }


def test_the_agents_version_is_resolved_at_the_start(store: Store, thread: Thread) -> None:
    agent = store.node(threads.start(store, thread).payload["agents"]["a"], "agent").payload
    assert agent["package"] == "command"
    assert agent["version"] == ""
    assert agent["config"] == says({})


@pytest.mark.parametrize(
    ("agents", "error", "said"),
    [
        ({}, Invalid, "workflow sample: no agent for a, b; give --agent ROLE=NAME"),
        ({"a": COMMAND}, Invalid, "no agent for b"),
        ({"a": COMMAND, "b": COMMAND, "c": COMMAND}, Invalid, "no role 'c'; it has a, b"),
        ({"a": COMMAND, "b": Binding("nobody")}, NotFound, "no agent or profile 'nobody'"),
        ({"a": COMMAND, "b": Binding("command", {})}, Invalid, "config.argv is required"),
        ({"a": COMMAND, "b": Binding("command", COMMAND.config, ">99")}, Refused, ">99"),
        ({"a": COMMAND, "b": Binding("workflow", {"calls": []})}, Invalid, "--agent b: .*calls"),
    ],
)
def test_nothing_is_stored_of_a_thread_that_cannot_start(
    agents: dict[str, Binding], error: type[Exception], said: str, store: Store
) -> None:
    hash, _ = workflows.add(store, TWO)
    before = contents(store)
    with pytest.raises(error, match=said):
        lifecycle.create(store, ThreadRequest(hash, "Do it.", agents))
    assert contents(store) == before


def test_nothing_is_stored_where_the_workspace_is_no_tree(store: Store) -> None:
    hash, _ = workflows.add(store, ONE)
    blob = store.put(b"no tree").hash
    before = contents(store)
    with pytest.raises(Invalid):
        lifecycle.create(store, ThreadRequest(hash, "Do it.", {"a": COMMAND}, RecordedState(blob)))
    assert contents(store) == before


def test_an_agents_types_are_registered_even_when_roles_share_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "noting-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noting\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[casfs.agents]\nnoting = journal_noting\n")
    (tmp_path / "journal_noting.py").write_text(
        "package_descriptor = {'schemas': [{'$id': 'noting-detail', 'type': 'object'}]}\n"
        "create_agent = print\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    hash, _ = workflows.add(store, TWO)
    bound = {"a": Binding("noting"), "b": Binding("noting")}
    for _ in range(2):
        lifecycle.create(store, ThreadRequest(hash, "Do it.", bound))
    assert "noting-detail" in store.registry.names()


def test_begin_makes_the_intent_durable_before_anything_runs(store: Store, thread: Thread) -> None:
    moved = transitions.begin(store, thread, Next("a"), 0, 100, 1)
    assert threads.get(store, thread.id) == moved
    assert moved.hash == thread.hash
    intent = dict(moved.record["intent"])
    assert len(intent.pop("run")) == 32
    assert intent.pop("since") > 0
    nothing = {"pid": None, "pidStart": None, "turns": [], "turnCount": 0, "calls": []}
    assert intent == {"role": "a", "index": 1, "attempt": 1, **nothing}


def test_every_try_has_a_token_of_its_own(store: Store, thread: Thread) -> None:
    first = transitions.begin(store, thread, Next("a"), 0, 100, 1)
    second = transitions.begin(store, first, Next("a"), 0, 100, 2)
    assert first.record["intent"]["run"] != second.record["intent"]["run"]
    assert second.record["intent"]["attempt"] == 2


def test_a_step_its_head_and_the_next_intent_are_one(store: Store, thread: Thread) -> None:
    running = transitions.begin(store, thread, Next("a"), 0, 100, 1)
    before = version_of(store.backend)()
    moved = commit_step(store, running, put_step(store, running), Next("a"), 100)
    assert version_of(store.backend)() != before
    assert threads.get(store, thread.id) == moved
    assert store.node(moved.hash).type == "thread-step"
    assert (moved.record["intent"]["index"], moved.record["intent"]["role"]) == (2, "a")


def test_a_step_is_not_recorded_twice(store: Store, thread: Thread) -> None:
    running = transitions.begin(store, thread, Next("a"), 0, 100, 1)
    payload = put_step(store, running)
    first = commit_step(store, running, payload, Next("a"), 100)
    with pytest.raises(Conflict):
        commit_step(store, running, payload, Next("a"), 100)
    assert threads.get(store, thread.id) == first


@pytest.mark.parametrize(
    ("decision", "rounds", "code", "summary"),
    [
        (End(0, "ended after a"), 100, 0, "ended after a"),
        (End(1, "no rule matches after a"), 100, 1, "no rule matches after a"),
        (Next("a"), 1, 2, "step limit (--max-steps) reached after 1 steps"),
        (End(0, "ended after a"), 1, 0, "ended after a"),
    ],
)
def test_endings(
    decision: End | Next, rounds: int, code: int, summary: str, store: Store, thread: Thread
) -> None:
    thread = transitions.update_record(store, thread, onLimit="end")
    running = transitions.begin(store, thread, Next("a"), 0, rounds, 1)
    ended = commit_step(store, running, put_step(store, running), decision, rounds)
    assert (ended.status, ended.record["returnCode"], ended.record["intent"]) == (ENDED, code, None)
    payload = end_of(store, ended)
    assert (payload["returnCode"], payload["summary"]) == (code, summary)
    assert payload["start"] == thread.record["start"]
    assert store.node(payload["lastStep"]).payload["index"] == 1


def test_an_end_before_the_first_step(store: Store, thread: Thread) -> None:
    ended = transitions.begin(store, thread, End(1, "no rule matches after __start__"), 0, 100, 1)
    assert (ended.status, end_of(store, ended)["lastStep"]) == (ENDED, None)


def test_a_stuck_decision_suspends_with_nothing_in_flight(store: Store, thread: Thread) -> None:
    suspended = transitions.begin(store, thread, RuleFailed("moderator rule 1: no"), 0, 100, 1)
    assert (suspended.status, suspended.record["intent"]) == (SUSPENDED, None)
    assert suspended.record["reason"] == "moderator rule 1: no"


def test_suspending_keeps_the_intent_and_the_failed_tries(store: Store, thread: Thread) -> None:
    running = transitions.begin(store, thread, Next("a"), 0, 100, 1)
    blobs = [store.put(bytes([n])).hash for n in range(3)]
    failed = transitions.correct(store, running, blobs[0], "no block")
    suspended = suspension.suspend(store, failed, Suspension("it broke", failed=blobs[1:]))
    assert suspended.record["attempts"] == blobs
    fault = failed.record["intent"]["correction"]
    assert store.node(fault, "content").payload["text"] == "no block"
    assert suspended.record["intent"] == {**running.record["intent"], "correction": fault}
    again = transitions.begin(store, suspension.resume(store, suspended), Next("a"), 0, 100, 2)
    assert (again.record["attempts"], again.record["reason"]) == (blobs, None)
    done = commit_step(store, again, put_step(store, again, attempts=blobs), Next("a"), 100)
    assert done.record["attempts"] == []


def test_cancelling_keeps_the_failed_attempts_and_the_turns(store: Store, thread: Thread) -> None:
    running = transitions.begin(store, thread, Next("a"), 0, 100, 1)
    failed = store.put(b"failed").hash
    corrected = transitions.correct(store, running, failed, "no block")
    turn = store.put_node("content", {"text": "thought", "artifacts": []}).hash
    cancelled = transitions.cancel(store, transitions.add_turn(store, corrected, turn))
    first, last = cancelled.record["attempts"]
    assert (first, cancelled.record["intent"]) == (failed, None)
    assert store.node(last, "content").payload == {
        "text": "attempt 1 of a was cancelled",
        "artifacts": [turn],
    }


@pytest.mark.parametrize("letter", ["\U0001f525", "\x01", "\n", "\udcff", '"', "\u2028"])
def test_a_reason_of_any_text_fits_into_the_record(letter: str, store: Store) -> None:
    role = "r" * 64
    rules = [rule("__start__", role), rule(role, "__end__")]
    long = workflow(rules, "w" * 64, **{role: STATUS})
    running = transitions.begin(store, begin(store, long, {role: says({})}), Next(role), 0, 100, 99)
    blobs = [store.put(bytes([n])).hash for n in range(30)]
    suspended = suspension.suspend(store, running, Suspension(letter * 5000, failed=blobs))
    assert len(canonical.encode(dict(suspended.record))) < MAX_RECORD_BYTES - 100  # a pid comes yet
    assert "\n" not in suspended.record["reason"]
    assert suspended.record["attempts"] == blobs[-12:]
    assert (
        transitions.begin(store, suspended, RuleFailed(letter * 5000), 0, 100, 1).status
        == SUSPENDED
    )


def test_only_what_is_suspended_is_resumed(store: Store, thread: Thread) -> None:
    with pytest.raises(Conflict, match=f"thread {thread.id} is queued, not suspended"):
        suspension.resume(store, thread)
    suspended = suspension.suspend(store, thread, Suspension("why"))
    assert suspension.resume(store, suspended).status == RUNNING
    with pytest.raises(Conflict):  # by somebody who saw it rest
        suspension.resume(store, suspended)


def test_cancelling(store: Store, thread: Thread) -> None:
    begun = transitions.begin(store, thread, Next("a"), 0, 100, 1)
    suspended = suspension.suspend(store, begun, Suspension("why"))
    ended = transitions.cancel(store, suspended)
    assert (ended.status, ended.record["intent"], ended.record["reason"]) == (CANCELLED, None, None)
    assert (end_of(store, ended)["returnCode"], end_of(store, ended)["lastStep"]) == (130, None)
    for _ in range(2):
        with pytest.raises(Conflict, match="is cancelled already"):
            transitions.cancel(store, ended)


def test_a_head_that_somebody_else_moved_is_left_alone(store: Store, thread: Thread) -> None:
    moved = suspension.suspend(store, thread, Suspension("somebody else"))
    moves: list[Callable[[], Thread]] = [
        lambda: transitions.begin(store, thread, Next("a"), 0, 100, 1),
        lambda: transitions.update_record(store, thread, intent=None),
        lambda: transitions.cancel(store, thread),
    ]
    for move in moves:
        with pytest.raises(Conflict):
            move()
    assert threads.get(store, thread.id) == moved
