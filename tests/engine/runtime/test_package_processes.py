"""Packages under a daemon: whatever their process does, the daemon and other threads go on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import CANCELLED, ENDED, SUSPENDED, Thread
from engine.workflow import registry as workflows
from tests.engine.agents.test_worker import install_odd
from tests.support.engine import ONE, alive, daemon, kill, pids, says, spawn, steps, until
from tests.support.new_store import init_store

MAX_DAEMON_MB = 450  # it parses an output of 64 MiB


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(install_odd(tmp_path / "packages")))
    with init_store(tmp_path / "store") as store:
        workflows.add(store, ONE)
        workflows.add(store, {**ONE, "name": "inner"})
    return tmp_path / "store"


def start(root: Path, do: str, **config: Any) -> str:
    agent = {"name": "odd", "config": {"do": do, **config}}
    asked = {"workflow": "sample", "input": "x", "agents": {"a": agent}}
    return str(daemon_socket.request(root, "start", **asked)["id"])


def wait(root: Path, id: str) -> Thread:
    daemon_socket.request(root, "wait", id=id)
    return found(root, id)


def found(root: Path, id: str) -> Thread:
    with Store.open(root) as store:
        return threads.get(store, id)


def blocked(root: Path, tmp_path: Path, do: str = "block_loop") -> tuple[str, int]:
    """A thread whose package blocks, and its process."""
    id = start(root, do, go=str(tmp_path / "go"), pids=str(tmp_path / "pids"))
    (pid,) = until(lambda: pids(tmp_path / "pids"), "its process")
    return id, pid


@pytest.mark.parametrize("do", ["block_loop", "block_thread"])
def test_one_that_blocks_is_cancelled_and_delays_no_other(
    do: str, root: Path, tmp_path: Path
) -> None:
    with daemon(root):
        id, pid = blocked(root, tmp_path, do)
        agents = {"a": {"name": "command", "config": says({})}}
        other = daemon_socket.request(root, "start", workflow="sample", input="x", agents=agents)
        assert wait(root, other["id"]).status == ENDED
        assert spawn("--store", root, "thread", "cancel", id).returncode == 0
        assert (found(root, id).status, alive(pid)) == (CANCELLED, False)


def test_the_limit_of_seconds_and_the_end_of_the_daemon(root: Path, tmp_path: Path) -> None:
    config = f'{{"do": "block_loop", "go": "{tmp_path}/go", "pids": "{tmp_path}/pids"}}'
    with daemon(root):
        options = ["--agent", f"a=odd:{config}", "--input", "x", "--max-seconds", "2", "--wait"]
        answer = spawn("--store", root, "thread", "start", "sample", *options)
        assert answer.returncode == 7
        assert "budget" in answer.stderr
        (tmp_path / "pids").unlink()
        _, pid = blocked(root, tmp_path)
        assert spawn("--store", root, "daemon", "stop").returncode == 0
        assert not alive(pid)


def test_a_killed_daemon_takes_it_along_and_the_next_one_runs_the_step(
    root: Path, tmp_path: Path
) -> None:
    with daemon(root) as pid:
        id, process = blocked(root, tmp_path)
        kill(pid)
        until(lambda: not alive(process), "the end of the package's process")
    (tmp_path / "go").touch()
    with daemon(root):
        assert wait(root, id).status == ENDED
    with Store.open(root) as store:
        assert len(steps(store, threads.get(store, id))) == 1


def test_one_that_is_killed_suspends_its_thread(root: Path, tmp_path: Path) -> None:
    with daemon(root):
        id, process = blocked(root, tmp_path)
        kill(process)
        now = wait(root, id)
        assert now.status == SUSPENDED
        assert "was ended by SIGKILL: about to block" in now.record["reason"]
        (tmp_path / "go").touch()
        daemon_socket.request(root, "resume", id=id)
        assert wait(root, id).status == ENDED


def test_a_question_is_answered_and_a_thread_called(root: Path) -> None:
    with daemon(root):
        id = start(root, "ask")
        assert wait(root, id).record["cause"] == "human"
        answer = spawn("--store", root, "thread", "resume", id, "--input", "Because.", "--wait")
        assert answer.returncode == 0, answer.stderr
        agent = {"name": "command", "config": says({})}
        assert wait(root, start(root, "call", tasks=["one"], agent=agent)).status == ENDED


def test_an_output_of_200_mb_costs_the_daemon_little(root: Path) -> None:
    with daemon(root) as pid:
        now = wait(root, start(root, "much", count=200 << 20))
        assert now.record["reason"] == "a: its output has more than 64 MiB"
        status = Path(f"/proc/{pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert peak is not None
        assert int(peak[1]) < MAX_DAEMON_MB << 10
        assert wait(root, start(root, "exit_")).status == SUSPENDED
        assert alive(pid)
