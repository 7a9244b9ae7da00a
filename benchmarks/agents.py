"""Measure what casfs takes beside its agents; prints Markdown.

    python -m benchmarks.agents [--dir DIR] [--turns N] [--steps N] [--sessions N]

Turns and rounds are timed by the agent (`benchmarks/acp_agent.py`), in a daemon that runs one
thread: from its first line of a turn until all of that is durable; from its answer to a prompt
until the next prompt, a correction. The start of a package's process is that of the
attempt's until its agent is called. Memory is that of a daemon with N sessions at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import acp_agent
from benchmarks.common import machine, table
from benchmarks.engine_daemon import daemon
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, ThreadId
from engine.workflow import registry as workflows
from tests.support.engine import loop

CALLS = (1, 5)  # tool calls of a turn
WARM_UP_TURNS = 10  # they load what is loaded once


def start(root: Path, steps: int, results: Path, *how: object) -> ThreadId:
    """Starts a thread of so many steps by the agent."""
    argv = [sys.executable, "-S", acp_agent.__file__, str(results), *map(str, how)]
    with Store.open(root) as store:
        flow, _ = workflows.add(store, loop(steps))
    agents = {"a": {"name": "acp", "config": {"argv": argv}}}
    made = daemon_socket.request(root, "start", workflow=flow, input="Do it.", agents=agents)
    return ThreadId(made["id"])


def finished(root: Path, id: ThreadId) -> None:
    if daemon_socket.request(root, "wait", id=id)["status"] != ENDED:
        with Store.open(root) as store:
            raise SystemExit(f"a thread did not end: {threads.get(store, id).record['reason']}")


def lines(results: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in results.read_text().splitlines()]
    results.unlink()
    return found


def shown(values: list[float]) -> list[str]:
    values = sorted(values)
    worst = values[int(len(values) * 0.99)]
    return [f"{statistics.median(values):.2f} ms", f"{worst:.2f} ms", f"{len(values):,}"]


def overhead(root: Path, results: Path, turns: int, steps: int) -> list[list[str]]:
    medians, rows = [], []
    with daemon(root, 1):
        for calls in CALLS:
            finished(root, start(root, 1, results, "turns", turns, calls))
            measured = lines(results)[WARM_UP_TURNS:]
            took = [one["turn"] for one in measured]
            medians.append(statistics.median(took))
            rows.append([f"a turn of {calls} tool call(s), until it is durable", *shown(took)])
        rows.append(["a request alone", *shown([one["request"] for one in measured])])
        each = (medians[1] - medians[0]) / (CALLS[1] - CALLS[0])
        rows.append(["so a tool call", f"{each:.2f} ms", "", ""])
        rows.append(["the turn around it", f"{medians[0] - each:.2f} ms", "", ""])
        finished(root, start(root, steps, results, "correct"))
        rounds = [one["round"] for one in lines(results)]
        rows.append(["from an answer to the next prompt, all recorded", *shown(rounds)])
    return rows


PACKAGE = """
import json, time
import trio
from casfs.agents import AgentResult

package_descriptor = {"name": "timed", "capabilities": [], "configSchema": {}, "schemas": []}


def create_agent(config):
    async def agent(context):
        at = time.time() * 1000
        await trio.sleep(0.5)  # meanwhile the daemon starts the process of the next attempt
        detail = context.store.put_node("content", {"text": "", "artifacts": []})
        return AgentResult("```json\\n%s\\n```" % json.dumps({"at": at}), detail)

    return agent
"""


def package(root: Path, site: Path, steps: int) -> list[str]:
    info = site / "timed-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: timed\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[casfs.agents]\ntimed = timed_agent\n")
    (site / "timed_agent.py").write_text(PACKAGE)
    os.environ["PYTHONPATH"] = str(site)
    with daemon(root, 1), Store.open(root) as store:
        flow, _ = workflows.add(store, loop(steps))
        agents = {"a": {"name": "timed"}}
        made = daemon_socket.request(root, "start", workflow=flow, input="Do it.", agents=agents)
        id = ThreadId(made["id"])
        finished(root, id)
        nodes = threads.last_steps(store, threads.get(store, id), None)
        took = [node.payload["meta"]["at"] - node.payload["startedAt"] for node in nodes]
    return ["from a step's start until its package's agent begins", *shown(took[1:])]


def memory(root: Path, results: Path, sessions: int) -> list[list[str]]:
    """A daemon's memory before a thread, and so before the models of the protocol are loaded; and
    with the sessions."""

    with daemon(root, sessions) as pid:
        time.sleep(1)
        before = share(pid)
        ids = [start(root, 1, results, "hang", 10) for _ in range(sessions)]
        while len(results.read_text().splitlines() if results.exists() else ()) < sessions:
            time.sleep(0.2)
        time.sleep(1)
        live = share(pid)
        for id in ids:
            daemon_socket.request(root, "cancel", id=id)
        with Store.open(root) as store:
            assert all(threads.get(store, id).status == "cancelled" for id in ids)
    return [
        ["a daemon without a thread", f"{before:.0f} MB"],
        [f"a daemon with {sessions} live sessions", f"{live:.0f} MB"],
    ]


def share(pid: int) -> float:
    """Megabytes of a process, shared pages by their share."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (line,) = (line for line in rollup if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024 / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--dir", type=Path, help="Where to work; else a temporary directory.")
    parser.add_argument("--turns", type=int, default=500, help=f"More than {WARM_UP_TURNS}.")
    parser.add_argument("--steps", type=int, default=100, help="More than 1.")
    parser.add_argument("--sessions", type=int, default=50)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="casfs-bench-", dir=wanted.dir) as folder:
        print(machine(Path(folder)))
        results = Path(folder) / "results"
        rows = overhead(Path(folder) / "store", results, wanted.turns, wanted.steps)
        rows.append(package(Path(folder) / "packaged", Path(folder) / "site", wanted.steps))
        table("Durations", ["", "median", "99 %", "of"], rows)
        held = memory(Path(folder) / "other", results, wanted.sessions)
        table("Memory (PSS)", ["", ""], held)
    return 0


if __name__ == "__main__":
    sys.exit(main())
