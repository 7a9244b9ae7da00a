"""The daemon's commands: status, restart, logs, unit."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

from casfs import daemon_socket
from casfs.version import VERSION
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
