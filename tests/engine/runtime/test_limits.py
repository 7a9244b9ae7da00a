"""Limits of roles and agents, what a killed daemon leaves, and what outlives a step on purpose."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import Invalid
from casfs.store.store import Store
from casfs.system import cgroups, daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED
from engine.processes import containment
from engine.workflow import registry as workflows
from engine.workflow.definition import check
from tests.support.engine import (
    ONE,
    Cli,
    alive,
    begin,
    carry_on,
    daemon,
    kill,
    pids,
    says,
    shell,
    spawn,
    start_thread,
    steps,
    until,
)

HOG = f"exec {sys.executable} -c 'x = b\"x\" * (300 << 20)'"


def limited(**limits: Any) -> dict[str, Any]:
    """The workflow ONE with limits of its role."""
    return {**ONE, "roles": {"a": {**ONE["roles"]["a"], "policy": {"limits": limits}}}}


@pytest.fixture
def defaults() -> Iterator[None]:
    yield
    containment.set_defaults({})


@pytest.fixture
def pid_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "pids"
    yield file
    for pid in pids(file):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


async def test_a_step_says_what_held(disk_store: Store, defaults: None) -> None:
    containment.set_defaults({"cpuS": 100, "network": True})
    agent = {**says({"status": "done"}), "limits": {"memory": "1G", "cpuS": 50}}
    ended = await carry_on(disk_store, begin(disk_store, limited(memory="2G"), {"a": agent}))
    assert (ended.status, ended.record["reason"]) == (ENDED, None)
    held = steps(disk_store, ended)[0]["containment"]
    here = containment.support()
    assert held == {
        "method": here.method,
        "limits": {
            "memory": {"limit": 2 << 30, "by": here.holders["memory"]},
            "cpuS": {"limit": 50, "by": here.holders["cpuS"]},
        },
    }


async def test_the_reason_names_the_limit(disk_store: Store) -> None:
    if containment.support().holders["memory"] != "cgroup":
        pytest.skip("no control groups with limits here")
    agents = {"a": shell(HOG)}
    ended = await carry_on(disk_store, begin(disk_store, limited(memory="64M"), agents))
    assert ended.status == SUSPENDED
    assert ended.record["reason"].endswith("; ended by its memory limit of 64M")
    assert ended.record["reason"].startswith("a: ")


def test_the_limits_of_a_role_are_checked() -> None:
    faults = check(limited(memory="2 GB", network="off", disk=1)).errors
    path = "$.roles.a.policy.limits"
    assert [fault.partition(": ")[0] for fault in faults] == [
        f"{path}.memory",
        f"{path}.network",
        f"{path}.disk",
    ]


def test_the_limits_of_an_agent_are_checked(disk_store: Store) -> None:
    with pytest.raises(Invalid, match=r"config\.limits\.processes: must be a whole number"):
        begin(disk_store, ONE, {"a": {**says({}), "limits": {"processes": "many"}}})


def test_settings_are_the_default_and_status_says_what_holds(cli: Cli) -> None:
    with Store.open(cli.root) as store:
        workflows.add(store, ONE)
    (cli.root / "config.toml").write_text('[limits]\nmemory = "3G"\n')
    with daemon(cli.root):
        held = cli("status", "--json").json["daemon"]["containment"]
        assert held["method"] in (containment.CGROUP, containment.PARENT)
        assert set(held["limits"]) == {"memory", "processes", "cpuS", "network"}
        assert f"        attempts held by {held['method']}; limits: cpuS by " in cli("status").text
        id = start_thread(cli.root, "sample", {"a": says({})})
        assert daemon_socket.request(cli.root, "wait", id=id)["status"] == ENDED
    with Store.open(cli.root) as store:
        step = steps(store, threads.get(store, threads.ThreadId(id)))[0]
        assert step["containment"]["limits"]["memory"]["limit"] == 3 << 30
    (cli.root / "config.toml").write_text('[limits]\nmemory = "much"\n')
    refused = spawn("--store", cli.root, "daemon")
    assert refused.returncode != 0
    assert "limits.memory: must be a number of bytes, or a text like 2G" in refused.stderr


def test_what_a_killed_daemon_left_ends_with_the_next(tmp_path: Path, pid_file: Path) -> None:
    """Also where nothing carries the token any more."""
    root = tmp_path / "store"
    with Store.init(root) as store:
        workflows.add(store, ONE)
    code = f"""
import os, resource, signal
hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
resource.setrlimit(resource.RLIMIT_RTTIME, (hard, hard))
if os.fork():
    signal.pause()
os.setsid()
with open({str(pid_file)!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
os.execve("/bin/sleep", ["sleep", "600"], {{}})
"""
    (tmp_path / "escape.py").write_text(code)
    with daemon(root) as pid:
        agent = {"argv": [sys.executable, str(tmp_path / "escape.py")]}
        start_thread(root, "sample", {"a": agent})
        until(lambda: pids(pid_file), "the process of the step")
        kill(pid)
    (first,) = pids(pid_file)
    if containment.support().method == containment.CGROUP:
        assert alive(first)
    started = spawn("--store", root, "daemon", "start", "--hold")
    assert started.returncode == 0, started.stderr
    assert not alive(first)
    spawn("--store", root, "daemon", "stop")
    assert not cgroups.named(f"{containment.store_key(root)}-")


def test_a_daemon_started_by_a_step_outlives_it(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with Store.init(other) as store:
        workflows.add(store, ONE)
    with Store.open(cli.root) as store:
        workflows.add(store, ONE)
    with daemon(cli.root):
        start = f"{sys.executable} -m casfs --store {other} daemon start >&2"
        id = start_thread(cli.root, "sample", {"a": says({}, start)})
        ended = daemon_socket.request(cli.root, "wait", id=id)
        assert ended["status"] == ENDED, ended
        try:
            inner = start_thread(other, "sample", {"a": says({})})
            assert daemon_socket.request(other, "wait", id=inner)["status"] == ENDED
        finally:
            assert spawn("--store", other, "daemon", "stop").returncode == 0
