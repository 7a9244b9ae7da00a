"""Threads of the public API: read from the store, moved through the daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import casfs
from casfs.store.store import Store as Trunk
from engine.workflow import registry as workflows
from tests.support.engine import ONE, daemon, says, shell
from tests.support.thread_example import STARTED, make_thread


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[casfs.Store]:
    with casfs.init(tmp_path / "store") as store:
        yield store


def test_a_thread_and_its_steps_are_values(opened: casfs.Store) -> None:
    example = make_thread(
        opened, intent={"role": "planner", "index": 1}, spent={"tokens": 7, "wallMs": 1500}
    )
    began = datetime.fromtimestamp(STARTED / 1000, UTC)
    (thread,) = opened.threads.list()
    assert thread == opened.threads.get(example.id[:10].lower())
    assert (thread.workflow, thread.status, thread.role) == ("demo", "running", "planner")
    assert (thread.updated_at, thread.tokens) == (began, 7)
    assert thread.running_time == timedelta(seconds=1.5)
    assert (thread.hash, thread.return_code) == (example.start, None)
    hashes = [example.step("planner", f"Said {n}.") for n in (1, 2, 3)]
    steps = opened.threads.steps(example.id)
    assert [step.hash for step in steps] == hashes
    assert steps[1] == opened.threads.step(example.id, 2)
    assert (steps[1].output, steps[1].role, steps[1].cached) == ("Said 2.", "planner", False)
    assert steps[1].meta == {"status": "planned", "phases": []}
    assert steps[1].completed_at - steps[1].started_at == timedelta(seconds=2)
    assert opened.threads.steps(example.id, after=2) == steps[2:]
    assert opened.threads.steps(example.id, last=2) == steps[1:]
    assert opened.trees.resolve(steps[0]) == example.tree
    end = example.end()
    ended = opened.threads.get(example.id)
    assert (ended.status, ended.hash) == ("succeeded", end)
    with pytest.raises(casfs.NotFound, match="has no step 4"):
        opened.threads.step(example.id, 4)
    with pytest.raises(casfs.NotFound, match="no thread 'none'"):
        opened.threads.get("none")


def test_a_thread_with_damaged_nodes_is_listed(opened: casfs.Store) -> None:
    example = make_thread(opened, status="ended", returnCode=1)
    opened.blobs.quarantine(example.start)
    (thread,) = opened.threads.list()
    assert (thread.status, thread.return_code) == ("failed", 1)


def test_following_yields_each_step_until_the_end(opened: casfs.Store) -> None:
    example = make_thread(opened)
    example.step("planner", "before")
    followed = opened.threads.follow(example.id, poll_s=0.001)
    assert next(followed).output == "before"

    def go_on() -> None:
        example.step("planner", "meanwhile")
        example.step("planner", "last")
        example.end()

    writer = threading.Thread(target=go_on)
    writer.start()
    assert [step.output for step in followed] == ["meanwhile", "last"]
    writer.join()
    assert [step.index for step in opened.threads.follow(example.id, after=2)] == [3]


def test_moving_a_thread_needs_a_daemon(opened: casfs.Store) -> None:
    with pytest.raises(casfs.NoDaemon, match="start one with `casfs daemon`"):
        opened.threads.start("sample", "Do it.", {})


def test_a_thread_is_started_answered_forked_and_cancelled(opened: casfs.Store) -> None:
    threads, root = opened.threads, opened.root
    workflows.add(opened, ONE)
    source = root.parent / "source"
    source.mkdir()
    tree = opened.trees.build(source)
    done = casfs.Agent("command", says({"x": 1}, "echo more >file"))
    with daemon(root):
        with pytest.raises(casfs.Invalid, match="config"):
            threads.start("sample", "Do it.", {"a": casfs.Agent("command", {"argv": 1})})
        asked = {"workspace": tree, "idempotency_key": "k", "max_time": timedelta(minutes=5)}
        first = threads.start("sample", "Do it.", {"a": done}, **asked)  # type: ignore[arg-type]
        again = threads.start("sample", "Do it.", {"a": done}, **asked)  # type: ignore[arg-type]
        assert again.id == first.id
        assert threads.wait(first.id).return_code == 0
        (step,) = threads.steps(first.id)
        assert (step.meta, opened.trees.read(step, "file")) == ({"x": 1}, b"more\n")
        human = casfs.Agent("human", {"question": "May it?"})
        forked = threads.fork(first.id, at=0, agents={"a": human})
        waiting = threads.wait(forked.id)
        assert waiting.status == "suspended"
        assert "May it?" in (waiting.reason or "")
        assert waiting.question is not None
        assert "Do it." in opened.node(waiting.question).payload["text"]
        threads.resume(forked.id, '{"x": 2}')
        assert threads.wait(forked.id).status == "succeeded"
        assert threads.step(forked.id, 1).meta == {"x": 2}
        slow = casfs.Agent("command", shell("sleep 1000"))
        running = threads.start(
            "sample", "Do it.", {"a": slow}, max_steps=3, max_tokens=9, on_limit="end"
        )
        assert threads.suspend(running.id).status == "suspended"
        again = threads.resume(running.id, agents={"a": slow})
        assert again.status in ("queued", "running")
        cancelled = threads.cancel(running.id)
        assert (cancelled.status, cancelled.return_code) == ("cancelled", 130)
        failing = threads.start("sample", "Do it.", {"a": casfs.Agent("command", shell("exit 1"))})
        assert threads.wait(failing.id).status == "suspended"
        other = threads.start("sample", "Do it.", {"a": slow})
    with pytest.raises(casfs.NoDaemon):
        threads.resume(failing.id, hint="Exit with 0.")
    assert threads.suspend(other.id).status == "suspended"
    assert threads.cancel(other.id).status == "cancelled"
    with Trunk.open(root) as trunk:
        assert len(casfs.Threads(trunk).list()) == 5
