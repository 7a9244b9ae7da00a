"""`casfs action`: what is said where, exit codes, and what opts in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import Cli, alive, pids, spawn, until
from tests.support.helpers import write_tree


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is in one of its own."""
    monkeypatch.chdir(write_tree(tmp_path / "project", {"in": b"in\n", "sub": {}}))


def run(cli: Cli, *arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """`casfs action run`, as a process: it may say more than a line, and fail."""
    return spawn("--store", cli.root, "action", "run", *arguments, **more)


def test_a_miss_and_a_hit(cli: Cli) -> None:
    argv = ("--output", "out", "--cache", "--", "sh", "-c", "cp in out; echo said; echo err >&2")
    first = run(cli, *argv)
    assert (first.returncode, first.stdout) == (0, "said\n")
    miss, err = first.stderr.splitlines()
    assert miss.startswith("casfs: action miss ")
    assert miss.endswith(": no earlier run of this command is cached")
    assert err == "err"
    Path("out").unlink()
    second = run(cli, *argv)
    assert (second.returncode, second.stdout) == (0, "said\n")
    err, hit = second.stderr.splitlines()
    assert err == "err"
    assert hit.startswith("casfs: action hit ")
    assert hit.endswith(" s saved")
    assert Path("out").read_text() == "in\n"


def test_the_exit_code_is_the_commands(cli: Cli) -> None:
    for script, code in (("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)):
        for cache in ([], ["--cache"]):
            assert run(cli, *cache, "--", "sh", "-c", script).returncode == code
    late = run(cli, "--timeout", "0.2", "--", "sleep", "1000")
    assert late.returncode == 124
    assert late.stderr.endswith("casfs: action ended at the time limit of 0.2 s\n")
    none = run(cli, "--", "nonesuch")
    assert none.returncode == 3
    assert none.stderr.endswith("casfs: no program 'nonesuch' on the PATH\n")


def test_what_opts_in(cli: Cli) -> None:
    (cli.root / "config.toml").write_text('actions.cacheable = ["echo", "sh -c true"]\n')

    def caches(*argv: str) -> bool:
        return "not cached" not in run(cli, "--", *argv).stderr

    assert caches("echo", "x")
    assert caches("sh", "-c", "true")
    assert not caches("sh", "-c", "echo")
    assert not caches("sh", "-c", "true; true")
    assert not caches("true", "echo")
    assert [one["argv0"] for one in cli("action", "list", "--json").json] == ["sh", "echo"]
    shown = {one["name"]: one for one in cli("config", "--json").json}
    assert shown["actions.cacheable"]["value"] == ["echo", "sh -c true"]


def test_the_preset_is_off_and_suggested_until_something_is_cached(cli: Cli) -> None:
    preset = '["builds-tests-lints"]'
    command = ["--", "make", "--version"]
    first = run(cli, *command).stderr
    assert "not cached" in first
    assert f"casfs config set actions.cacheable '{preset}'" in first
    assert "builds-tests-lints" not in run(cli, "--", "true").stderr
    (cli.root / "config.toml").write_text(f"actions.cacheable = {preset}\n")
    run(cli, *command)
    assert "hit" in run(cli, *command).stderr
    (cli.root / "config.toml").unlink()
    assert "builds-tests-lints" not in run(cli, *command).stderr


def test_a_setting_that_is_no_command_is_refused(cli: Cli) -> None:
    (cli.root / "config.toml").write_text('actions.cacheable = [""]\n')
    assert "would allow every command" in cli.refused("action", "run", "--", "true", code=4)


def test_without_dashes_the_options_of_the_command_are_its_own(cli: Cli) -> None:
    assert run(cli, "ls", "--all", "-1").stdout.split() == [".", "..", "in", "sub"]


def test_nothing_comes_from_stdin_and_the_environment_is_small(cli: Cli) -> None:
    env = {**os.environ, "CC": "gcc", "SECRET": "x"}
    done = run(cli, "--env", "CC", "--", "env", env=env, input="typed")
    assert sorted(line.split("=")[0] for line in done.stdout.splitlines()) == ["CC", "PATH"]
    assert run(cli, "--", "cat", input="typed").stdout == ""


def test_json(cli: Cli) -> None:
    argv = ("--json", "--cache", "--", "sh", "-c", "echo said")
    first, second = (run(cli, *argv) for _ in range(2))
    assert "said\n" in first.stderr
    one, two = json.loads(first.stdout), json.loads(second.stdout)
    assert (one["hit"], two["hit"]) == (False, True)
    assert one["action"] == two["action"]
    assert one["result"] == two["result"]
    assert two["exitCode"] == 0


def test_lookup(cli: Cli) -> None:
    argv = ("--output", "out", "--", "cp", "in", "out")
    err = cli("action", "lookup", *argv, code=3).err
    assert err.startswith("casfs: miss ")
    assert err.endswith(": no earlier run of this command is cached\n")
    assert not Path("out").exists()
    result = json.loads(run(cli, "--json", "--cache", *argv).stdout)["result"]
    assert cli("action", "lookup", *argv).word == result
    shown = cli("action", "lookup", "--json", *argv).json
    assert shown["hash"] == result
    assert cli("node", "get", result).json["type"] == "action-result"
    Path("in").write_text("changed")
    assert cli("action", "lookup", *argv, code=3).err.endswith(": input tree differs: in\n")


def test_list(cli: Cli) -> None:
    assert cli("action", "list").text == ""
    assert cli("action", "list", "--json").json == []
    key = json.loads(run(cli, "--json", "--cache", "--", "true").stdout)["action"]
    run(cli, "--json", "--cache", "--", "sh", "-c", "echo two words")
    last, first = (line.split("\t") for line in cli("action", "list").text.splitlines())
    assert (first[0], first[3], last[3]) == (key, "true", "sh -c 'echo two words'")
    assert last[2].endswith(" s")
    assert cli("action", "list", "--json").json[0]["command"] == "sh -c 'echo two words'"
    shown = cli("action", "show", last[0][:12]).text.splitlines()
    assert shown[0] == "command: sh -c 'echo two words'"
    assert any(line.startswith("env: PATH=") for line in shown)
    value = cli("action", "show", key, "--json").json
    assert (value["key"]["argv"], value["result"]["action"]) == (["true"], key)


def test_input_directories(cli: Cli, tmp_path: Path) -> None:
    other = write_tree(tmp_path / "other", {"file": b"there\n"})
    assert run(cli, "--input", other, "--", "cat", "file").stdout == "there\n"
    assert run(cli, "--input", "..", "--", "cat", "in").stdout == "in\n", "it runs here"
    assert "no directory" in cli.refused("action", "run", "--input", "none", "--", "true", code=3)
    message = cli.refused("action", "run", "--output", "../x", "--", "true", code=4)
    assert "not inside the input directory" in message


def test_default_excludes_are_left_out_only_by_an_option(cli: Cli) -> None:
    write_tree(Path("__pycache__"), {"x": b"1"})
    cases = ((), True), (("--no-default-excludes",), True), (("--default-excludes",), False)
    for options, differs in cases:
        argv = (*options, "--", "true")
        Path("__pycache__/x").write_text("1")
        run(cli, "--cache", *argv)
        Path("__pycache__/x").write_text("2")
        cli("action", "lookup", *argv, code=3 if differs else 0)


def test_a_signal_ends_the_command_too(cli: Cli, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f"echo $$ >> {note}; sleep 1000"
    argv = [sys.executable, "-m", "casfs", "--store", str(cli.root), "action", "run", "--cache"]
    process = subprocess.Popen([*argv, "--", "sh", "-c", script], stderr=subprocess.DEVNULL)
    (command,) = until(lambda: pids(note))
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    until(lambda: not alive(command))
