"""Daemons of a shared store for `benchmarks.scale`: threads whose agent needs no time.

    python -m benchmarks.scale_steps ROOT LIMIT

runs the daemon of a machine's directory until SIGTERM, with an agent that gives 2 KB of text.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from benchmarks.engine_peers import text
from benchmarks.engine_runs import ROLE, WORKFLOW
from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.digest import Digest
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import RUNNING
from engine.agents import loader
from engine.agents.loader import Package
from engine.runtime import daemon
from engine.runtime.daemon import DaemonSettings
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest

WAIT_S = 300
MOVES = (
    "SELECT count(*), min(at), max(at) FROM casfs.moves WHERE name LIKE 'threads/%%' AND id > %s"
)
LAST = "SELECT coalesce(max(id), 0) FROM casfs.moves"


class Done(NamedTuple):
    """Steps per second from the first claim of a thread to the last end, and seconds of processor
    time of the daemons a step."""

    rate: float
    processor: float


def load(detail: Digest) -> None:
    """Makes every agent one that answers at once."""

    def create_agent(config: Mapping[str, Any]) -> AgentFn:
        async def agent(context: AgentContext) -> AgentResult:
            return AgentResult(text() + "\n```json\n{}\n```", detail)

        return agent

    loader.load = lambda name: Package(name, "0", {"configSchema": {}}, create_agent)


def put_detail(store: Store) -> Digest:
    return store.put_node("content", {"text": "", "artifacts": []})


def start_threads(store: Store, count: int, steps: int) -> None:
    """Creates threads that any daemon may take."""
    load(put_detail(store))
    schema = store.put_node("role-schema", {"name": "open", "type": "object"}).hash
    role = store.put_node("role", {**ROLE, "schema": schema}).hash
    workflow = store.put_node("workflow", {**WORKFLOW, "roles": {"a": role}}).hash
    for _ in range(count):
        request = ThreadRequest(workflow, text(), {"a": Binding("idle")}, None, steps)
        lifecycle.create(store, request)


def run_daemons(roots: Sequence[Path], url: str, count: int, steps: int) -> Done:
    """Runs `count` threads in each of the daemons of these machines."""
    with Store.open(roots[0]) as store, ExitStack() as stack, psycopg.connect(url) as db:
        found = [stack.enter_context(_daemon(root, count)) for root in roots]
        db.autocommit = True
        used = [processor(one.pid) for one in found]
        start_threads(store, count * len(roots), steps)
        ((last,),) = db.execute(LAST).fetchall()
        end = time.monotonic() + WAIT_S
        total = count * len(roots) * steps
        while any(one.status == RUNNING for one in threads.list_threads(store)):
            assert time.monotonic() < end, "threads do not end"
            time.sleep(0.3)
        spent = sum(processor(one.pid) - before for one, before in zip(found, used, strict=True))
        reasons = {one.record.get("reason") for one in threads.list_threads(store)}
        ((moves, first, latest),) = db.execute(MOVES, [last]).fetchall()
        assert moves >= total, f"{moves} moves for {total} steps: {reasons}"
        return Done(total / (latest - first) * 1000, spent / total)


@contextmanager
def _daemon(root: Path, limit: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "benchmarks.scale_steps", str(root), str(limit)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait()


def processor(pid: int) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    root, limit = Path(sys.argv[1]), int(sys.argv[2])
    with Store.open(root) as store:
        load(put_detail(store))

    def ready() -> None:
        print("ready", flush=True)

    socket = Path(f"/tmp/casfs-bench-{os.getpid()}") / "socket"
    daemon.serve(root, socket, DaemonSettings({}, limit), ready)
    socket.parent.rmdir()


if __name__ == "__main__":
    main()
