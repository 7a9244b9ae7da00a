"""Two processes with one action: single-flight, and what happens when one is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from casfs.system import processes
from casfs.system.processes import Identity
from tests.support.actions import PATH, Bench
from tests.support.engine import alive, kill, pids, until

SCRIPT = """
import sys
from pathlib import Path
from casfs.actions import key, runner
from casfs.store.store import Store

store, root, script = sys.argv[1:]
tell = lambda line: print(line, flush=True)
with Store.open(Path(store)) as store:
    request = key.request(
        ["sh", "-c", script], directory=Path(root), working_directory=Path(root),
        env={"PATH": %r}, outputs=["out"],
    )
    streams = runner.Streams(sys.stderr.buffer, sys.stderr.buffer, tell)
    done = runner.run(store, request, streams, cached=True)
    print("done", done.hit, done.exit_code, flush=True)
"""


@dataclass
class Other:
    """A process that runs an action, and what it told so far."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.said.append(line.rstrip("\n"))

    def has_said(self, beginning: str) -> bool:
        return any(line.startswith(beginning) for line in self.said)


@pytest.fixture
def others(bench: Bench) -> Iterator[Any]:
    started: list[Other] = []

    def start(script: str) -> Other:
        argv = [sys.executable, "-c", SCRIPT % PATH, str(bench.store.root), str(bench.root), script]
        started.append(Other(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        one.listener.join()


def test_two_at_once_run_once(bench: Bench, others: Any) -> None:
    go = bench.root.parent / "go"
    script = f"echo run >> ../runs; until test -e {go}; do sleep 0.02; done; echo 1 > out"
    first = others(script)
    until(lambda: (bench.root.parent / "runs").exists())
    second = others(script)
    until(lambda: second.has_said("waiting for "))
    go.touch()
    until(lambda: first.has_said("done ") and second.has_said("done "))
    assert first.said[-1] == "done False 0"
    assert second.said[-1] == "done True 0"
    assert (bench.root.parent / "runs").read_text() == "run\n"
    assert list((bench.store.root / "locks").iterdir()) == []


def test_a_waiter_runs_what_failed(bench: Bench, others: Any) -> None:
    go = bench.root.parent / "go"
    script = f"echo run >> ../runs; until test -e {go}; do sleep 0.02; done; exit 1"
    first = others(script)
    until(lambda: (bench.root.parent / "runs").exists())
    second = others(script)
    until(lambda: second.has_said("waiting for "))
    go.touch()
    until(lambda: first.has_said("done ") and second.has_said("done "))
    assert first.said[-1] == second.said[-1] == "done False 1"
    assert (bench.root.parent / "runs").read_text() == "run\nrun\n"


def test_when_the_runner_is_killed_the_waiter_runs(bench: Bench, others: Any) -> None:
    go, runs = bench.root.parent / "go", bench.root.parent / "runs"
    script = f"echo $$ >> ../runs; until test -e {go}; do sleep 0.02; done; echo 1 > out"
    first = others(script)
    until(lambda: pids(runs))
    second = others(script)
    until(lambda: second.has_said("waiting for "))
    orphan = pids(runs)[0]
    kill(first.process.pid)
    until(lambda: len(pids(runs)) == 2)
    assert not alive(orphan), "two runs of one action would write the same outputs"
    assert second.has_said(f"ended process {orphan}, ")
    go.touch()
    until(lambda: second.has_said("done "))
    assert second.said[-1] == "done False 0"
    assert (bench.root / "out").read_text() == "1\n"


# -- processes --------------------------------------------------------------------------------


def test_an_identity_is_not_taken_for_another() -> None:
    mine = Identity.of(os.getpid())
    assert Identity.parse(str(mine)) == mine
    assert mine.lives()
    assert not Identity(mine.pid, mine.started + 1).lives()
    assert not processes.end(Identity(mine.pid, mine.started + 1)), "and this test goes on"
    for text in ("", "1", "a b", "1 2 3"):
        assert Identity.parse(text) is None
