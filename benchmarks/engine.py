"""Measure the engine's steps beside LangGraph and DBOS; prints Markdown.

    python -m benchmarks.engine [--dir DIR] [--peers PYTHON] [--threads N] [--steps N]
                                [--long N] [--deep N] [--rounds N]

The agent does nothing: it gives 2 KB of text that no other step has. Every step is durable before
the next begins, with the intent of that one. Beside it the run's own floor: one transaction of
SQLite (WAL, synchronous=FULL) a step, with the same text. `--peers` is the Python of an
environment outside the project with langgraph, langgraph-checkpoint-sqlite and dbos in it; each
peer runs as a process of that, with its durable defaults, and prints its seconds. All take
turns on one file system, `--rounds` times a part of the threads each, and the tables hold ratios
of one run: absolute times drift. What the daemon does beside it is `benchmarks.engine_daemon`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import trio

from casfs import threads
from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.digest import Digest
from casfs.store import Store
from casfs.threads import Thread
from engine.agents import loader
from engine.agents.loader import Package
from engine.runtime.thread_run import ThreadRun
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest

PAYLOAD = 2048
RIVALS = ("floor", "langgraph", "dbos")
RULES = [
    {"from": "__start__", "to": "a", "when": None},
    {"from": "a", "to": "a", "when": None},
]
ROLE = {"name": "a", "description": "", "systemPrompt": "", "extractPrompt": ""}

PEER = r"""
import json, os, random, sys, time
kind, folder, count, length, size = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
text = lambda: random.randbytes(size // 2).hex()
times = []
if kind == "langgraph":
    import operator
    from typing import Annotated, TypedDict
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph
    class State(TypedDict):
        said: Annotated[list, operator.add]
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"said": [text()]})
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda s: END if len(s["said"]) >= length else "a")
    with SqliteSaver.from_conn_string(os.path.join(folder, "langgraph.db")) as saver:
        saver.setup()
        saver.conn.execute("PRAGMA synchronous=FULL")
        app = graph.compile(checkpointer=saver)
        for number in range(count):
            begin = time.perf_counter()
            config = {"configurable": {"thread_id": str(number)}, "recursion_limit": length + 5}
            app.invoke({"said": []}, config, durability="sync")
            times.append(time.perf_counter() - begin)
else:
    from dbos import DBOS
    url = "sqlite:///" + os.path.join(folder, "dbos.db")
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    @DBOS.step()
    def step(n):
        return text()
    @DBOS.workflow()
    def flow():
        for n in range(length):
            step(n)
    DBOS.launch()
    for number in range(count):
        begin = time.perf_counter()
        flow()
        times.append(time.perf_counter() - begin)
    DBOS.destroy()
print(json.dumps(times))
"""


def text() -> str:
    return random.randbytes(PAYLOAD // 2).hex()


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    """An agent that needs no time: its detail is the same node at every step."""
    detail: list[Digest] = []

    async def agent(context: AgentContext) -> AgentResult:
        if not detail:
            detail.append(context.store.put_node("content", {"text": "", "artifacts": []}))
        return AgentResult(text() + "\n```json\n{}\n```", detail[0])

    return agent


def idle(name: str) -> Package:
    return Package(name, "0", {"configSchema": {}}, create_agent)


def put_workflow(store: Store) -> str:
    schema = store.put_node("role-schema", {"name": "open", "type": "object"}).hash
    role = store.put_node("role", {**ROLE, "schema": schema}).hash
    flow = {"name": "bench", "description": "", "roles": {"a": role}, "moderator": RULES}
    return store.put_node("workflow", flow).hash


def run_thread(store: Store, workflow: str, length: int) -> tuple[Thread, float]:
    """A thread of so many steps, and the seconds that it took."""
    request = ThreadRequest(workflow, text(), {"a": Binding("idle")}, None, length)

    async def go() -> Thread:
        return await ThreadRun(store, lifecycle.create(store, request), {})()

    begin = time.perf_counter()
    ended = trio.run(go)
    return ended, time.perf_counter() - begin


def casfs(folder: Path, count: int, length: int) -> tuple[float, float]:
    """(steps per second, bytes stored per step beyond its text)."""
    with Store.init(folder / "casfs") as store:
        workflow = put_workflow(store)
        run_thread(store, workflow, 5)
        before = size(folder / "casfs")
        seconds = sum(run_thread(store, workflow, length)[1] for _ in range(count))
    stored = (size(folder / "casfs") - before) / (count * length)
    return count * length / seconds, stored - PAYLOAD


def floor(folder: Path, count: int, length: int) -> float:
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE steps (thread, step, data, PRIMARY KEY (thread, step))")
    begin = time.perf_counter()
    for thread in range(count):
        for step in range(length):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO steps VALUES (?, ?, ?)", (thread, step, text()))
            connection.execute("COMMIT")
    seconds = time.perf_counter() - begin
    connection.close()
    return count * length / seconds


def peer(python: str, kind: str, folder: Path, count: int, length: int) -> float:
    arguments = [kind, str(folder), str(count), str(length), str(PAYLOAD)]
    done = subprocess.run([python, "-c", PEER, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{kind}: {done.stderr[-2000:]}")
    return count * length / float(sum(json.loads(done.stdout.splitlines()[-1])))


def size(folder: Path) -> int:
    """Bytes of content: the database after a checkpoint of its log, and the files."""
    with sqlite3.connect(folder / "store.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def rates(folder: Path, python: str | None, shapes: list[tuple[int, int]], rounds: int) -> None:
    print("| threads x steps | casfs | floor | langgraph | dbos | bytes a step beyond 2 KB |")
    print("|---|---|---|---|---|---|")
    for count, length in shapes:
        ours: list[float] = []
        rivals: dict[str, list[float]] = {}
        for turn in range(rounds):
            place = folder / f"{count}x{length}-{turn}"
            place.mkdir()
            part = count // rounds + (turn < count % rounds)
            rate, stored = casfs(place, part, length)
            ours.append(rate)
            for name, rival in race(place, python, part, length):
                rivals.setdefault(name, []).append(rival)
            shutil.rmtree(place)
        found = [cell(ours, rivals[name]) if name in rivals else "-" for name in RIVALS]
        cells = [f"{statistics.median(ours):.0f}", *found, f"{stored:.0f}"]
        print(f"| {count} x {length} | {' | '.join(cells)} |", flush=True)


def race(place: Path, python: str | None, count: int, length: int) -> Iterator[tuple[str, float]]:
    yield "floor", floor(place, count, length)
    for kind in RIVALS[1:] if python else ():
        yield kind, peer(str(python), kind, place, count, length)


def cell(ours: list[float], rival: list[float]) -> str:
    """A rival's rate, and how many times that we are: the middle of what the rounds say."""
    ratio = statistics.median(one / other for one, other in zip(ours, rival, strict=True))
    return f"{statistics.median(rival):.0f} ({ratio:.2f} x)"


