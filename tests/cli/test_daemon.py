"""The daemon's commands: status, restart, logs, unit."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from casfs.system import daemon_socket
from casfs.version import VERSION
from engine.runtime.daemon import STORE_GONE_INTERVAL_S
from tests.support.engine import Cli, alive, daemon, spawn


def test_status_restart_and_logs(cli: Cli) -> None:
    root = cli.root
    assert cli("daemon", "status", code=5).err.startswith("casfs: no daemon runs")
    with daemon(root) as pid:
        found = cli("daemon", "status", "--json").json
        assert (found["pid"], found["version"], found["running"]) == (pid, VERSION, [])
        assert "        running 0 of 8, queued 0\n" in cli("daemon", "status").text
        assert cli("status").err == ""
        written = json.loads((root / "daemon.json").read_text())
        (root / "daemon.json").write_text(json.dumps({**written, "version": "0.0"}))
        assert "`casfs daemon restart`" in cli("status").err
        restarted = spawn("--store", root, "daemon", "restart", "--json")
        new = json.loads(restarted.stdout)
        assert (new["before"], alive(pid)) == (pid, False)
        assert daemon_socket.request(root, "status")["pid"] == new["pid"]
        lines = cli("daemon", "logs", "-n", "1").text.splitlines()
        assert re.fullmatch(rf"\d{{4}}-\S+Z ready pid={new['pid']}.*", lines[0])
        assert cli("daemon", "logs", "--json").json_lines[-1]["event"] == "ready"
        assert cli("daemon", "stop").text == f"{new['pid']} stopped\n"


def test_systemd_is_told_when_it_is_ready(cli: Cli, tmp_path: Path) -> None:
    root = cli.root
    unit = spawn("--store", root, "daemon", "unit").stdout
    assert f"--store {root} daemon start --foreground\n" in unit
    assert "Type=notify\n" in unit
    command = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0].split()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        env = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        process = subprocess.Popen(command, env=env)
        try:
            assert systemd.recv(100) == b"READY=1"
            assert daemon_socket.request(root, "status")["pid"] == process.pid
        finally:
            process.terminate()
        assert process.wait(30) == 0


def test_a_daemon_ends_with_its_store(cli: Cli) -> None:
    root = cli.root
    started = spawn("--store", root, "daemon", "start", "--json")
    process = os.pidfd_open(json.loads(started.stdout)["pid"])
    try:
        shutil.rmtree(root)
        assert select.select([process], [], [], 60)[0] == [process]
    finally:
        os.close(process)
    assert not root.exists()


def test_a_daemon_goes_on_when_its_store_is_made_again(cli: Cli) -> None:
    """`init` of a store that is there writes its format file anew."""
    started = spawn("--store", cli.root, "daemon", "start", "--json")
    process = os.pidfd_open(json.loads(started.stdout)["pid"])
    try:
        spawn("--store", cli.root, "init")
        assert select.select([process], [], [], 3 * STORE_GONE_INTERVAL_S)[0] == []
    finally:
        spawn("--store", cli.root, "daemon", "stop")
        os.close(process)


def test_a_daemon_of_a_store_that_is_behind_a_link_is_stopped(tmp_path: Path) -> None:
    spawn("--store", tmp_path / "real/store", "init")
    (tmp_path / "linked").symlink_to("real")
    with daemon(tmp_path / "real/store") as pid:
        stopped = spawn("--store", tmp_path / "linked/../linked/store", "daemon", "stop")
        assert stopped.returncode == 0, stopped.stderr
        assert not alive(pid)


def test_stop_all_ends_the_daemons_in_the_runtime_directory(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        env = {**os.environ, "XDG_RUNTIME_DIR": short}
        assert daemon_socket.socket_path(tmp_path, env).is_relative_to(short)
        pids = []
        for name in ("one", "two"):
            root = str(tmp_path / name)
            spawn("--store", root, "init", env=env)
            started = spawn("--store", root, "daemon", "start", "--json", env=env)
            pids.append(json.loads(started.stdout)["pid"])
        (Path(short) / "casfs" / "left.sock").touch()
        stopped = json.loads(spawn("daemon", "stop", "--all", "--json", env=env).stdout)
        assert sorted(stopped["pids"]) == sorted(pids)
        assert not any(alive(pid) for pid in pids)
        assert json.loads(spawn("daemon", "stop", "--all", "--json", env=env).stdout) == {
            "pids": []
        }
