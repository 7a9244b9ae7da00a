"""LangGraph and DBOS on PostgreSQL, for `benchmarks.scale`.

    PYTHON -P benchmarks/scale_peers.py NAME URL THREADS STEPS NUMBER

says "ready", waits for a line, runs and ends. `NUMBER`: of this process. A step has 2 KB of text
and is durable before the next one of its thread begins.

langgraph   PostgresSaver, durability="sync", an OS thread for each thread on one app, a pool with
            a connection for each
dbos        a workflow for each thread, started by DBOS.start_workflow, then waited for; a pool with
            a connection for each thread
"""

from __future__ import annotations

import operator
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypedDict

PAYLOAD_BYTES = 2048
WARM_UP_STEPS = 5
Run = Callable[[int, int], object]


def text() -> str:
    return random.randbytes(PAYLOAD_BYTES // 2).hex()


def rate(python: str, name: str, url: str, processes: int, threads: int, steps: int) -> float:
    """Returns the steps per second of so many processes with so many threads each."""
    command = [python, "-P", __file__, name, url, str(threads), str(steps)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    found = []
    for number in range(processes):
        one = subprocess.Popen([*command, str(number)], **pipes)  # type: ignore[call-overload]
        assert one.stdout.readline() == "ready\n"  # the first makes the tables
        found.append(one)
    begin = time.perf_counter()
    for one in found:
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in found:
        assert one.stdout.readline() == "done\n"
    taken = time.perf_counter() - begin
    for one in found:
        one.wait()
    return processes * threads * steps / taken


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def langgraph(url: str, threads: int, number: int) -> Run:
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.graph import END, START, StateGraph
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool

    limit = 0
    how = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool = ConnectionPool(url, min_size=threads, max_size=threads, kwargs=how, open=True)
    saver = PostgresSaver(pool)
    saver.setup()
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"said": [text()]})
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: END if len(state["said"]) >= limit else "a")
    app = graph.compile(checkpointer=saver)

    def thread(steps: int) -> None:
        config = {"configurable": {"thread_id": text()[:16]}, "recursion_limit": steps + 5}
        app.invoke({"said": []}, config, durability="sync")

    def run(threads: int, steps: int) -> object:
        nonlocal limit
        limit = steps
        with ThreadPoolExecutor(threads) as workers:
            return list(workers.map(thread, [steps] * threads))

    return run


def dbos(url: str, threads: int, number: int) -> Run:
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": threads,
            "executor_id": f"process-{number}",
            "log_level": "ERROR",
        }
    )
    step = DBOS.step(name="step")(lambda: text())

    def flow(steps: int) -> None:
        for _ in range(steps):
            step()

    workflow = DBOS.workflow()(flow)

    def run(threads: int, steps: int) -> object:
        started = [DBOS.start_workflow(workflow, steps) for _ in range(threads)]
        return [handle.get_result() for handle in started]

    DBOS.launch()
    return run


def main() -> None:
    name, url, *numbers = sys.argv[1:]
    threads, steps, number = map(int, numbers)
    run = {"langgraph": langgraph, "dbos": dbos}[name](url, threads, number)
    run(1, WARM_UP_STEPS)
    print("ready", flush=True)
    sys.stdin.readline()
    run(threads, steps)
    print("done", flush=True)
    os._exit(0)  # their threads go on


if __name__ == "__main__":
    main()
