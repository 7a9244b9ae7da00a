"""A short run of the harness of purges. The long one is the tool:
`python tests/harness/purge_orders.py --rounds 20 --kills 10`."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.purge_orders import World, create, verify

TOOL = Path(__file__).parent / "purge_orders.py"


def test_no_order_leaves_what_was_purged() -> None:
    command = [sys.executable, TOOL, "--rounds", "2", "--kills", "3", "--seed", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses 0" in done.stdout


def test_the_check_sees_what_is_left(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(1), 0)
    world.run("store", "init")
    world.run("store", "remote", "add", "far", world.remote.as_uri(), ok="0 4")
    create(world)
    with pytest.raises(AssertionError, match="the plain words"):
        verify(world)
