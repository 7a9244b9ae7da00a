"""A short run of the harness of gc in a shared store. The long one is the tool:
`python tests/harness/gc_shared.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import programs
from tests.support.postgres_server import POSTGRES

TOOL = Path(__file__).parent / "gc_shared.py"


@programs.needs(POSTGRES, "setpriv")
def test_killed_writers_and_gcs_lose_nothing() -> None:
    command = [sys.executable, TOOL, "--minutes", "0.2", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses 0;" in done.stdout, done.stdout
