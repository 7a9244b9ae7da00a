"""Kill daemons, stop and cut off machines, kill the database under a shared store, at random:
what is lost, and how long do threads stand still?

Daemons of several machines (tests/support/machines.py) run the threads of one store on PostgreSQL
and SeaweedFS. One machine at least is sound at any time. What must hold is in `chaos_check.py`.

    python tests/harness/chaos_shared.py --daemons 3 --threads 50 --kills 100 --seconds 600 --seed 7

exits with 1 where something was not so, and prints the seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.harness import chaos_check
from tests.harness.chaos_check import Fault
from tests.support.engine import rule, workflow
from tests.support.machines import Machine, machines
from tests.support.postgres_server import PostgresServer, run_postgres
from tests.support.s3_servers import CREDENTIALS, run_seaweedfs

AGENT = Path(__file__).with_name("chaos_agent.sh")
TTL_S = 10.0
PAUSES = "0,0,0.05,0.3,2"  # seconds that an agent takes, one for all steps of a thread
RETRIES = 12  # a step may be hit by many faults
LARGE_EVERY = 10  # steps
FREEZE_S = 15.0  # more than the TTL
END_S = 120.0  # that the threads may take to end
LOOK_S = 3.0  # between two looks at the threads
META = {
    "name": "mark",
    "type": "object",
    "properties": {"mark": {"type": "string"}, "stop": {"type": "boolean"}},
    "required": ["mark", "stop"],
}
GOES_ON = "$last('a').meta.stop = false"
RULES = [rule("__start__", "a"), rule("a", "a", GOES_ON), rule("a", "__end__")]


class Chaos:
    """One run. `faults`: what was done, and when. `resumed`: how many threads were suspended since
    one step was hit too often."""

    def __init__(
        self, team: list[Machine], postgres: PostgresServer, logs: Path, wanted: argparse.Namespace
    ) -> None:
        self.team, self.logs, self.faults = team, logs, list[Fault]()
        self._postgres, self._wanted = postgres, wanted
        self._chance = random.Random(wanted.seed)
        self._sound = {machine.name for machine in team}
        self._due: list[tuple[float, Callable[[], None]]] = []  # what ends a fault
        self._looked = 0.0
        self.resumed = 0

    def __call__(self) -> chaos_check.Measures:
        self._start()
        begin = time.monotonic()
        plan = self._plan()
        for at, fault in plan:
            while time.monotonic() < begin + at or not self._may(fault):
                self._settle()
                time.sleep(0.02)
            fault()
        while time.monotonic() < begin + self._wanted.seconds or self._due:
            self._settle()
            time.sleep(0.02)
        self._finish()
        roots = [machine.root for machine in self.team]
        return chaos_check.check_machines(roots, self.logs, self.faults)

    def _start(self) -> None:
        first = self.team[0]
        value = workflow(RULES, "chaos", a=META)
        value["roles"]["a"]["policy"] = {"retries": RETRIES}
        first.casfs("workflow", "add", "-", stdin=json.dumps(value))
        for machine in self.team:
            machine.casfs("config", "set", "runs.limit", str(self._wanted.threads))
            machine.start_daemon()
        with ThreadPoolExecutor(4) as pool:
            [*pool.map(self._start_thread, range(self._wanted.threads))]

    def _start_thread(self, number: int) -> None:
        pauses = self._wanted.pauses.split(",")
        pause = pauses[number % len(pauses)]
        argv = ["bash", str(AGENT), str(self.logs), pause, str(LARGE_EVERY)]
        agent = "command:" + json.dumps({"argv": argv})
        machine = self.team[number % len(self.team)]
        options = ["--agent", agent, "--max-steps", "1000000"]
        id = machine.casfs("thread", "start", "chaos", "--input", "Go on.", *options).split()[0]
        (self.logs / id).touch()

    # -- faults ---------------------------------------------------------------------------

    def _plan(self) -> list[tuple[float, Callable[[], None]]]:
        """The faults in their order, with the earliest time of each."""
        wanted, kinds = self._wanted, list[Callable[[], None]]()
        kinds += [self._kill] * wanted.kills + [self._cut] * wanted.cuts
        kinds += [self._freeze] * wanted.freezes + [self._kill_database] * wanted.database_kills
        kinds += [self._die] * wanted.deaths
        self._chance.shuffle(kinds)
        times = sorted(self._chance.uniform(0, wanted.seconds) for _ in kinds)
        return [*zip(times, kinds, strict=True)]

    def _may(self, fault: Callable[[], None]) -> bool:
        """One machine is sound afterwards; the database is killed where nothing else happens."""
        needed = len(self.team) if fault == self._kill_database else min(2, len(self.team))
        return len(self._sound) >= needed

    def _settle(self) -> None:
        """Ends the faults that are due, and looks at the threads."""
        now = time.monotonic()
        for one in [one for one in self._due if one[0] <= now]:
            self._due.remove(one)
            one[1]()
        if now > self._looked + LOOK_S and self._sound:
            self._looked = now
            self._look()

    def _look(self) -> None:
        """No fault suspends a thread, but several in a row that hit the same step."""
        machine = self._pick()
        for one in machine.json("thread", "list"):
            if one["status"] == "suspended" and one["cause"] == "unknown":
                machine.casfs("thread", "resume", one["id"])
                self.resumed += 1
            else:
                assert one["status"] in ("running", "queued"), f"{machine.name} sees {one}"

    def _pick(self) -> Machine:
        name = self._chance.choice(sorted(self._sound))
        return next(one for one in self.team if one.name == name)

    def _hit(self, kind: str, machine: Machine, seconds: float, end: Callable[[], Any]) -> None:
        """Notes a fault that has begun, and has it ended later."""
        self._sound.discard(machine.name)
        begin = time.time()

        def over() -> None:
            end()
            self._sound.add(machine.name)
            self.faults.append(Fault(kind, machine.name, begin, time.time()))
            self._say(f"{kind} {machine.name}: {time.time() - begin:.1f} s")

        self._due.append((time.monotonic() + seconds, over))

    def _say(self, text: str) -> None:
        if self._wanted.verbose:
            print(clock(time.time()), text, flush=True)

    def _kill(self) -> None:
        machine = self._pick()
        self._hit("daemon killed", machine, self._chance.uniform(0, 5), machine.start_daemon)
        machine.kill_daemon()

    def _die(self) -> None:
        machine = self._pick()
        self._hit(
            "machine dead",
            machine,
            self._chance.uniform(0, self._wanted.longest / 2),
            machine.start_daemon,
        )
        machine.die()

    def _freeze(self) -> None:
        machine, whole = self._pick(), self._chance.random() < 0.5
        kind = "machine stopped" if whole else "daemon stopped"
        self._hit(kind, machine, FREEZE_S, machine.thaw)
        machine.freeze(agents=whole)

    def _cut(self) -> None:
        machine = self._pick()
        servers: list[Any] = self._chance.choice((["database"], ["objects"], []))
        kind = f"cut of {servers[0] if servers else 'both'}"
        seconds = self._chance.uniform(1, self._wanted.longest)
        self._hit(kind, machine, seconds, lambda: machine.heal(*servers))
        machine.cut(*servers)

    def _kill_database(self) -> None:
        begin = time.time()
        self._postgres.kill()
        time.sleep(self._chance.uniform(0, 3))
        self._postgres.start()
        self.faults.append(Fault("database killed", None, begin, time.time()))
        self._say(f"database killed: {time.time() - begin:.1f} s")

    # -- the end --------------------------------------------------------------------------

    def _finish(self) -> None:
        (self.logs / "stop").touch()
        end = time.monotonic() + END_S
        while True:
            found = self.team[0].json("thread", "list")
            if not any(one["status"] in ("running", "queued") for one in found):
                break
            assert time.monotonic() < end, f"did not end: {found}"
            time.sleep(0.5)
        for machine in self.team:
            machine.stop_daemon()


def run(wanted: argparse.Namespace) -> bool:
    """Whether all was well."""
    os.environ.update(CREDENTIALS)
    folder = Path(tempfile.mkdtemp(prefix="casfs-chaos-"))
    logs = folder / "logs"
    logs.mkdir()
    begin, failed, measures = time.monotonic(), False, chaos_check.Measures()
    with ExitStack() as stack:
        postgres = stack.enter_context(run_postgres())
        seaweedfs = stack.enter_context(run_seaweedfs(folder))
        team = stack.enter_context(
            machines(postgres, seaweedfs, wanted.daemons, joined=not wanted.local)
        )
        if wanted.local:
            team[0].casfs("init")
        chaos = Chaos(team, postgres, logs, wanted)
        try:
            measures = chaos()
        except Exception:
            traceback.print_exc()
            failed = True
        for machine in team:
            shutil.copytree(machine.root / "log", folder / f"log-{machine.name}")
    pauses = sorted(measures.pauses, reverse=True)
    over = [pause for pause in pauses if pause.seconds > TTL_S + 1]
    kinds = Counter(fault.kind for fault in chaos.faults)
    faults = ", ".join(f"{name} {count}" for name, count in kinds.items())
    print(
        f"faults {len(chaos.faults)} ({faults}), threads {wanted.threads},"
        f" steps {measures.steps}, failed {int(failed)}, resumed {chaos.resumed},"
        f" runs repeated {measures.repeated}, beside another {measures.beside},"
        f" longest pause {pauses[0].seconds if pauses else 0:.1f} s,"
        f" {len(over)} over {TTL_S + 1:.0f} s,"
        f" {time.monotonic() - begin:.0f} s, seed {wanted.seed}"
    )
    for one in over if wanted.verbose else []:
        print(f"{one.seconds:.1f} s {one.thread} until {clock(one.until)}")
        for fault in one.faults:
            print(f"    {fault.kind} {fault.machine}: {clock(fault.begin)} - {clock(fault.end)}")
    if failed or wanted.keep:
        print(f"logs are kept in {folder}")
    else:
        shutil.rmtree(folder)
    return not failed


def clock(at: float) -> str:
    return time.strftime("%T", time.localtime(at)) + f"{at % 1:.1f}"[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description="Break machines and look what a team remembers.")
    parser.add_argument("--daemons", type=int, default=3)
    parser.add_argument("--threads", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--deaths", type=int, default=0)
    parser.add_argument("--freezes", type=int, default=0)
    parser.add_argument("--cuts", type=int, default=0)
    parser.add_argument("--longest", type=float, default=30, help="seconds of a cut")
    parser.add_argument("--pauses", default=PAUSES, help="seconds that the agents of threads take")
    parser.add_argument("--database-kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--local", action="store_true", help="a store of its own, of one machine")
    parser.add_argument("--keep", action="store_true", help="keep the logs also where all is well")
    parser.add_argument("--verbose", action="store_true")
    return int(not run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
