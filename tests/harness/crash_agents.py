"""Kill the daemon, agents that speak ACP, and both, at random instants: is a turn lost?

The runs and what must hold are those of `crash_engine.py`; the agent is `turns_agent.py`, which
reports turns and notes each that was acknowledged. Every one of these must be in the record: in the
session of its step, or in that of a failed attempt at it; and a step's session has all its turns.

    python tests/harness/crash_agents.py --kills 200 --seed 7

exits with 1 where something was not so, and prints the seed; the store is kept then.
"""

from __future__ import annotations

import argparse
import importlib
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs.store.store import Store
from casfs.threads.threads import Thread, ThreadId
from engine.threads.agent_binding import Binding
from tests.harness.crash_engine import OneRun, Tally, ThreadCheck
from tests.harness.turns_agent import TURNS
from tests.support.engine import steps

AGENT = Path(__file__).parent / "turns_agent.py"
HELD = {"react-session": "turns", "content": "artifacts", "react-turn": "toolCalls"}


class AgentRun(OneRun):
    kills, longest = 12, 1.2  # 12: as many failed attempts as a record keeps

    def binding(self, pause: str) -> Binding:
        load = self._random.choice(("load", "new"))
        argv = [sys.executable, "-S", str(AGENT), str(self.logs), pause, load]
        return Binding("acp", {"argv": argv, "permissions": "allow"})

    def check(self, id: ThreadId) -> ThreadCheck:
        return TurnsCheck(id, self.logs)


class TurnsCheck(ThreadCheck):
    """`acknowledged`: how many turns were."""

    acknowledged = 0

    def verify(self, store: Store, thread: Thread) -> int:
        found = steps(store, thread)
        recorded = [set(titles(store, one["detail"])) for one in found]
        for one in recorded:
            assert len(one) == TURNS, f"a step with {len(one)} of {TURNS} turns"
        failed = [titles(store, hash) for one in found for hash in one["attempts"]]
        self.verify_turns(set().union(*recorded, *failed))
        return super().verify(store, thread)

    def verify_turns(self, recorded: set[str]) -> None:
        known = self.log.with_suffix(".turns").read_text().splitlines()
        missing = [title for title in known if title not in recorded]
        assert not missing, f"lost turns: {missing}"
        TurnsCheck.acknowledged += len(known)


def titles(store: Store, hash: str) -> Iterator[str]:
    """Yields the tool calls that a session, or what is left of one, holds."""
    node = store.node(hash)
    if node.type == "react-tool-call":
        yield node.payload["name"]
    for below in node.payload[HELD[node.type]] if node.type in HELD else ():
        yield from titles(store, below)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill agents and look what is remembered.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    wanted = parser.parse_args()
    importlib.import_module("acp.schema")  # once, and not in every daemon
    chance, tally = random.Random(wanted.seed), Tally()
    folder = Path(tempfile.mkdtemp(prefix="casfs-crash-"))
    begin, failed = time.monotonic(), False
    while not failed and sum(tally.kills.values()) < wanted.kills:
        place = folder / str(tally.runs)
        place.mkdir()
        try:
            AgentRun(place, chance, tally)()
        except Exception:
            traceback.print_exc()
            print(f"run {tally.runs}: kept in {place}")
            failed = True
        else:
            shutil.rmtree(place)
    kinds = ", ".join(f"{name} {count}" for name, count in tally.kills.items())
    print(
        f"kills {sum(tally.kills.values())} ({kinds}) in {tally.runs} runs, turns acknowledged"
        f" {TurnsCheck.acknowledged}, lost {int(failed)}, attempts repeated {tally.repeated},"
        f" {time.monotonic() - begin:.1f} s, seed {wanted.seed}"
    )
    if not failed:
        shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
