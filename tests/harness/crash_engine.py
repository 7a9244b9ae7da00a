"""Kill the daemon, agents, and both, at random instants: does the engine keep its word?

A run is a few threads of a looping workflow, started together in one daemon, so that steps of
several are committed in one group (`engine.runtime.commit_queue`). An agent leaves a trace in its
thread's log outside the workspace, and one inside. SIGKILLs fall, some of them while such a group
is committed; a daemon that was killed is followed by another one. What must hold for each thread:

- no step is lost, doubled or half: the chain counts from 1 to the last, every step has all its
  nodes, and its workspace has the trace of each step up to it exactly once, and of no other thread;
- what was seen recorded once stays recorded, and the status is right whenever one looks: running
  with the next step in flight until the end, and then ended;
- an agent runs once for each step, and once more at most for each kill that hit while the step was
  pending; and never beside another of its thread.

    python tests/harness/crash_engine.py --runs 300 --seed 7

exits with 1 where something was not so, and prints the seed; the store is kept then. Daemons are
forked, so the next one works within milliseconds and the kills fall on work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs.store.graph import walk
from casfs.store.store import Store
from casfs.system import processes
from casfs.threads import threads
from casfs.threads.threads import ENDED, RUNNING, Thread, ThreadId
from casfs.trees.recorded_state import RecordedState
from engine.runtime import commit_queue, daemon
from engine.runtime.daemon import DaemonSettings
from engine.threads import lifecycle, record
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from tests.support.engine import role, rule, shell, steps

FORK = multiprocessing.get_context("fork")
LENGTH = 10  # steps of a thread
KILLS = 6  # of a run, at most
RETRIES = 16  # more than the kills of a run
LONGEST = 0.3  # seconds between two kills; a daemon takes some 0.15 to begin
AIM_S = 0.3  # seconds to wait for a group of several steps to hit
TIMEOUT_S = 30.0  # seconds that a run may take after its last kill
TARGETS = ("daemon", "agent", "both")
PAUSES = ("0", "0", "0.005", "0.03")  # seconds that an agent takes, for one of a thread
DELAYS = (0.0, 0.004)  # seconds, at most, before and after each commit of a run: a slow disk
COMMITS, GROUPS, SIZE = range(3)  # commits, those of several steps, steps of the one in progress
AGENT = r"""
log="$1/$CASFS_THREAD"
echo "begin $CASFS_STEP $CASFS_RUN" >>"$log"
echo "$CASFS_STEP" >>"seen-$CASFS_THREAD"
[ "$2" = 0 ] || sleep "$2"
echo "end $CASFS_STEP $CASFS_RUN" >>"$log"
printf '%s\n' '```json' '{}' '```'
"""
RULES = [rule("__start__", "a"), rule("a", "a")]  # maxRounds is the end: nothing to evaluate


@dataclass
class Tally:
    runs: int = 0
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TARGETS, 0))
    in_groups: int = 0
    repeated: int = 0
    looks: int = 0
    commits: Any = field(default_factory=lambda: FORK.RawArray("i", 3))  # shared with daemons


class OneRun:
    kills, longest = KILLS, LONGEST

    def __init__(self, folder: Path, chance: random.Random, tally: Tally) -> None:
        self.root, self.logs = folder / "store", folder / "logs"
        self.socket = folder / "own" / "s"
        self._random = chance
        self._tally = tally
        self._pauses = [chance.choice(PAUSES) for _ in range(chance.randint(3, 4))]
        self._delay = chance.choice(DELAYS)
        self._daemon: BaseProcess | None = None

    def __call__(self) -> None:
        process = FORK.Process(target=self._prepare)  # no store is open in a process that is forked
        process.start()
        process.join()
        assert process.exitcode == 0, f"exit {process.exitcode}"
        self._checks = {one.id: self.check(one.id) for one in self._heads()}
        try:
            for _ in range(self._random.randint(1, self.kills)):
                self._serve()
                if not self._watch(time.monotonic() + self._random.uniform(0, self.longest)):
                    break
                self._kill(self._random.choice(TARGETS))
            self._serve()
            assert not self._watch(time.monotonic() + TIMEOUT_S), "a thread did not end"
        finally:
            if self._daemon is not None:
                self._daemon.terminate()
                self._daemon.join()
        with Store.open(self.root) as store:
            for thread in threads.list_threads(store):
                self._tally.repeated += self._checks[thread.id].verify(store, thread)
        self._tally.runs += 1

    def _prepare(self) -> None:
        self.logs.mkdir()
        with Store.init(self.root) as store:
            hash = put_workflow(store)
            tree = store.put_node("directory", {"files": [], "directories": [], "symlinks": []})
            for pause in self._pauses:
                bound = {"a": self.binding(pause)}
                request = ThreadRequest(
                    hash,
                    "Do it.",
                    bound,
                    workspace=RecordedState(tree.hash),
                    max_steps=LENGTH,
                    on_limit="end",
                )
                lifecycle.create(store, request)

    def binding(self, pause: str) -> Binding:
        """The agent of a thread."""
        return Binding("command", shell(AGENT, str(self.logs), pause))

    def check(self, id: ThreadId) -> ThreadCheck:
        return ThreadCheck(id, self.logs)

    def _serve(self) -> None:
        if self._daemon is None:
            given = (self.root, self.socket, self._tally.commits, self._delay)
            self._daemon = FORK.Process(target=serve, args=given)
            self._daemon.start()

    def _watch(self, until: float) -> bool:
        """Looks at all threads until then; returns whether one still runs."""
        with Store.open(self.root) as store:
            while (running := self._look(store)) and time.monotonic() < until:
                time.sleep(self._random.uniform(0, 0.02))
        return running

    def _look(self, store: Store) -> bool:
        self._tally.looks += 1
        found = {thread.id: thread for thread in threads.list_threads(store)}
        assert found.keys() == self._checks.keys(), "a thread is lost"
        return RUNNING in [check.look(store, found[id]) for id, check in self._checks.items()]

    def _heads(self) -> list[Thread]:
        with Store.open(self.root) as store:
            return threads.list_threads(store)

    def _kill(self, target: str) -> None:
        hit = set() if target == "agent" else self._kill_daemon()
        hit |= set() if target == "daemon" else self._kill_agent()
        for id, index in hit:
            self._checks[id].kills[index] += 1
        self._tally.kills[target] += bool(hit)

    def _kill_daemon(self) -> set[tuple[ThreadId, int]]:
        """Returns the threads with a pending step, and its index."""
        assert self._daemon is not None
        commits = self._tally.commits
        end = time.monotonic() + self._random.choice((0, AIM_S))
        while commits[SIZE] < 2 and time.monotonic() < end:
            time.sleep(0.0001)
        time.sleep(self._random.uniform(0, 0.003))
        self._daemon.kill()
        self._daemon.join()
        assert self._daemon.exitcode == -signal.SIGKILL, "the daemon ended by itself"
        self._daemon = None
        self._tally.in_groups += commits[SIZE] > 1
        commits[SIZE] = 0
        return {(one.id, step["index"]) for one in self._heads() if (step := one.record["intent"])}

    def _kill_agent(self) -> set[tuple[ThreadId, int]]:
        """Kills the agent of one thread, where one lives; returns the same of that thread."""
        for thread in self._random.sample(found := self._heads(), len(found)):
            intent = thread.record["intent"]
            pid = intent and intent["pid"]
            if pid and processes.start_time(pid) == intent["pidStart"]:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                return {(thread.id, intent["index"])}
        return set()


class ThreadCheck:
    """What was seen of one thread, and what must hold for it. `kills`: those that hit a step while
    it was pending, by its index."""

    def __init__(self, id: ThreadId, logs: Path) -> None:
        self.id, self.log = id, logs / id
        self.kills: Counter[int] = Counter()
        self._known: list[str] = []  # steps that were seen recorded

    def look(self, store: Store, thread: Thread) -> str:
        """What one sees now follows from what was seen before, and is whole."""
        chain = [ref.hash for ref in threads.steps(store, thread)]
        assert chain[: len(self._known)] == self._known, "a recorded step is lost"
        self._known = chain
        intent = thread.record["intent"]
        if thread.status == RUNNING:
            assert intent is not None or not chain, "it runs, and nothing is in flight"
            assert intent is None or intent["index"] == len(chain) + 1, "the wrong step"
        else:
            assert (thread.status, len(chain), intent) == (ENDED, LENGTH, None), thread.record
        return thread.status

    def verify(self, store: Store, thread: Thread) -> int:
        """Checks a thread that has ended; returns how many runs of its agent were repeated."""
        found = steps(store, thread)
        assert [step["index"] for step in found] == list(range(1, LENGTH + 1))
        assert [*walk(store, [thread.hash])]
        for step in found:
            (seen,) = store.node(step["workspace"]).payload["files"]
            assert seen["name"] == f"seen-{self.id}", "the workspace of another thread"
            traces = store.get(seen["digest"]["hash"]).decode().split()
            assert traces == [str(index) for index in range(1, step["index"] + 1)], traces
        return self.verify_log()

    def verify_log(self) -> int:
        lines = [line.split() for line in self.log.read_text().splitlines()]
        begun = [int(step) for what, step, _ in lines if what == "begin"]
        assert begun == sorted(begun)
        missing = set(range(1, LENGTH + 1)) - {*begun}
        assert not missing, f"steps that were never begun: {missing}"
        runs = {run for what, _, run in lines if what == "begin"}
        assert len(runs) == len(begun), "a try was started twice"
        repeated = Counter(begun) - Counter(range(1, LENGTH + 1))
        assert repeated <= self.kills, f"repeated runs: {repeated}, kills: {self.kills}"
        newest = ""
        for what, _, run in lines:
            newest = run if what == "begin" else newest
            assert run == newest, "an agent lived on beside its successor"
        return len(begun) - LENGTH


def put_workflow(store: Store) -> str:
    """One role, again and again. `workflow add` would refuse it: it has no end of its own."""
    body = role("a")
    schema = store.put_node("role-schema", body["schema"]).hash
    more = {"schema": schema, "policy": {"retries": RETRIES}}
    part = store.put_node("role", body | more).hash
    flow = {"name": "looping", "description": "", "roles": {"a": part}, "moderator": RULES}
    return store.put_node("workflow", flow).hash


def serve(root: Path, socket: Path, commits: Any, delay: float) -> None:
    """Be a daemon, in a process that was forked."""
    record.MAX_LOST_ATTEMPTS = RETRIES  # every kill may hit the same step
    publish_group = commit_queue.publish_group

    def counted(backend: Any, group: Any) -> Any:
        commits[COMMITS] += 1
        commits[GROUPS] += len(group) > 1
        commits[SIZE] = len(group)
        time.sleep(random.uniform(0, delay))
        results = publish_group(backend, group)
        time.sleep(random.uniform(0, delay))
        commits[SIZE] = 0
        return results

    commit_queue.publish_group = counted
    daemon.serve(root, socket, DaemonSettings(dict(os.environ), 8), lambda: None)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the engine and look what it remembers.")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    wanted = parser.parse_args()
    chance, tally = random.Random(wanted.seed), Tally()
    folder = Path(tempfile.mkdtemp(prefix="casfs-crash-"))
    begin, failed = time.monotonic(), False
    for number in range(wanted.runs):
        place = folder / str(number)
        place.mkdir()
        try:
            OneRun(place, chance, tally)()
        except Exception:
            traceback.print_exc()
            print(f"run {number}: kept in {place}")
            failed = True
            break
        shutil.rmtree(place)
    kinds = ", ".join(f"{name} {count}" for name, count in tally.kills.items())
    commits, several, _ = tally.commits
    print(
        f"runs {tally.runs}, kills {sum(tally.kills.values())} ({kinds}; {tally.in_groups} within"
        f" the commit of several steps), commits {commits} ({several} of several steps),"
        f" repeated {tally.repeated}, looks {tally.looks}, losses {int(failed)},"
        f" {time.monotonic() - begin:.1f} s, seed {wanted.seed}"
    )
    if not failed:
        shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
