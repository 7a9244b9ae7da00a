"""A short run of the engine's crash harness. The long one is the tool: `python
tests/harness/crash_engine.py`. And that the harness can fail."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.crash_engine import LENGTH, OneRun, Tally

TOOL = Path(__file__).parent / "crash_engine.py"


def test_killed_daemons_and_agents_lose_nothing() -> None:
    command = [sys.executable, TOOL, "--runs", "3", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses 0" in done.stdout


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [f"begin {step} {run}" for run, step in enumerate([1, 2, 2, *range(3, LENGTH + 1)])],
            "1 rep",
        ),
        ([f"begin {step} {step}" for step in range(1, LENGTH)], "never begun"),
        ([f"begin {step} x" for step in range(1, LENGTH + 1)], "started twice"),
        ([*(f"begin {step} {step}" for step in range(1, LENGTH + 1)), "end 1 1"], "lived on"),
    ],
)
def test_the_harness_sees(lines: list[str], said: str, tmp_path: Path) -> None:
    run = OneRun(tmp_path, random.Random(0), Tally())
    run.log.write_text("\n".join(lines))
    with pytest.raises(AssertionError, match=said):
        run._verify_log()
