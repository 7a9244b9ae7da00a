"""The part `suite` of `benchmarks.native`: tests of this project in a native workspace.

Copies this project with its environment, and runs tests of it there and in a native
workspace of the same tree. Each test's own files are elsewhere, the same for both: what differs
is where the code is read from and where pytest and Python leave what they cache.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks import common
from benchmarks.common import Times, add, compared, in_seconds, table
from benchmarks.native_peers import Copy, native, stored
from benchmarks.overlay_commit import timed as milliseconds
from casfs.store.store import Store

PROJECT = Path(__file__).resolve().parent.parent
EXCLUDED = (".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")
SUITE = (
    "maintenance/test_archive",
    "checkpoints/test_checkpoint",
    "cli/test_checkpoint",
    "nodes/test_directory",
    "maintenance/test_gc",
    "trees/snapshot/test_walker",
    "test_store",
    "trees/test_tree",
)


def suite(work: Path, rounds: int) -> None:
    copy, point = work / "project", work / "project-native"
    shutil.copytree(PROJECT, copy, symlinks=True, ignore=shutil.ignore_patterns(*EXCLUDED))
    times: Times = {}
    busy: Times = {}
    with Store.init(work / "project-store") as store:
        root = stored(store, copy)
        with native(store, root, point, read_only=False):
            for number in range(rounds + 1):  # the first brings all to the caches
                for name, top in ((Copy.name, copy), ("native workspace", point)):
                    taken, used = tested(top, work / "tests")
                    if number:
                        add(times, name, taken)
                        add(busy, name, used)
    modules = " ".join(SUITE)
    print(f"\nOf the suite: {modules}; in turn, after one pass of each that is not counted.")
    rows = compared({"over": times, "busy": busy}, list(times), Copy.name, in_seconds)
    header = ["", "until it is over", "processors busy with it"]
    table(f"Tests of this project, medians of {rounds} (× the plain copy)", header, rows)


def tested(top: Path, scratch: Path) -> tuple[float, float]:
    """Seconds that the tests take in a copy of the project, and of processors' time.

    Raises CalledProcessError.
    """
    python = top / ".venv/bin/python"
    env = {
        **os.environ,
        "PYTHONPATH": str(top),
        "CI": "1",
        "PATH": f"{python.parent}:/usr/bin:/bin",
    }
    where = "import casfs, pytest; print(casfs.__file__, pytest.__file__)"
    said = subprocess.run(
        [python, "-c", where], cwd=top, env=env, check=True, capture_output=True, text=True
    ).stdout.split()
    assert all(Path(path).is_relative_to(top) for path in said), said
    tests = [f"tests/{name}.py" for name in SUITE]
    command = [python, "-m", "pytest", "-q", f"--basetemp={scratch}", *tests]
    before = busy_children()
    taken = milliseconds(partial(checked, command, top, env)) / 1000
    used = busy_children() - before
    shutil.rmtree(scratch)
    return taken, used


def checked(command: list[object], top: Path, env: Mapping[str, str]) -> None:
    argv = [str(part) for part in command]
    with common.process(argv, cwd=top, env=env, stdout=subprocess.PIPE) as started:
        said = started.communicate()[0].decode(errors="replace")
    if started.returncode:
        sys.exit(f"in {top}: {said[-2000:]}")


def busy_children() -> float:
    """Seconds of processors' time of children that are over, and of theirs."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime
