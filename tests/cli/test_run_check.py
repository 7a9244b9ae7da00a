"""`casfs run --check`: done means checked, by a command in the thread's result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import AgentContext
from casfs.agents.prompt import Prompt
from casfs.store.store import Store
from engine.agents.command import MAX_CHECK_CHARS, create_agent
from engine.workflow import registry as workflows
from tests.cli.test_run import spawned
from tests.support.agents import RUN
from tests.support.engine import DEADLINE, ONE, OPEN, Cli, until

# Writes `good` once its prompt has what the check printed, the command and the exit code.
MENDS = """cat >"$CASFS_STORE/prompt"
test -e junk && exit 9
grep -q 'exit code 3' "$CASFS_STORE/prompt" && grep -q '    not good' "$CASFS_STORE/prompt" &&
    grep -q 'test -e good' "$CASFS_STORE/prompt" && echo yes >good
echo tried >>tries
"""
CHECK = """test ! -e junk || exit 9
touch junk
test -e good || { echo '```'; echo not good >&2; exit 3; }"""


@pytest.fixture
def folder(own_daemon: None, tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "mends").write_text(MENDS)
    return directory


def over(text: str) -> dict[str, Any]:
    (event,) = [line for line in map(json.loads, text.splitlines()) if line.get("event") == "over"]
    return event


def test_a_check_that_passes_at_once(cli: Cli, folder: Path) -> None:
    command = ("run", "command:sh mends", "x", folder, "--check", "touch junk; test -e tries")
    said = cli(*command, "--apply").text
    assert "succeeded: checked by `touch junk; test -e tries`, " in said
    assert "step 3" not in said
    assert sorted(path.name for path in folder.iterdir()) == ["mends", "tries"]
    assert over(cli("run", "--continue", "@last", folder, "--json").text)["checked"] is True


def test_the_agent_gets_the_output_and_mends(cli: Cli, folder: Path) -> None:
    said = cli("run", "command:sh mends", "x", folder, "--check", CHECK, "--apply").text
    assert "step 2 check: failed, " in said
    assert "step 4 check: passed, " in said
    assert sorted(path.name for path in folder.iterdir()) == ["good", "mends", "tries"]
    assert (folder / "tries").read_text() == "tried\n" * 2
    assert " 4 check          passed " in cli("thread", "show", "@last").text


def test_nothing_is_applied_after_the_last_try(cli: Cli, folder: Path) -> None:
    command = ("command:sh mends", "x", "--check", "exit 4", "--tries", "2", "--apply")
    code, said, _ = spawned(cli, folder, *command)
    assert code == 1
    assert "failed: `exit 4` ended with exit code 4 in the last of 2 tries, " in said
    assert "step 5" not in said
    assert "not applied, since it has failed; `casfs thread apply " in said
    code, events, _ = spawned(cli, folder, *command, "--json")
    assert (code, over(events)["checked"]) == (1, False)
    assert [path.name for path in folder.iterdir()] == ["mends"]
    cli("thread", "apply", "@last", folder)
    assert (folder / "tries").read_text() == "tried\n" * 2


def test_an_agent_that_gives_up_is_not_checked(cli: Cli, folder: Path) -> None:
    (folder / "mends").write_text('printf \'```json\n{"status": "failed"}\n```\n\'')
    code, said, err = spawned(cli, folder, "command:sh mends", "x", "--check", "true")
    assert code == 1
    assert "check:" not in said
    assert "no rule matches after agent" in err


def test_a_killed_command_line_ends_no_check(cli: Cli, folder: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    go = tmp_path / "go"
    check = f"touch {begun}; until [ -e {go} ]; do sleep 0.01; done"
    argv = [sys.executable, "-m", "casfs", "--store", str(cli.root), "run"]
    argv += ["command:sh mends", "x", str(folder), "--check", check]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(begun.exists)
        process.kill()
        process.wait(DEADLINE)
    go.touch()
    said = cli("run", "--continue", "@last", folder, "--apply").text
    assert "succeeded: checked by " in said
    assert (folder / "tries").exists()


def test_what_is_wrong_is_said_before_anything_starts(cli: Cli, folder: Path) -> None:
    def refused(*options: str, target: str = "command:x") -> str:
        return cli.refused("run", target, "x", folder, *options, code=2)

    assert "--check: the command is empty; give one" in refused("--check", " ")
    assert "--tries is for --check; give --check COMMAND" in refused("--tries", "2")
    for tries in ("0", "21"):
        assert "1<=x<=20" in refused("--check", "true", "--tries", tries)
    said = cli.refused("run", "--continue", "@last", folder, "--check", "true", code=2)
    assert "--check is for a new thread" in said


def test_a_workflow_has_a_role_for_that(cli: Cli, folder: Path, opened: Store) -> None:
    workflows.add(opened, ONE)
    said = cli.refused("run", "sample", "x", folder, "--check", "true", code=2)
    assert "--check is for an agent, and sample is a workflow; add a role" in said


async def test_the_end_of_a_long_output_is_reported(store: Store) -> None:
    prompt = Prompt("You are it.", "x", (), "Say it.", OPEN)
    thread_step = ("01K00000000000000000000000", "check", 2)
    context = AgentContext(
        *thread_step, prompt=prompt, workspace=None, store=store, run=RUN, env={}
    )
    argv = ["sh", "-c", f"printf '%0{3 * MAX_CHECK_CHARS}d' 7; exit 5"]
    result = await create_agent({"argv": argv, "check": {}})(context)
    assert not result.keeps_workspace
    assert f"    {7:0{MAX_CHECK_CHARS}d}\n" in result.output
    assert '"exitCode": 5' in result.output
