"""A step that ends the daemon, and what works on a store without one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import Refused
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import CANCELLED, ENDED, RUNNING, SUSPENDED, Thread
from engine.runtime import stop_thread
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.threads.record import FAILURE, MAX_LOST_ATTEMPTS, UNKNOWN
from engine.workflow import registry as workflows
from tests.engine.agents.test_loader import install
from tests.support.engine import (
    ONE,
    Cli,
    alive,
    carry_on,
    daemon,
    says,
    shell,
    spawn,
    start_thread,
    steps,
    until,
    workflow,
)
from tests.support.new_store import init_store

POISON = shell("kill -9 $PPID; sleep 60")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with init_store(path) as store:
        workflows.add(store, ONE)
    return path


def found(root: Path, id: str) -> Thread:
    with Store.open(root) as store:
        return threads.get(store, id)


def ended(pid: int) -> None:
    until(lambda: not alive(pid), "the end of the daemon")


def killed(root: Path, agents: dict[str, Any], **more: Any) -> str:
    """A thread whose step has ended its daemon once."""
    with daemon(root) as pid:
        with suppress(Exception):
            start_thread(root, "sample", agents, **more)
        ended(pid)
    with Store.open(root) as store:
        return threads.list_threads(store)[-1].id


def kill_again(root: Path) -> None:
    for _ in range(MAX_LOST_ATTEMPTS - 1):
        with suppress(AssertionError, IndexError), daemon(root) as pid:  # it may die at its start
            ended(pid)


@contextmanager
def holding(root: Path) -> Iterator[int]:
    answer = spawn("--store", root, "daemon", "--hold")
    pid = int(answer.stdout.split()[0])
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, 15)
        ended(pid)


def test_a_step_that_ends_the_daemon_three_times_is_suspended(root: Path) -> None:
    id = killed(root, {"a": POISON})
    kill_again(root)
    with daemon(root) as pid:
        until(lambda: found(root, id).status == SUSPENDED, "its suspension")
        record = found(root, id).record
        assert (record["cause"], record["intent"]["attempt"]) == (UNKNOWN, 3)
        assert record["reason"] == "a: outcome unknown: the daemon ended during 3 attempts"
        assert (alive(pid), daemon_socket.request(root, "status")["running"]) == (True, [])


def test_a_called_poison_step_is_suspended_with_its_caller(root: Path) -> None:
    with Store.open(root) as store:
        workflows.add(store, workflow(ONE["moderator"], name="caller", a=None))
    child = {"workflow": "sample", "agents": {"a": {"name": "command", "config": POISON}}}
    bound = {"a": {"name": "workflow", "config": child}}
    with daemon(root) as pid:
        with suppress(Exception):
            daemon_socket.request(root, "start", workflow="caller", input="x", agents=bound)
        ended(pid)
    kill_again(root)
    with daemon(root), Store.open(root) as store:
        until(lambda: all(one.status == SUSPENDED for one in threads.list_threads(store)), "rest")
        causes = {one.record["cause"] for one in threads.list_threads(store)}
        assert causes == {UNKNOWN, "child"}


def test_cancel_works_without_a_daemon(root: Path) -> None:
    with Store.open(root) as store:
        empty = {"files": [], "directories": [], "symlinks": []}
        tree = store.put_node("directory", empty).hash
    id = killed(root, {"a": POISON}, workspace=tree)
    assert os.listdir(root / "workspaces") == [id]
    answer = spawn("--store", root, "thread", "cancel", id)
    assert (answer.returncode, answer.stdout) == (0, f"{id}\n"), answer.stderr
    assert (found(root, id).status, os.listdir(root / "workspaces")) == (CANCELLED, [])
    again = spawn("--store", root, "thread", "cancel", id)
    assert (again.returncode, again.stderr) == (4, f"casfs: thread {id} is cancelled already\n")


def test_suspend_with_a_daemon_and_without_one(root: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    ask = daemon_socket.request
    with daemon(root):
        id = start_thread(root, "sample", {"a": says({}, f"[ -e {go} ] || sleep 600")})
        pid = until(lambda: (found(root, id).record["intent"] or {}).get("pid"), "its process")
        assert spawn("--store", root, "thread", "suspend", id).returncode == 0
        assert (found(root, id).status, alive(pid)) == (SUSPENDED, False)
        go.touch()
        ask(root, "resume", id=id)
        assert ask(root, "wait", id=id)["status"] == ENDED
    other = killed(root, {"a": POISON})
    assert found(root, other).status == RUNNING
    assert spawn("--store", root, "thread", "suspend", other).returncode == 0
    assert found(root, other).status == SUSPENDED


def test_while_a_daemon_runs_the_store_is_its_own(root: Path) -> None:
    with daemon(root), pytest.raises(Refused, match="is running already"):
        stop_thread.without_daemon(root, "x", stop_thread.cancel)


def test_a_daemon_that_holds_starts_nothing_by_itself(root: Path, tmp_path: Path) -> None:
    poisoned = tmp_path / "poisoned"
    poisoned.touch()
    id = killed(root, {"a": says({}, f"[ -e {poisoned} ] && kill -9 $PPID && sleep 60")})
    poisoned.unlink()
    with holding(root):
        ask = daemon_socket.request
        assert ask(root, "status")["running"] == []
        assert found(root, id).status == RUNNING
        ask(root, "resume", id=id)
        assert ask(root, "wait", id=id)["status"] == ENDED


# -- packages -----------------------------------------------------------------------------

AGENT = "package_descriptor = {{}}\ndef create_agent(config):\n    {}\n"


@pytest.mark.parametrize(
    "fault", ["raise KeyboardInterrupt", "raise SystemExit", "raise BaseException('no')"]
)
async def test_an_exception_of_a_package_hurts_only_its_step(
    fault: str, disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "bad_" + "".join(filter(str.isalpha, fault))
    install(tmp_path, "bad", module, code=AGENT.format(fault))
    monkeypatch.syspath_prepend(tmp_path)
    flow, _ = workflows.add(disk_store, ONE)
    made = lifecycle.create(disk_store, ThreadRequest(flow, "x", {"a": Binding("bad")}))
    suspended = await carry_on(disk_store, made)
    assert (suspended.status, suspended.record["cause"]) == (SUSPENDED, FAILURE)
    assert steps(disk_store, suspended) == []


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("import os\nos._exit(9)", "its import ends the process (exit code 9)"),
        ("import os\nos.kill(os.getpid(), 11)", "its import ends the process (exit code -11)"),
        ("raise KeyboardInterrupt('no')", "KeyboardInterrupt: no"),
        ("while True:\n    pass", "its import takes longer than 3 s"),
    ],
)
def test_an_import_hurts_only_its_agent(
    code: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr("engine.agents.loader.IMPORT_TIMEOUT_S", 3)
    install(tmp_path, "bad", "bad_import", code=code)
    monkeypatch.syspath_prepend(tmp_path)
    listed = {one["name"]: one for one in cli("agent", "list", "--json").json}
    assert fault in listed["bad"]["error"]
    assert "error" not in listed["command"]
