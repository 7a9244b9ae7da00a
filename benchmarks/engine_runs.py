"""Runs of the engine for `benchmarks.engine`: threads whose agent needs no time."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import trio

from benchmarks.engine_peers import WARM_UP_STEPS, Sample, Shape, text
from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.checkpoints import checkpoint
from casfs.checkpoints.create import create
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import Thread
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import desk
from engine.agents import loader
from engine.agents.loader import Package
from engine.blocking import blocking
from engine.runtime.commit_queue import CommitQueue
from engine.runtime.run_services import RunServices
from engine.runtime.thread_run import ThreadRun
from engine.runtime.workspace import COPYING, Workspaces
from engine.threads import forking, lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from tests.support.desks import OVER_IMAGES

RULES = [{"from": name, "to": "a", "when": None} for name in ("__start__", "a")]
ROLE = {"name": "a", "description": "", "systemPrompt": "", "extractPrompt": ""}
WORKFLOW = {"name": "bench", "description": "", "moderator": RULES}
FILES_PER_DIRECTORY = 50


def run_threads(
    store: Store,
    shape: Shape,
    workspaces: Workspaces = COPYING,
    workspace: RecordedState | None = None,
    agent_s: float = 0,
) -> tuple[Sequence[float], Thread]:
    """Creates threads and runs them to their limit of steps; the agent takes `agent_s`. Returns all
    turns and a thread."""
    turns: list[float] = []
    detail = store.put_node("content", {"text": "", "artifacts": []})

    def create_agent(config: Mapping[str, Any]) -> AgentFn:
        returned: list[float] = []

        async def agent(context: AgentContext) -> AgentResult:
            turns.extend(time.perf_counter() - at for at in returned)
            await trio.sleep(agent_s)
            result = AgentResult(text() + "\n```json\n{}\n```", detail)
            returned[:] = [time.perf_counter()]
            return result

        return agent

    loader.load = lambda name: Package(name, "0", {"configSchema": {}}, create_agent)
    schema = store.put_node("role-schema", {"name": "open", "type": "object"}).hash
    role = store.put_node("role", {**ROLE, "schema": schema}).hash
    workflow = store.put_node("workflow", {**WORKFLOW, "roles": {"a": role}}).hash
    request = ThreadRequest(
        workflow, text(), {"a": Binding("idle")}, workspace, max_steps=shape.steps
    )
    done: list[Thread] = []
    services = RunServices(store, workspaces=workspaces)  # shared, as a daemon does

    async def run(slots: trio.CapacityLimiter) -> None:
        async with slots:
            thread = await blocking(lambda: lifecycle.create(store, request))
            run = ThreadRun(services, thread, {})
            done.append(await run())

    async def main() -> None:
        slots = trio.CapacityLimiter(shape.threads if shape.at_once else 1)
        async with trio.open_nursery() as nursery:
            for _ in range(shape.threads):
                nursery.start_soon(run, slots)

    trio.run(main)
    assert len(turns) == shape.threads * (shape.steps - 1), done[0].record["reason"]
    return turns, done[0]


def casfs(folder: Path, shape: Shape) -> Sample:
    steps = shape.threads * shape.steps
    with Store.init(folder / "store") as store:
        run_threads(store, Shape(1, WARM_UP_STEPS))
        before = _stored_bytes(folder / "store")
        with _timed_commits() as commits:
            begin = time.perf_counter()
            turns, _ = run_threads(store, shape)
            rate = steps / (time.perf_counter() - begin)
    assert len(commits) == steps
    return Sample(rate, (_stored_bytes(folder / "store") - before) / steps, commits, turns)


@contextmanager
def _timed_commits() -> Iterator[list[float]]:
    """Gives a list that gets the seconds that each step waits in the commit queue."""
    commit = CommitQueue.commit
    seconds: list[float] = []

    async def timed(queue: CommitQueue, prepare: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        done = await commit(queue, prepare)
        seconds.append(time.perf_counter() - begin)
        return done

    with mock.patch.object(CommitQueue, "commit", timed):
        yield seconds


def _stored_bytes(root: Path) -> int:
    with closing(sqlite3.connect(root / "store.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def turns_with_tree(folder: Path, files: int, steps: int) -> dict[str, float]:
    """Returns the median seconds of a turn of a thread that changes no file: without a workspace,
    with an overlay (as root only) and with a copy of so many files."""
    for number in range(files):
        path = folder / "tree" / str(number // FILES_PER_DIRECTORY) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text())
    with Store.init(folder / "store") as store:
        state = checkpoint.recorded(store, create(store, "tree", folder / "tree").checkpoint)
        kinds = {"none": (COPYING, None), "overlay": (OVER_IMAGES, state)}
        kinds["copy"] = COPYING, state
        try:
            turns = {kind: run_threads(store, Shape(1, steps), *kinds[kind])[0] for kind in kinds}
        finally:
            desk.unmount_all(folder / "store")
    return {kind: statistics.median(values) for kind, values in turns.items()}


def long_thread(folder: Path, length: int) -> dict[str, float]:
    """Returns the seconds of actions on a thread of so many steps, all copies of the first but for
    their links. All that each has read before, since the store was opened, is the thread's head."""
    with Store.init(folder) as store:
        _, thread = run_threads(store, Shape(1, 1))
        first = threads.step_at(store, thread, 1)
        hashes = [first.hash]
        with store.batch() as batch:
            while len(hashes) < length:
                links = {"index": len(hashes) + 1, **threads.links(hashes)}
                hashes.append(batch.put_node("thread-step", {**first.payload, **links}).hash)
            batch.move(thread.name, thread.head, hashes[-1], thread.record)
    actions: dict[str, Callable[[Store, Thread], object]] = {
        "the last 20 steps": lambda store, thread: threads.last_steps(store, thread, 20),
        "fork at the last step": forking.fork,
        "fork at index 1": lambda store, thread: forking.fork(store, thread, 1),
        "fork in the middle": lambda store, thread: forking.fork(store, thread, length // 2),
    }
    found = {}
    for name, action in actions.items():
        with Store.open(folder) as store:
            thread = threads.get(store, thread.id)
            begin = time.perf_counter()
            action(store, thread)
            found[name] = time.perf_counter() - begin
    return found
