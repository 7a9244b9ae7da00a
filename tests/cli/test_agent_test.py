"""`casfs agent test`: one run without a thread; the exit code says how it went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.engine import Cli, says, shell


def given(config: dict[str, object]) -> str:
    return f"command:{json.dumps(config)}"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    made = tmp_path / "scratch"
    made.mkdir()
    monkeypatch.setenv("TMPDIR", str(made))
    monkeypatch.setattr("tempfile.tempdir", None)
    return made


def test_an_agent_that_reports(cli: Cli, scratch: Path) -> None:
    before = cli.contents()
    agent = given(says({"status": "ready"}, "sed -n '/^# Task/{n;n;p;q;}'; pwd"))
    shown = cli("agent", "test", agent, "--task", "Say hello.")
    first, folder, *_ = shown.text.splitlines()
    assert (first, Path(folder).parent.parent) == ("Say hello.", scratch)
    assert '-- meta: {"status": "ready"}\n-- ' in shown.text
    value = cli("agent", "test", agent, "--json").json
    assert (value["meta"], value["fault"]) == ({"status": "ready"}, None)
    assert cli.contents() == before
    assert list(scratch.iterdir()) == []


def test_a_profile_and_the_store_that_it_sees(cli: Cli) -> None:
    script = (
        'casfs node put content - <<E | sed \'s/ .*//\' >h\n{"text": "x", "artifacts": []}\nE\n'
    )
    report = 'printf \'```json\n{"hash": "%s"}\n```\n\' "$(cat h)"'
    (cli.root / "config.toml").write_text(
        "[agents.mine]\npackage = 'command'\n[agents.mine.config]\n"
        f"argv = {json.dumps(shell(script + report)['argv'])}\n"
    )
    hash = cli("agent", "test", "mine", "--json").json["meta"]["hash"]
    assert len(hash) == 64
    cli("has", hash, code=3)  # it was put into the temporary store


@pytest.mark.parametrize(
    ("agent", "code", "said"),
    [
        ("command:true", 1, "no usable report: it has no fenced JSON block"),
        (given(shell("echo broken >&2; exit 3")), 1, "sh exited with 3: broken"),
        ("command:no-such-program", 1, "no program no-such-program"),
        ("command", 4, "command: config.argv is required"),
        ("nobody", 3, "no agent or profile 'nobody'"),
        ("human:Ready?", 7, "asks a person: tester: Ready?"),
        ("command:{", 2, "config is not JSON"),
    ],
)
def test_an_agent_that_does_not_work(agent: str, code: int, said: str, cli: Cli) -> None:
    assert said in cli("agent", "test", agent, code=code).err


def test_one_that_takes_too_long(cli: Cli) -> None:
    message = cli.refused("agent", "test", "command:sleep 60", "--timeout", "0.2", code=1)
    assert "took longer than 0.2 s" in message


def test_a_program_of_a_workspace(cli: Cli, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    script = project / "run.sh"
    script.write_text("#!/bin/sh\ntouch made; printf '```json\n{}\n```\n'\n")
    script.chmod(0o755)
    cli("agent", "test", "command:./run.sh", "--workspace", project)
    assert [path.name for path in project.iterdir()] == ["run.sh"]
