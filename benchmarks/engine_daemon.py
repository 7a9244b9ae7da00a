"""Measure what the daemon does beside the steps; prints Markdown.

    python -m benchmarks.engine_daemon [--dir DIR] [--steps N] [--threads N] [--seconds N]

Decisions: `develop` with a plan of four phases and a history of N steps; the first decision has
the process for rules still to be started and the whole history to be sent, the later ones have
one more step each. Meanwhile a task of the same loop sleeps a millisecond at a time and notes by
how much it came late. Waiting: a daemon with N running threads, each waiting for a process that
sleeps; its memory, and the processor time that it takes to do nothing.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.common import table
from benchmarks.engine_peers import text
from casfs import canonical
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import RUNNING, Thread
from engine.moderator import decision
from engine.moderator.decision import DecisionInput
from engine.moderator.evaluator_pool import WorkerPool
from engine.workflow import registry as workflows

PHASES = 4
DEVELOP = Path(workflows.__file__).parents[1] / "workflows" / "develop.json"
SLEEP = {"name": "command", "config": {"argv": ["sleep", "600"]}}
TICK = 0.001  # seconds


# -- decisions --------------------------------------------------------------------------------


def history(length: int) -> list[dict[str, Any]]:
    """Steps of `develop` as they are recorded: a plan, and coders of whom none is ever done."""
    hashes = [f"{number:064x}" for number in range(1, PHASES + 1)]
    plan = [{"hash": hash, "title": "phase"} for hash in hashes]
    metas: list[tuple[str, dict[str, Any]]]
    metas = [("planner", {"status": "planned", "phases": plan})]
    failed = {"completedPhase": hashes[0], "status": "failed", "summary": text()[:200]}
    metas += [("coder", failed)] * (length - 1)
    return [
        {
            "index": index,
            "role": role,
            "meta": dict(meta),
            **dict.fromkeys(("content", "detail", "agent", "start", "previous"), "0" * 64),
            "ancestors": ["0" * 64] * 10,
            **dict.fromkeys(("compact", "workspace", "changes")),
            "childThreads": [],
            "attempts": [],
            "extraction": "block",
            "startedAt": index,
            "completedAt": index,
        }
        for index, (role, meta) in enumerate(metas, 1)
    ]


async def decisions(length: int, count: int = 20) -> list[list[str]]:
    rules = canonical.decode(DEVELOP.read_bytes())["moderator"]
    steps = history(length + count)
    start: dict[str, Any] = {"depth": 0}
    took, late = [], [0.0]
    async with WorkerPool() as judge, trio.open_nursery() as nursery:
        nursery.start_soon(watch, late)
        for end in range(length, length + count):
            begin = time.perf_counter()
            await decision.decide(rules, DecisionInput(steps[:end], start, "t"), judge)
            took.append((time.perf_counter() - begin) * 1000)
        nursery.cancel_scope.cancel()
    return [
        [f"the first decision of `develop` after {length:,} steps", f"{took[0]:.0f} ms"],
        [f"later ones, median of {count - 1}", f"{statistics.median(took[1:]):.1f} ms"],
        ["the latest that the loop was meanwhile", f"{max(late) * 1000:.1f} ms"],
    ]


async def watch(late: list[float]) -> None:
    while True:
        begin = time.perf_counter()
        await trio.sleep(TICK)
        late.append(time.perf_counter() - begin - TICK)


# -- waiting ----------------------------------------------------------------------------------


@contextmanager
def daemon(root: Path, limit: int) -> Iterator[int]:
    """Its process id."""
    env = {**os.environ, "CASFS_RUNS_LIMIT": str(limit)}
    casfs = [sys.executable, "-m", "casfs", "--store", str(root)]
    subprocess.run([*casfs, "init"], check=True, capture_output=True)
    started = subprocess.Popen([*casfs, "daemon", "--foreground"], env=env)
    try:
        while daemon_socket.find(root) is None:
            time.sleep(0.05)
        yield started.pid
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait()


def waiting(root: Path, count: int, seconds: float) -> list[str]:
    with daemon(root, count) as pid:
        with Store.open(root) as store:
            flow, _ = workflows.add(store, canonical.decode(DEVELOP.read_bytes()))
            agents = dict.fromkeys(workflows.load(store, flow).roles, SLEEP)
            for _ in range(count):
                daemon_socket.request(root, "start", workflow=flow, input=text(), agents=agents)
            while not all(one.pending and one.pending.get("pid") for one in running(store)):
                time.sleep(0.2)
        time.sleep(1)
        before, begin = processor(pid), time.monotonic()
        time.sleep(seconds)
        share = (processor(pid) - before) / (time.monotonic() - begin)
        spent = f"{share:.1%} of a processor over {seconds:g} s"
        return [
            f"{count} threads that wait for agents",
            f"{resident(pid):.0f} MB resident, {spent}",
        ]


def running(store: Store) -> list[Thread]:
    found = threads.list_threads(store)
    if suspended := [one for one in found if one.status != RUNNING]:
        raise SystemExit(f"a thread is suspended: {suspended[0].record['reason']}")
    return found


def processor(pid: int) -> float:
    """Seconds of processor time, without its children's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--dir", type=Path, help="Where to work; else a temporary directory.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    wanted = parser.parse_args()
    rows = trio.run(decisions, wanted.steps)
    with tempfile.TemporaryDirectory(prefix="casfs-bench-", dir=wanted.dir) as folder:
        rows.append(waiting(Path(folder) / "store", wanted.threads, wanted.seconds))
    table("The daemon", ["what", "here"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
