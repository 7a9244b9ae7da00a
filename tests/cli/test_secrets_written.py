"""What an agent has just written into a private file is redacted wherever it prints it."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from casfs.store.store import Store
from tests.support import readings
from tests.support.engine import Cli
from tests.support.helpers import write_tree

VALUE = "correct-horse-battery-7"
WRITES = f"mkdir -p api; printf 'DATABASE_PASSWORD={VALUE}\\n' >api/.env; cat api/.env"
pytestmark = pytest.mark.usefixtures("own_daemon")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_tree(
        tmp_path / "project", {"a.txt": b"a\n", "many": {f"d{n}": {"x": b""} for n in range(50)}}
    )


def started(cli: Cli, project: Path, script: str) -> subprocess.Popen[bytes]:
    """Begins a run of an agent that is this script."""
    (project.parent / "agent.sh").write_text(script)
    agent = f"command:sh {project.parent / 'agent.sh'}"
    command = [sys.executable, "-m", "casfs", "--store", str(cli.root), "run", agent, "x"]
    return subprocess.Popen(
        [*command, str(project), "--no-apply"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def printed(running: subprocess.Popen[bytes]) -> str:
    return running.communicate(timeout=60)[0].decode()


def test_in_a_step(cli: Cli, opened: Store, project: Path) -> None:
    printed(started(cli, project, WRITES))
    assert readings.leaks(opened, VALUE.encode()) == []


def test_in_an_attempt_that_failed(cli: Cli, opened: Store, project: Path) -> None:
    shown = printed(started(cli, project, f"{WRITES}; cat api/.env >&2; exit 3"))
    assert "exited with 3: DATABASE_PASSWORD=‹secret" in shown
    assert VALUE not in shown
    assert readings.leaks(opened, VALUE.encode()) == []


def test_while_it_runs(cli: Cli, opened: Store, project: Path) -> None:
    """In the live output, at any time."""
    script = f"{WRITES}; sleep 0.3; rm api/.env; echo again {VALUE}; sleep 1"
    running = started(cli, project, script)
    shown = b""
    while running.poll() is None:
        for path in (opened.root / "live").glob("*"):
            with suppress(FileNotFoundError):
                shown = max(shown, path.read_bytes(), key=len)
        time.sleep(0.01)
    assert VALUE not in printed(running)
    assert b"again" in shown
    assert VALUE.encode() not in shown
    assert readings.leaks(opened, VALUE.encode()) == []