def depth(folder: Path, length: int) -> None:
    """A long thread: whether steps get slower."""
    with Store.init(folder / "long") as store:
        thread, seconds = run_thread(store, put_workflow(store), length)
        print(
            f"\nA thread of {length} steps: {length / seconds:.0f} steps/s, {where(store, thread)}"
        )


def ends(folder: Path, length: int) -> None:
    """What the ends of a thread of so many steps cost; all that each has read before, since the
    store was opened, is the thread's head."""
    root = folder / "deep"
    with Store.init(root) as store:
        id = grown(store, length).id
    print(f"\nA thread of {length} steps:")
    for name, action in (
        ("the last 20 steps", lambda store, thread: threads.last_steps(store, thread, 20)),
        ("fork at the last step", lifecycle.fork),
        ("fork at index 1", lambda store, thread: lifecycle.fork(store, thread, 1)),
        ("fork in the middle", lambda store, thread: lifecycle.fork(store, thread, length // 2)),
    ):
        with Store.open(root) as store:
            thread = threads.get(store, id)
            begin = time.perf_counter()
            action(store, thread)
            print(f"- {name}: {(time.perf_counter() - begin) * 1000:.1f} ms", flush=True)


def grown(store: Store, length: int) -> Thread:
    """A thread of copies of its first step, written without the engine: only its links differ."""
    thread, _ = run_thread(store, put_workflow(store), 1)
    first = threads.step_at(store, thread, 1)
    hashes = [first.hash]
    with store.batch() as batch:
        while len(hashes) < length:
            links = {"index": len(hashes) + 1, **threads.links(hashes)}
            hashes.append(batch.put_node("thread-step", {**first.payload, **links}).hash)
        head = batch.move(thread.name, thread.head, hashes[-1], thread.record)
    return Thread(thread.id, head, None)


def where(store: Store, thread: Thread) -> str:
    """Milliseconds a step in the first and the last tenth."""
    at = [node.payload["completedAt"] for node in threads.last_steps(store, thread, None)]
    tenth = max(2, len(at) // 10)
    first, last = (at[tenth - 1] - at[0]) / (tenth - 1), (at[-1] - at[-tenth]) / (tenth - 1)
    return f"{first:.2f} ms a step in the first tenth, {last:.2f} in the last"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--dir", type=Path, help="Where to work; else a temporary directory.")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--threads", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--long-threads", type=int, default=5)
    parser.add_argument("--long-steps", type=int, default=400)
    parser.add_argument("--long", type=int, default=10_000, help="Steps of a thread that is run.")
    parser.add_argument("--deep", type=int, default=100_000, help="Steps of one that is read.")
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    loader.load = idle  # no package has to be installed for it
    folder = Path(tempfile.mkdtemp(prefix="casfs-bench-", dir=wanted.dir))
    print(f"Python {sys.version.split()[0]}, {os.uname().release}, steps per second\n")
    try:
        shapes = [(wanted.threads, wanted.steps), (wanted.long_threads, wanted.long_steps)]
        rates(folder, wanted.peers, shapes, wanted.rounds)
        if wanted.long:
            depth(folder, wanted.long)
        if wanted.deep:
            ends(folder, wanted.deep)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
