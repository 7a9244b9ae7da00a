"""Real agents whose commands run in their own sandboxes: there casfs reads, and says what the
sandbox refuses; outside, the record goes on."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from tests.agents_real.conftest import ready
from tests.support import programs
from tests.support.agent_model import Model
from tests.support.attached_program import Attached, attached_in
from tests.support.engine import Cli

pytestmark = [pytest.mark.agents, programs.needs("bwrap", "socat")]
CASFS = f"{sys.executable} -W error -P -m casfs"
READING = {
    "status": "cannot be asked from here",
    "status .": "A b.txt",
    "log a.txt": "c1@",
    "blame a.txt": "one",
    "diff c1 .": "A b.txt",
    "cat c1:a.txt": "one",
    "rewind --list": "echo 1",
    "grep one": "a.txt",
}
WRITING = ("checkpoint create c2 .", "daemon restart", "rewind --last")


def _allow_workspace(home: Path) -> None:
    config = home / ".codex/config.toml"
    text = config.read_text()
    assert "danger-full-access" in text
    config.write_text(text.replace("danger-full-access", "workspace-write"))


def _enable_sandbox(home: Path) -> None:
    settings = home / ".claude/settings.json"
    sandbox = {"enabled": True, "allowUnsandboxedCommands": False}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "sandbox": sandbox}))


SANDBOXES: Mapping[str, Callable[[Path], None]] = {
    "codex-cli": _allow_workspace,
    "claude-code": _enable_sandbox,
}


@pytest.fixture
def tmp_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Beside the temporary files, which both agents' commands may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(params=SANDBOXES)
def sandboxed(
    request: pytest.FixtureRequest,
    cli: Cli,
    disk_store: Store,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Attached]:
    ready(request.param, model.url, monkeypatch)
    SANDBOXES[request.param](Path.home())
    project = tmp_path / "project"
    with attached_in(project, request.param, cli, disk_store, model, monkeypatch) as made:
        (project / "a.txt").write_text("one\n")
        cli("checkpoint", "create", "c1", ".")
        yield made


def test_commands_of_an_agent_in_its_sandbox(sandboxed: Attached) -> None:
    root = sandboxed.store.root
    commands = [*READING, *WRITING]
    lines = [
        f"{CASFS} --store {root} {command} > said{number} 2>&1; echo $? >> said{number}"
        for number, command in enumerate(commands)
    ]
    sandboxed.ask("first", ("run", "echo 1 > b.txt"), ("say", "First."))
    pid = (daemon_socket.find(root) or {})["pid"]
    runs = [("run", line) for line in lines]
    sandboxed.ask("second", *runs, ("say", "Second."), session=sandboxed.session)
    for number, command in enumerate(commands):
        *said, code = (sandboxed.project / f"said{number}").read_text().splitlines()
        text = "\n".join(said)
        assert "Traceback" not in text, command
        if command in READING:
            assert code == "0", (command, text)
            assert READING[command] in text, (command, text)
        else:
            assert code in ("1", "4", "5"), (command, text)
            assert "sandbox" in said[-1], (command, text)
    assert (daemon_socket.find(root) or {})["pid"] == pid
    # No change of a call is ambiguous, not by the files that the sandbox itself makes.
    calls = [sandboxed.call(turn) for turn in sandboxed.turns(2)]
    assert len(calls) == len(commands)
    assert [call.get("foreign") for call in calls] == [None] * len(calls)
    sandboxed.cli("rewind", "--to", "1")
    assert {path.name for path in sandboxed.project.iterdir()} & {"b.txt", "said0"} == set()
