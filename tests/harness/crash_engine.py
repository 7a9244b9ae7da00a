"""Kill the daemon, agents, and both, at random instants: does the engine keep its word?

A run is one thread of a looping workflow whose agent leaves a trace in a log outside its
workspace, and one inside. While it goes, SIGKILLs fall; a daemon that was killed is followed by
another one. What must hold:

- no step is lost, doubled or half: the chain counts from 1 to the last, every step has all its
  nodes, and its workspace has the trace of each step up to it exactly once;
- what was seen recorded once stays recorded, and the status is right whenever one looks: running
  with the next step in flight until the end, and then ended;
- an agent runs once for each step, and once more at most for each kill; and never beside another.

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
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs import threads
from casfs.graph import walk
from casfs.store import Store
from casfs.system import processes
from casfs.system.log import silent
from casfs.threads import ENDED, RUNNING
from engine.runtime import daemon
from engine.threads import lifecycle, record
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from tests.support.engine import role, rule, shell, steps

FORK = multiprocessing.get_context("fork")
LENGTH = 6  # steps of a thread
KILLS = 4  # of a run, at most
LONGEST = 0.35  # seconds between two kills
TIMEOUT_S = 30.0  # seconds that a run may take after its last kill
TARGETS = ("daemon", "agent", "both")
AGENT = r"""
echo "begin $CASFS_STEP $CASFS_RUN" >>"$1"
echo "$CASFS_STEP" >>seen
sleep 0.03
echo "end $CASFS_STEP $CASFS_RUN" >>"$1"
printf '%s\n' '```json' '{}' '```'
"""
RULES = [rule("__start__", "a"), rule("a", "a")]  # maxRounds is the end: nothing to evaluate


@dataclass
class Tally:
    runs: int = 0
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TARGETS, 0))
    repeated: int = 0
    looks: int = 0

    @property
    def killed(self) -> int:
        return sum(self.kills.values())


class OneRun:
    def __init__(self, folder: Path, chance: random.Random, tally: Tally) -> None:
        self.root, self.log = folder / "store", folder / "log"
        self.socket = folder / "own" / "s"
        self._random = chance
        self._tally = tally
        self._kills = 0
        self._known: list[str] = []  # steps that were seen recorded
        self._daemon: BaseProcess | None = None

    def __call__(self) -> None:
        self._in_a_fork(self._prepare)
        try:
            for _ in range(self._random.randint(1, KILLS)):
                self._serve()
                self._watch(time.monotonic() + self._random.uniform(0, LONGEST))
                self._kill(self._random.choice(TARGETS))
            self._serve()
            self._watch(time.monotonic() + TIMEOUT_S, to_the_end=True)
        finally:
            self._end_daemon()
        with Store.open(self.root) as store:
            self._verify(store)
        self._tally.runs += 1

    def _prepare(self) -> None:
        with Store.init(self.root) as store:
            hash = put_workflow(store)
            tree = store.put_node("directory", {"files": [], "directories": [], "symlinks": []})
            bound = {"a": Binding("command", shell(AGENT, str(self.log)))}
            lifecycle.create(
                store, ThreadRequest(hash, "Do it.", bound, tree.hash, LENGTH, on_limit="end")
            )

    # -- what happens -------------------------------------------------------------------------

    def _in_a_fork(self, action: Any) -> None:
        """A store must not be open in a process that is forked."""
        process = FORK.Process(target=action)
        process.start()
        process.join()
        assert process.exitcode == 0, f"exit {process.exitcode}"

    def _serve(self) -> None:
        if self._daemon is None:
            self._daemon = FORK.Process(target=serve, args=(self.root, self.socket))
            self._daemon.start()

    def _kill(self, target: str) -> None:
        hit = False
        if target != "agent" and self._daemon is not None:
            self._daemon.kill()
            self._daemon.join()
            hit = self._daemon.exitcode == -signal.SIGKILL
            self._daemon = None
        if target != "daemon":
            hit |= self._kill_agent()
        if hit:
            self._kills += 1
            self._tally.kills[target] += 1

    def _kill_agent(self) -> bool:
        with Store.open(self.root) as store:
            intent = threads.list_threads(store)[0].record["intent"] or {}
        pid, started = intent.get("pid"), intent.get("pidStart")
        if not pid or processes.start_time(pid) != started:
            return False
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        return True

    def _end_daemon(self) -> None:
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.join()
            self._daemon = None

    # -- what must hold -----------------------------------------------------------------------

    def _watch(self, until: float, *, to_the_end: bool = False) -> None:
        with Store.open(self.root) as store:
            while self._look(store) == RUNNING and time.monotonic() < until:
                time.sleep(self._random.uniform(0, 0.02))
            if to_the_end:
                assert self._look(store) == ENDED, "the thread did not come to its end"

    def _look(self, store: Store) -> str:
        """What one sees now follows from what was seen before, and is whole."""
        self._tally.looks += 1
        (thread,) = threads.list_threads(store)
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

    def _verify(self, store: Store) -> None:
        (thread,) = threads.list_threads(store)
        found = steps(store, thread)
        assert [step["index"] for step in found] == list(range(1, LENGTH + 1))
        for _ in walk(store, [thread.hash]):
            pass
        for step in found:
            (seen,) = store.node(step["workspace"]).payload["files"]
            traces = store.get(seen["digest"]["hash"]).decode().split()
            assert traces == [str(index) for index in range(1, step["index"] + 1)], traces
        self._verify_log()

    def _verify_log(self) -> None:
        lines = [line.split() for line in self.log.read_text().splitlines()]
        begun = [(int(step), run) for what, step, run in lines if what == "begin"]
        assert [step for step, _ in begun] == sorted(step for step, _ in begun)
        missing = set(range(1, LENGTH + 1)) - {step for step, _ in begun}
        assert not missing, f"steps that were never begun: {missing}"
        assert len({run for _, run in begun}) == len(begun), "a try was started twice"
        repeated = len(begun) - LENGTH
        assert repeated <= self._kills, f"{repeated} repeated runs by {self._kills} kills"
        self._tally.repeated += repeated
        newest = ""
        for what, _, run in lines:
            newest = run if what == "begin" else newest
            assert run == newest, "an agent lived on beside its successor"


def put_workflow(store: Store) -> str:
    """One role, again and again. `workflow add` would refuse it: it has no end of its own."""
    body = role("a")
    schema = store.put_node("role-schema", body["schema"]).hash
    policy = {"retries": KILLS + 1}
    part = store.put_node("role", {**body, "schema": schema, "policy": policy}).hash
    flow = {"name": "looping", "description": "", "roles": {"a": part}, "moderator": RULES}
    return store.put_node("workflow", flow).hash


def serve(root: Path, socket: Path) -> None:
    """Be a daemon, in a process that was forked."""
    record.MAX_LOST_ATTEMPTS = KILLS + 1  # every kill may hit the same step
    daemon.serve(root, socket, dict(os.environ), 8, None, silent, lambda: None)


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
    print(
        f"runs {tally.runs}, kills {tally.killed} ({kinds}), repeated {tally.repeated},"
        f" looks {tally.looks}, losses {int(failed)}, {time.monotonic() - begin:.1f} s,"
        f" seed {wanted.seed}"
    )
    if not failed:
        shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
