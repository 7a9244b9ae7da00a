"""The programs that `benchmarks.engine` compares the engine with: a floor and two peers.

    PYTHON -P benchmarks/engine_peers.py NAME FOLDER THREADS STEPS [at-once]

Prints the seconds that all take, after a first one of WARM_UP_STEPS. In all of them a step is
synced before the next step of its thread begins (WAL, synchronous=FULL).

floor       one SQLite transaction a step; at once: an OS thread for each thread, with a lock and
            one connection (with a connection each, SQLite waits by polling: a third as fast)
langgraph   SqliteSaver, durability="sync"; at once: an OS thread for each thread, on one app
            (AsyncSqliteSaver with a task for each was half as fast)
langgraph-delta
            the same with a DeltaChannel, which stores what a step adds and not the whole state; a
            beta of langgraph 1.2
dbos        a workflow for each thread; at once: all started by DBOS.start_workflow, then waited
            for. Without WAL, as it opens its database by itself, it is half as fast or less
"""

from __future__ import annotations

import operator
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

PAYLOAD_BYTES = 2048
WARM_UP_STEPS = 5


class Shape(NamedTuple):
    threads: int
    steps: int  # of each
    at_once: bool = False


class Sample(NamedTuple):
    """Steps per second; of the engine also bytes stored a step, and the seconds of each step's
    commit and turn."""

    rate: float
    stored: float = 0
    commits: Sequence[float] = ()
    turns: Sequence[float] = ()


Run = Callable[[Shape], object]


def text() -> str:
    return random.randbytes(PAYLOAD_BYTES // 2).hex()


def perform(python: str, name: str, folder: Path, shape: Shape) -> Sample:
    """Runs a program by a Python."""
    command = [python, "-P", __file__, name, str(folder), str(shape.threads), str(shape.steps)]
    command += ["at-once"] if shape.at_once else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return Sample(shape.threads * shape.steps / float(done.stdout.split()[-1]))


def _connect(path: Path) -> sqlite3.Connection:
    found = sqlite3.connect(path, check_same_thread=False)
    found.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
    return found


def _each(run: Callable[[int], object], shape: Shape) -> list[object]:
    """Calls `run` with the number of steps, for each thread."""
    with ThreadPoolExecutor(shape.threads if shape.at_once else 1) as pool:
        return list(pool.map(run, [shape.steps] * shape.threads))


def floor(folder: Path) -> Run:
    lock = threading.Lock()
    db = _connect(folder / "floor.db")
    db.execute("CREATE TABLE steps (thread, step, data, PRIMARY KEY (thread, step))")

    def thread(steps: int) -> None:
        number = random.random()
        for step in range(steps):
            row = (number, step, text())
            with lock:
                db.execute("BEGIN IMMEDIATE")
                db.execute("INSERT INTO steps VALUES (?, ?, ?)", row)
                db.execute("COMMIT")

    return partial(_each, thread)


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def delta_state() -> type:
    from langgraph.channels import DeltaChannel

    def extended(said: list[str], writes: Sequence[list[str]]) -> list[str]:
        return [*said, *(one for write in writes for one in write)]

    channel = Annotated[list[str], DeltaChannel(extended, list)]
    return type("State", (dict,), {"__annotations__": {"said": channel}})


def langgraph(folder: Path, state: type = State) -> Run:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    limit = 0
    saver = SqliteSaver(_connect(folder / "langgraph.db"))
    graph = StateGraph(state)
    graph.add_node("a", lambda state: {"said": [text()]})
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: END if len(state["said"]) >= limit else "a")
    app = graph.compile(checkpointer=saver)

    def thread(steps: int) -> None:
        nonlocal limit
        limit = steps
        config = {"configurable": {"thread_id": text()[:16]}, "recursion_limit": steps + 5}
        app.invoke({"said": []}, config, durability="sync")

    return partial(_each, thread)


def dbos(folder: Path) -> Run:
    from dbos import DBOS

    path = folder / "dbos.db"
    _connect(path).close()
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
    step = DBOS.step(name="step")(lambda: text())

    def flow(steps: int) -> None:
        for _ in range(steps):
            step()

    workflow = DBOS.workflow()(flow)

    def run(shape: Shape) -> object:
        if not shape.at_once:
            return _each(workflow, shape)
        started = [DBOS.start_workflow(workflow, shape.steps) for _ in range(shape.threads)]
        return [handle.get_result() for handle in started]

    DBOS.launch()
    return run


PROGRAMS: Mapping[str, Callable[[Path], Run]] = {
    "floor": floor,
    "langgraph": langgraph,
    "langgraph-delta": lambda folder: langgraph(folder, delta_state()),
    "dbos": dbos,
}


if __name__ == "__main__":
    name, folder, threads, steps, *at_once = sys.argv[1:]
    run = PROGRAMS[name](Path(folder))
    run(Shape(1, WARM_UP_STEPS))
    begin = time.perf_counter()
    run(Shape(int(threads), int(steps), bool(at_once)))
    print(time.perf_counter() - begin, flush=True)
    os._exit(0)  # a peer's threads go on
