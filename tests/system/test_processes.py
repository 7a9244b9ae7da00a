"""Whom a signal may reach: no process but the one that was meant, never all of them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from pathlib import Path
from unittest.mock import patch

from casfs.system import processes
from casfs.system.processes import RUN_VARIABLE, Identity, start_time
from engine.processes.subprocesses import end_orphans
from tests.support.engine import alive, until


def test_a_group_is_ended_only_where_pid_start_time_and_token_match() -> None:
    token = secrets.token_hex(8)
    env = {RUN_VARIABLE: token}
    with subprocess.Popen(["/bin/sleep", "600"], env=env, start_new_session=True) as orphan:
        try:
            born = start_time(orphan.pid)
            assert born is not None
            end_orphans("none", orphan.pid, born)  # a record that names a process of another
            end_orphans(None, orphan.pid, born)
            assert not processes.end(Identity(orphan.pid, born + 1), token)  # the id was reused
            assert alive(orphan.pid)
            assert processes.end(Identity(orphan.pid, born), token)
            until(lambda: not alive(orphan.pid), "the orphan's end")
        finally:
            orphan.kill()


def test_no_signal_goes_to_all_processes() -> None:
    """killpg(1) is kill(-1), and killpg(0) our own group."""
    init = start_time(1)
    assert init is not None
    with patch("os.killpg", side_effect=AssertionError("a signal to all")):
        for pid in (-1, 0, 1):
            processes.send(pid, signal.SIGKILL)
            assert not processes.end(Identity(pid, init))


def test_the_pid_of_a_process_in_a_container(tmp_path: Path) -> None:
    """It is the child of `unshare`, whatever it is called in there."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    say = "readlink /proc/self/ns/pid > temp; mv temp said; sleep 60"
    argv = [*unshare, "--mount-proc", "sh", "-c", say]
    with subprocess.Popen(argv, cwd=tmp_path) as process:
        try:
            until((tmp_path / "said").exists, "its namespace")
            namespace = (tmp_path / "said").read_bytes().strip()
            pid = processes.of_namespace(1, namespace)
            assert processes.parent(pid) == process.pid
            assert processes.of_namespace(10**6, namespace) == 0
        finally:
            process.kill()
    until(lambda: processes.of_namespace(1, namespace) == 0, "its end")
    own = os.readlink(b"/proc/self/ns/pid")
    assert processes.of_namespace(os.getpid(), own) == os.getpid()
