"""Workflows and agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import casfs
from engine.agents import loader
from tests.support.cli import DEVELOP, UNKNOWN, written
from tests.support.engine import (
    STATUS,
    Cli,
    rule,
    workflow,
)


def test_workflows(cli: Cli, tmp_path: Path) -> None:
    added = cli("workflow", "add", DEVELOP)
    assert added.text == f"{added.word} develop\n"
    assert (added.err, cli("workflow", "add", DEVELOP).word) == ("", added.word)
    assert cli("workflow", "list").text == f"develop\t{added.word}\t\n"
    shown = cli("workflow", "show", "develop", "--json")
    assert shown.json == json.loads(DEVELOP.read_text())
    assert cli("workflow", "add", "-", stdin=shown.out).word == added.word
    for name in ("develop", added.word, added.word[:8]):
        assert "  __start__ -> planner\n" in cli("workflow", "show", name).text
    assert cli("workflow", "validate", DEVELOP).text == "ok\n"
    assert cli("workflow", "validate", DEVELOP, "--json").json == {"errors": [], "warnings": []}


def test_a_workflow_with_warnings_is_added_all_the_same(cli: Cli, tmp_path: Path) -> None:
    rules = [rule("__start__", "a"), rule("a", "__end__", "$steps[-1].role = 'odd'")]
    file = written(tmp_path / "w.json", workflow(rules, a=STATUS))
    answer = cli("workflow", "add", file)
    assert answer.err.startswith(f"casfs: warning: {file}: ")
    assert cli("workflow", "validate", file).text.startswith("warning: ")
    shown = cli("workflow", "add", file, "--json").json
    assert (shown["hash"], len(shown["warnings"])) == (answer.word, answer.err.count("\n"))


def test_a_workflow_with_errors_is_told_all_of_them(cli: Cli, tmp_path: Path) -> None:
    rules = [rule("__start__", "b"), rule("a", "__end__", "(")]
    file = written(tmp_path / "w.json", workflow(rules, a=None))
    lines = cli("workflow", "validate", file, code=4).text.splitlines()
    assert {line.split(":")[0] for line in lines} == {"error"}
    assert any("unknown role 'b'" in line for line in lines)
    shown = cli("workflow", "validate", "-", "--json", stdin=file.read_bytes(), code=4).json
    assert [f"error: {error}" for error in shown["errors"]] == lines


def test_what_is_next(cli: Cli, tmp_path: Path) -> None:
    cli("workflow", "add", DEVELOP)
    planned = [{"role": "planner", "meta": {"status": "planned", "phases": [{"hash": UNKNOWN}]}}]
    steps = json.dumps(planned).encode()
    for source in ("develop", DEVELOP):
        assert cli("workflow", "next", source, "--steps", "-", stdin=b"[]").text == "planner\n"
        assert cli("workflow", "next", source, "--steps", "-", stdin=steps).text == "coder\n"
    aborted = written(tmp_path / "s.json", [{"role": "planner", "meta": {"status": "aborted"}}])
    assert cli("workflow", "next", "develop", "--steps", aborted).text == "__end__\n"
    shown = cli("workflow", "next", "develop", "--steps", aborted, "--json").json
    assert (shown["next"], shown["returnCode"]) == ("__end__", 0)
    shown = cli("workflow", "next", "develop", "--steps", "-", "--json", stdin=steps).json
    assert shown == {"next": "coder"}


def test_agents(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "torn-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torn\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[casfs.agents]\ntorn = nothing_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    lines = cli("agent", "list").text.splitlines()
    assert f"command\t{casfs.__version__}\tok" in lines
    assert any(line.startswith("torn\t\tbroken: agent torn: does not load") for line in lines)
    shown = {one["name"]: one for one in cli("agent", "list", "--json").json}
    assert shown["command"]["capabilities"] == ["run"]
    assert "does not load" in shown["torn"]["error"]
    described = cli("agent", "describe", "command").json
    assert described["configSchema"] == loader.load("command").descriptor["configSchema"]
    assert cli("agent", "describe", "command", "--json").json == described
    cli.refused("agent", "describe", "torn", code=1)
    cli.refused("agent", "describe", "nobody", code=3)


def test_no_role_is_next_to_one_that_does_not_exist(cli: Cli) -> None:
    cli("workflow", "add", DEVELOP)
    steps = b'[{"role": "plannr", "meta": {}}]'
    message = cli.refused("workflow", "next", "develop", "--steps", "-", stdin=steps, code=3)
    assert "no role 'plannr'" in message
