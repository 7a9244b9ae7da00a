"""Kill an attached agent, its hooks, the daemon at random instants: is an event lost, or doubled?

    python -m tests.harness.session_kills --kills 200 --seed 1

An agent is a process that reports prompts and calls by the hook program, and notes each that has
answered. It is killed with its hook, in the midst of one, and another one begins a session; or the
daemon is killed, and started again. At the end every noted event is in the record once, and none of
the others more than once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from casfs.attach import spool
from casfs.maintenance import fsck
from casfs.sessions import session_steps
from casfs.threads import sessions
from tests.support.engine import kill, spawn, until
from tests.support.new_store import init_store
from tests.support.sessions import ClaudeEvents, report

CALLS = 4  # of a prompt
LONGEST_S = 1.2  # until the next kill
AGENT = "import sys; from tests.harness.session_kills import play; play(*sys.argv[1:])"


def play(root: str, project: str, session: str, log: str) -> None:
    """Reports events until it is killed."""
    events = ClaudeEvents(Path(project), session=session)
    with open(log, "a") as noted:

        def tell(name: str, payload: dict[str, object]) -> None:
            report(Path(root), payload)
            print(name, file=noted, flush=True)

        tell("begin", events.payload("SessionStart", source="startup"))
        prompt = 0
        while True:
            prompt += 1
            tell(f"prompt {prompt}", events.prompt(f"prompt {prompt}"))
            for number in range(CALLS):
                id = f"c{prompt}-{number}"
                tell(f"call {id}", events.call(id, command="x"))
                Path(project, "file").write_text(f"{session} {id}")
                tell(f"result {id}", events.result(id, response=id))
            tell(f"answer {prompt}", events.stop(f"answer {prompt}"))


class Run:
    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.store = init_store(folder / "store")
        self.root = self.store.root
        self.project = folder / "project"
        self.project.mkdir()
        self.logs = folder / "logs"
        self.logs.mkdir()
        self._chance = chance
        self.kills: Counter[str] = Counter()
        spool.prepare(self.root, os.environ)
        (self.root / "hooks/start-daemon").write_text("#!/bin/sh\n")

    def start_agent(self) -> subprocess.Popen[bytes]:
        session = f"s{self.kills['agent']}"
        argv = [sys.executable, "-c", AGENT, self.root, self.project, session, self.logs / session]
        return subprocess.Popen(argv, start_new_session=True)

    def start_daemon(self) -> int:
        started = spawn("--store", self.root, "daemon")
        assert started.returncode == 0, started.stderr
        return int(started.stdout.split()[0])

    def play(self, kills: int) -> None:
        agent = self.start_agent()
        daemon = self.start_daemon()
        while self.kills.total() < kills:
            time.sleep(self._chance.random() * LONGEST_S)
            victim = self._chance.choice(("agent", "daemon", "both"))
            if victim != "daemon":
                os.killpg(agent.pid, signal.SIGKILL)  # with the hook that it runs
                agent.wait()
                self.kills["agent"] += 1
                agent = self.start_agent()
            if victim != "agent":
                kill(daemon)
                self.kills["daemon"] += 1
                daemon = self.start_daemon()
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
        until(lambda: spool.names(self.root) == [], "an empty spool")
        kill(daemon)

    def check(self) -> tuple[int, list[str]]:
        """Returns how many events were noted, and what is wrong."""
        recorded = {
            sessions.about(self.store, thread)["id"]: thread
            for thread in sessions.newest_first(self.store)
        }
        count = 0
        faults = [str(fault) for fault in fsck.check(self.store).faults]
        for log in self.logs.iterdir():
            noted = log.read_text().splitlines()
            count += len(noted)
            thread = recorded.get(log.name)
            seen: Counter[str] = Counter()
            if thread is not None:
                for step in session_steps.load(self.store, thread):
                    seen[step.prompt] += 1
                    for call in step.calls:
                        seen[f"call {call.id}"] += 1
                        seen[f"result {call.id}"] += call.status != "in_progress"
            expected = [name for name in noted if name.split()[0] in ("prompt", "call", "result")]
            faults += [f"{log.name}: lost {name}" for name in expected if not seen[name]]
            faults += [
                f"{log.name}: {count} times {name}" for name, count in seen.items() if count > 1
            ]
        if spool.set_aside_count(self.root):
            faults.append("events were set aside")
        return count, faults


def run(kills: int, seed: int) -> tuple[dict[str, int], int, list[str]]:
    with tempfile.TemporaryDirectory(prefix="session-kills-") as folder:
        played = Run(Path(folder), random.Random(seed))
        try:
            played.play(kills)
            return dict(played.kills), *played.check()
        finally:
            played.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    kills, count, faults = run(options.kills, options.seed)
    print(json.dumps({"kills": kills, "events": count, "faults": faults}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
