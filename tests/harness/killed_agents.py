"""Real agents that are attached, killed and started again at random, and the daemon with them.

    python -m tests.harness.killed_agents --calls 500 --seed 1

claude, codex, gemini and opencode work in three projects, from two home directories, two of them
at a time. Each call of a tool makes a file of its own, whose name says which prompt it is of. At
random an agent is killed with all its processes, and goes on with its session or begins another
one; the daemon is killed, and the next session starts it. At the end

- each call whose file is there is recorded, in the step of its prompt, with that file, or is marked
  with the reason;
- no call is in the step of another prompt, and no file in a call that did not make it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread

from casfs.attach import spool
from casfs.errors import CasfsError
from casfs.sessions import session_steps
from casfs.sessions.session_steps import CallRecord
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import sessions
from casfs.trees import tree
from tests.support import agent_model, real_agents
from tests.support.agent_model import Model, script
from tests.support.engine import until
from tests.support.new_store import init_store
from tests.support.outside_programs import PROGRAMS

PROJECTS = 3
HOMES = 2
AT_ONCE = 2
CALLS_OF_PROMPT = 6
KILLED = 0.3  # of the prompts
DAEMON_KILLED = 0.05
MAX_PROMPT_S = 120.0
MADE = re.compile(r"made/(p\d+)-(\d+)")
LABEL = re.compile(r"PROMPT (p\d+)")


@dataclass
class Agent:
    """A program in one project, from one home. `session`: which it goes on with."""

    name: str
    project: Path
    env: Mapping[str, str]
    session: str | None = None


@dataclass
class Play:
    folder: Path
    store: Store
    chance: random.Random
    agents: list[Agent] = field(default_factory=list)
    prompts: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def run(self, calls: int) -> None:
        """Has each program make at least so many calls."""
        workers = [Thread(target=self._work, args=(number, calls)) for number in range(AT_ONCE)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def _work(self, number: int, calls: int) -> None:
        mine = [agent for index, agent in enumerate(self.agents) if index % AT_ONCE == number]
        chance = random.Random(f"{self.chance.random()}{number}")
        while wanting := [agent for agent in mine if self.counts[agent.name] < calls]:
            self._ask(chance.choice(wanting), chance)
            if chance.random() < DAEMON_KILLED:
                self._kill_daemon()

    def _ask(self, agent: Agent, chance: random.Random) -> None:
        with self.lock:
            self.prompts += 1
            label = f"p{self.prompts}"
        count = chance.randint(1, CALLS_OF_PROMPT)
        lines = [f"mkdir -p made; echo x > made/{label}-{call}" for call in range(count)]
        if chance.random() < 0.3:
            lines = [f"{line}; sleep 0.{chance.randrange(1, 5)}" for line in lines]
        text = f"PROMPT {label}\n{script(*(('run', line) for line in lines), ('say', 'Done.'))}"
        kill_after = chance.uniform(0.3, 6) if chance.random() < KILLED else MAX_PROMPT_S
        ended = self._call(agent, text, kill_after)
        with self.lock:
            self.counts[agent.name] += count
            self.counts[ended] += 1
        goes_on = chance.random() < 0.6
        agent.session = self._session_of(label) if goes_on else None

    def _call(self, agent: Agent, text: str, kill_after: float) -> str:
        program = PROGRAMS[agent.name]
        argv = program.argv(agent.session)
        process = subprocess.Popen(
            argv if program.by_stdin else [*argv, text],
            cwd=agent.project,
            env={**agent.env, "PWD": str(agent.project)},
            stdin=subprocess.PIPE if program.by_stdin else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.communicate(text.encode() if program.by_stdin else None, kill_after)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "killed"
        return "ended" if process.returncode == 0 else "failed"

    def _session_of(self, label: str) -> str | None:
        """Returns the session that has this prompt, once it is recorded."""
        time.sleep(0.5)
        with Store.open(self.store.root) as store:
            for thread, about in sessions.readable(store):
                with suppress(CasfsError):
                    labels = [_label(step.prompt) for step in session_steps.load(store, thread)]
                    if label in labels:
                        return str(about["id"])
        return None

    def _kill_daemon(self) -> None:
        daemon = daemon_socket.find(self.store.root)
        if daemon is not None:
            with suppress(ProcessLookupError):
                os.kill(daemon["pid"], signal.SIGKILL)
            self.counts["daemon killed"] += 1


def _label(prompt: str) -> str | None:
    match = LABEL.search(prompt)
    return match[1] if match else None


class Wrong(Exception):
    pass


# -- what was recorded --------------------------------------------------------------------


def check(play: Play) -> None:
    """Raises Wrong."""
    expected = {
        (match[1], int(match[2]))
        for project in {agent.project for agent in play.agents}
        for path in (project / "made").glob("*")
        if (match := MADE.search(f"made/{path.name}"))
    }
    recorded: dict[tuple[str, int], str] = {}
    for thread, _ in sessions.readable(play.store):
        for step in session_steps.load(play.store, thread):
            label = _label(step.prompt)
            for call in step.calls:
                match = MADE.search(call.arguments)
                if match is None:
                    continue
                if label is None and step.prompt.startswith("("):
                    play.counts["of a session that was attached in the middle"] += 1
                elif match[1] != label:
                    raise Wrong(f"{match[0]} is recorded in the prompt {step.prompt[:60]!r}")
                key = match[1], int(match[2])
                recorded[key] = _how(play, call, match[0], is_made=key in expected)
    missing = sorted(expected - recorded.keys())
    play.counts.update(recorded.values())
    play.counts["made"] = len(expected)
    if missing:
        raise Wrong(f"{len(missing)} calls are not recorded: {missing[:20]}")


def _how(play: Play, call: CallRecord, name: str, *, is_made: bool) -> str:
    """Returns how a call is recorded. Raises Wrong where it lacks its file, or has another's, and
    says nothing of that."""
    if call.fault or call.is_unseen or not call.has_trees:
        return "marked"
    assert call.before is not None
    assert call.after is not None
    changes = tree.diff(play.store, call.before.full, call.after.full)
    made = {change.path.decode() for change in changes if change.old is None}
    own = {path for path in made if MADE.fullmatch(path)} - call.foreign.keys()
    if own == {name}:
        return "with its file"
    if not own and not is_made:
        return "killed before it was made"
    if name in call.foreign or call.is_late:
        return "marked"
    path = name.encode()
    sides = [
        tree.find(play.store, side.full, path) is not None for side in (call.before, call.after)
    ]
    raise Wrong(f"{name} is recorded with {sorted(own)}, before and after: {sides}: {call}")


# -- the whole ----------------------------------------------------------------------------


@contextmanager
def _played(seed: int) -> Iterator[Play]:
    folder = Path(tempfile.mkdtemp(prefix="casfs-killed-agents-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        store = stack.enter_context(init_store(folder / "store"))
        model = stack.enter_context(agent_model.served())
        play = Play(folder, store, random.Random(seed))
        for project in [folder / f"project{number}" for number in range(PROJECTS)]:
            project.mkdir()
            subprocess.run(["git", "init", "-q", project], check=True)
        _attach(play, model)
        try:
            yield play
        finally:
            if daemon_socket.runs(store.root):
                daemon_socket.stop(store.root)


def _attach(play: Play, model: Model) -> None:
    for number in range(HOMES):
        home = play.folder / f"home{number}"
        home.mkdir()
        for name, program in PROGRAMS.items():
            programs = f"{real_agents.install(name)}{os.pathsep}{Path(sys.executable).parent}"
            env = {**os.environ, **real_agents.set_up(name, home, model.url)}
            env |= {"PATH": f"{programs}{os.pathsep}{env['PATH']}"}
            env["CASFS_STORE"] = str(play.store.root)
            argv = [sys.executable, "-m", "casfs", "attach", program.agent, "--user"]
            if program.agent == "codex":
                argv.append("--trust")
            subprocess.run(argv, env=env, check=True, capture_output=True, cwd=play.folder)
            play.agents += [
                Agent(name, play.folder / f"project{number}", env) for number in range(PROJECTS)
            ]


def run(calls: int, seed: int) -> Counter[str]:
    with _played(seed) as play:
        play.run(calls)
        subprocess.run(
            [sys.executable, "-m", "casfs", "--store", play.store.root, "daemon"],
            capture_output=True,
        )
        until(lambda: spool.names(play.store.root) == [], "an empty spool")
        play.counts["set aside"] = spool.set_aside_count(play.store.root)
        try:
            check(play)
        except Wrong as error:
            raise Wrong(f"{error}; {dict(play.counts)}") from error
        return play.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500, help="of each agent")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        print(dict(run(options.calls, options.seed)))
    except Wrong as error:
        sys.exit(f"seed {options.seed}: {error}")


if __name__ == "__main__":
    main()
