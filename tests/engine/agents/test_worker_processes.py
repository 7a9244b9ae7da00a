"""The process of an agent package that was started before its attempt is the same as another."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from casfs.agents import messages
from casfs.agents.secrets import Secrets
from casfs.system import processes
from engine.agents.worker_processes import WorkerProcesses
from engine.processes import containment
from engine.processes.subprocesses import end_process
from tests.support.engine import alive, kill, until

TOKEN = "01JD0000000000000000000777"
PACKAGE = """
import json, os, pathlib
package_descriptor = {}
def create_agent(config):
    pathlib.Path(config["told"]).write_text(json.dumps([os.environ.copy(), os.getcwd()]))
"""


@pytest.fixture
def workers() -> Iterator[WorkerProcesses]:
    workers = WorkerProcesses()
    workers.is_daemon = True
    yield workers
    workers.close()


@pytest.fixture
def environment() -> dict[str, str]:
    own = {"HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "A_KEY": "hunter2", "EMPTY": ""}
    return {**own, processes.RUN_VARIABLE: TOKEN}


def prepared_pid(workers: WorkerProcesses) -> int:
    assert workers._prepared is not None
    return workers._prepared.process.pid


def lower_ends(pid: int) -> set[int]:
    """The processes that are the attempt's: the prepared one, or the one below that stays."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {pid, *map(int, children.split())}


async def test_it_is_as_if_it_were_started_now(
    workers: WorkerProcesses, environment: dict[str, str], tmp_path: Path
) -> None:
    confinement = containment.begin(TOKEN, {"cpuS": 77})
    (tmp_path / "told_agent.py").write_text(PACKAGE)
    told = tmp_path / "told"
    workers.prepare(environment)
    pid = prepared_pid(workers)
    process, stream = await workers.start(TOKEN, tmp_path, environment)
    try:
        assert process.pid == pid
        assert set(processes.carrying(processes.RUN_VARIABLE, TOKEN)) == lower_ends(pid)
        (player,) = lower_ends(pid) - ({pid} if len(lower_ends(pid)) > 1 else set())
        limits = Path(f"/proc/{player}/limits").read_text()
        assert next(line for line in limits.splitlines() if "cpu time" in line).split()[3] == "77"
        message = {
            "path": [str(tmp_path)], "target": "told_agent", "distribution": (None, ""),
            "config": {"told": str(told)}, "secrets": messages.from_secrets(Secrets({})),
        }  # fmt: skip
        line = json.dumps({"jsonrpc": "2.0", "method": "start", "params": message})
        await stream.send_all(line.encode() + b"\n")
        with trio.fail_after(20):
            while not told.exists() or not told.read_text():
                await trio.sleep(0.01)
        assert json.loads(told.read_text()) == [environment, str(tmp_path)]
    finally:
        await end_process(process)
        await stream.aclose()
        await confinement.close()
    assert not alive(pid)
    assert list(processes.carrying(processes.RUN_VARIABLE, TOKEN)) == []


async def start_and_end(
    workers: WorkerProcesses, environment: dict[str, str], directory: Path | str = "/"
) -> int:
    """Returns the pid of the process of an attempt."""
    process, stream = await workers.start(TOKEN, directory, environment)
    await end_process(process)
    await stream.aclose()
    return process.pid


@pytest.mark.parametrize("name", ["LC_ALL", "HOME", "PYTHONHASHSEED", "LD_BIND_NOW"])
async def test_another_environment_at_the_start(
    name: str, workers: WorkerProcesses, environment: dict[str, str]
) -> None:
    workers.prepare(environment)
    pid = prepared_pid(workers)
    assert await start_and_end(workers, {**environment, name: "1"}) != pid
    assert await start_and_end(workers, environment | {"OTHER": "1"}) == pid


async def test_one_that_has_ended_is_replaced(
    workers: WorkerProcesses, environment: dict[str, str]
) -> None:
    workers.prepare(environment)
    pid = prepared_pid(workers)
    kill(pid)
    assert await start_and_end(workers, environment) != pid
    workers.prepare(environment)
    os.kill(prepared_pid(workers), signal.SIGKILL)
    until(lambda: not alive(prepared_pid(workers)))
    before = prepared_pid(workers)
    workers.prepare(environment)
    assert prepared_pid(workers) != before


async def test_what_cannot_be_started_is_an_error_as_without_it(
    workers: WorkerProcesses, environment: dict[str, str], tmp_path: Path
) -> None:
    workers.prepare(environment)
    with pytest.raises(FileNotFoundError):
        await workers.start(TOKEN, tmp_path / "none", environment)
    assert list(processes.carrying(processes.RUN_VARIABLE, TOKEN)) == []


async def test_without_a_daemon_nothing_is_started_ahead(environment: dict[str, str]) -> None:
    workers = WorkerProcesses()
    workers.prepare(environment)
    assert workers._prepared is None


async def test_closing_ends_it(workers: WorkerProcesses, environment: dict[str, str]) -> None:
    workers.prepare(environment)
    pid = prepared_pid(workers)
    workers.close()
    assert not alive(pid)
