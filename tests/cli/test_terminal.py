"""What all verbs of maintenance do without a store, and on a terminal."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys

import pytest

from casfs.store import Store
from tests.support.engine import Cli
from tests.support.maintenance import age, fill

VERBS = [
    ["list", "content"],
    ["stats"],
    ["search", "x"],
    ["fsck"],
    ["gc"],
    ["export", "x", "-o", "never.tar"],
    ["import", "x"],
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_without_a_store(cli: Cli, verb: list[str]) -> None:
    shutil.rmtree(cli.root)
    answer = cli(*verb, code=3)
    assert (answer.out, answer.err.count("\n")) == (b"", 1)
    assert "casfs init" in answer.err
    assert not cli.root.exists()


@pytest.mark.parametrize("verb", [["fsck"], ["gc", "--grace", "0"]], ids=lambda verb: verb[0])
def test_on_a_terminal_there_is_a_bar(cli: Cli, opened: Store, verb: list[str]) -> None:
    fill(opened)
    age(opened)
    reader, writer = pty.openpty()
    argv = [sys.executable, "-m", "casfs", "--store", str(cli.root), *verb]
    with os.fdopen(reader, "rb", buffering=0) as terminal:
        answer = subprocess.run(argv, stdout=subprocess.PIPE, stderr=writer, timeout=60)
        os.set_blocking(reader, False)
        shown = terminal.read() or b""
        os.close(writer)
    assert answer.returncode == 0
    assert b"100%" in shown
    assert b"\r" not in answer.stdout
