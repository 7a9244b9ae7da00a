"""A short run of the engine's crash harness. The long one is the tool: `python
tests/harness/crash_engine.py`. And that the harness can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from casfs.threads.threads import ThreadId
from tests.harness.crash_engine import LENGTH, ThreadCheck

TOOL = Path(__file__).parent / "crash_engine.py"


def test_killed_daemons_and_agents_lose_nothing() -> None:
    command = [sys.executable, TOOL, "--runs", "2", "--seed", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses 0" in done.stdout


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([f"begin {max(run, 1)} {run}" for run in range(LENGTH + 1)], "repeated runs"),
        ([f"begin {step} {step}" for step in range(1, LENGTH)], "never begun"),
        ([f"begin {step} x" for step in range(1, LENGTH + 1)], "started twice"),
        ([*(f"begin {step} {step}" for step in range(1, LENGTH + 1)), "end 1 1"], "lived on"),
    ],
)
def test_the_harness_sees(lines: list[str], said: str, tmp_path: Path) -> None:
    check = ThreadCheck(ThreadId("t"), tmp_path)
    check.log.write_text("\n".join(lines))
    with pytest.raises(AssertionError, match=said):
        check.verify_log()
