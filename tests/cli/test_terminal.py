"""What all verbs of maintenance do without a store, and on a terminal."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from casfs.store.store import Store
from tests.support.engine import Cli
from tests.support.helpers import write_tree
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


AT_ONCE = "import casfs.cli.progress as p; p.DELAY_S = p.INTERVAL_S = 0; import casfs.__main__"
BARS = {
    "fsck": ("checking", "blobs"),
    "gc --grace 0": ("marking", "blobs"),
    "export work -o TMP/a.tar.zst": ("exporting", "members"),
    "import TMP/b.tar": ("importing", "members"),
    "checkpoint create work TMP/w": ("recording", "files"),
    "checkpoint restore work TMP/new": ("restoring", "files"),
    "plugin sync linter 1.0 TMP/w": ("storing", "files"),
}


@pytest.mark.parametrize("verb", BARS)
def test_on_a_terminal_there_is_a_bar(cli: Cli, opened: Store, verb: str, tmp_path: Path) -> None:
    fill(opened)
    age(opened)
    write_tree(tmp_path / "w", {f"f{number}": b"x" * 2000 for number in range(300)})
    cli("checkpoint", "create", "work", tmp_path / "w")
    cli("export", "work", "-o", tmp_path / "b.tar")
    reader, writer = pty.openpty()
    arguments = verb.replace("TMP", str(tmp_path)).split()
    argv = [sys.executable, "-c", AT_ONCE, "--store", str(cli.root), *arguments]
    with os.fdopen(reader, "rb", buffering=0) as terminal:
        answer = subprocess.run(argv, stdout=subprocess.PIPE, stderr=writer, timeout=60)
        os.set_blocking(reader, False)
        shown = terminal.read() or b""
        os.close(writer)
    assert answer.returncode == 0
    assert all(word.encode() in shown for word in BARS[verb])
    assert verb.startswith("gc") or b"/s" in shown
    assert b"\r" not in answer.stdout


def test_a_short_verb_does_not_load_the_library_of_bars(cli: Cli, opened: Store) -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "casfs", "--store", str(cli.root), "fsck"]
    on_pty = f"import pty, sys; sys.exit(pty.spawn({argv!r}))"
    done = subprocess.run([sys.executable, "-c", on_pty], capture_output=True)
    assert done.returncode == 0
    assert b"casfs.cli.progress" in done.stdout
    assert b"rich" not in done.stdout
