"""A short run of the harness that kills agents; and that it can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.threads.threads import ThreadId
from engine import content
from tests.harness.crash_agents import TurnsCheck, titles

TOOL = Path(__file__).parent / "crash_agents.py"


def test_killed_daemons_and_agents_lose_no_turn() -> None:
    command = [sys.executable, TOOL, "--kills", "4", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0" in done.stdout


def test_the_harness_sees_a_turn_that_is_missing(store: Store, tmp_path: Path) -> None:
    call = {"name": "r-0", "durationMs": 1}
    call |= dict.fromkeys(("arguments", "result"), content.put(store, "x"))
    kept = content.put(store, "what is left", [store.put_node("react-tool-call", call).hash])
    recorded = set(titles(store, content.put(store, "earlier", [kept])))
    assert recorded == {"r-0"}
    check = TurnsCheck(ThreadId("t"), tmp_path)
    (tmp_path / "t.turns").write_text("r-0\n")
    check.verify_turns(recorded)
    (tmp_path / "t.turns").write_text("r-0\nr-1\n")
    with pytest.raises(AssertionError, match=r"lost turns.*r-1"):
        check.verify_turns(recorded)
