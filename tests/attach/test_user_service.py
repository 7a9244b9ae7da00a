"""The daemon as a service of systemd. None runs on the machines of these tests: what it would be
told is written down by a program in its place, and the unit is checked by systemd's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from casfs.attach import user_service
from casfs.errors import Failed, Refused
from casfs.system import daemon_socket
from tests.support import programs
from tests.support.engine import Cli

SYSTEMCTL = """#!/bin/sh
echo "$@" >>{log}
[ "$3" != "{fails}" ] || {{ echo "no bus" >&2; exit 1; }}
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which a stand-in for systemctl writes its arguments, a line for each call."""
    stand_in(tmp_path, monkeypatch)
    return tmp_path / "said"


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str = "-") -> None:
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(SYSTEMCTL.format(log=tmp_path / "said", fails=fails))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("name", ["store", "a store", "100%", "$HOME", 'a"b', "it's"])
def test_the_unit_is_one(tmp_path: Path, name: str) -> None:
    programs.require("systemd-analyze")
    file = tmp_path / "casfs.service"
    file.write_text(user_service.unit(tmp_path / name, {"PATH": "/a b:/c", "CASFS_X": "1"}))
    assert verified(file) == []
    file.write_text(file.read_text().replace("ExecStart=", "ExecStart=not-absolute'"))
    assert verified(file) != [], "what is wrong is seen"


def verified(file: Path) -> list[str]:
    """What systemd has to say of a unit."""
    argv = ["systemd-analyze", "--man=no", "verify", file]
    ended = subprocess.run(argv, capture_output=True, text=True)
    return [line for line in ended.stderr.splitlines() if file.name in line]


def test_a_variable_with_a_dollar_sign(tmp_path: Path) -> None:
    text = user_service.unit(tmp_path / "$HOME", {"CASFS_X": "a$b %"})
    assert 'Environment="CASFS_X=a$b %%"' in text
    assert "/$$HOME daemon start" in text


def test_a_path_that_no_unit_can_have(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot have"):
        user_service.unit(tmp_path / "a\nExecStart=/bin/sh", {})


def test_from_attach_to_detach(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Path
) -> None:
    project(tmp_path, monkeypatch)
    file = user_service.unit_file(cli.root, os.environ)
    assert f"{file} starts the daemon" in cli("attach", "claude", "--dry-run").text
    assert not file.exists()
    try:
        cli("attach", "claude")
        assert f"--store {cli.root} daemon start --foreground" in file.read_text()
        told = said.read_text().splitlines()[-3:]
        assert told == [
            "--user --quiet daemon-reload",
            f"--user --quiet enable {file.name}",
            f"--user --quiet start {file.name}",
        ]
        cli("attach", "claude", "--user")
        cli("detach", "claude")
        assert file.exists(), "something is attached still"
        cli("detach", "claude", "--user")
        assert not file.exists()
        assert f"--user --quiet disable {file.name}" in said.read_text()
    finally:
        if daemon_socket.runs(cli.root):
            daemon_socket.stop(cli.root)


def test_without_systemd(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Path
) -> None:
    stand_in(tmp_path, monkeypatch, fails="show-environment")
    project(tmp_path, monkeypatch)
    try:
        assert "service" not in cli("attach", "claude").text
        assert daemon_socket.find(cli.root) is not None
        assert not user_service.unit_file(cli.root, os.environ).exists()
        cli("detach", "claude")
    finally:
        daemon_socket.stop(cli.root)


def test_a_service_that_cannot_be_made(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Path
) -> None:
    stand_in(tmp_path, monkeypatch, fails="enable")
    with pytest.raises(Failed, match=r"enable .*: no bus"):
        user_service.install(cli.root, os.environ)
