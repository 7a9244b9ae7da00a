"""What commands, a step and checkpoints cost, as counts: a count has no noise.

    python -m tests.support.costs step FOLDER             calls, statements, pages, bytes a step
    python -m tests.support.costs checkpoints FOLDER      calls a file of a first and a second one

Each prints JSON: numbers by group, and in a group by what causes them, so that a test can name what
has grown. `modules` counts what a command imports, `system_calls` those of a first and a second
checkpoint, by strace. All run in processes of their own, where nothing is imported or cached yet;
so functions here import what they need.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, NamedTuple
from unittest import mock

from casfs.checkpoints.create import CreateOptions

Group = dict[str, float]  # by what causes it

SHORT, LONG = 20, 120  # steps of two threads: the difference is without start and end
FILES, FILES_PER_DIRECTORY = 400, 20
CHECKPOINTS = ("first", "second")
USAGE_ERROR = 2


class Counted(NamedTuple):
    calls: Counter[str]  # of Python functions, by file
    statements: Counter[str]  # of SQL, by their first word

    def take(self) -> Counted:
        """Returns what was counted since the last time."""
        taken = Counted(self.calls.copy(), self.statements.copy())
        self.calls.clear()
        self.statements.clear()
        return taken


@contextmanager
def counting() -> Iterator[Counted]:
    """Counts in threads and connections that begin in the block. Python 3.11 cannot set the
    profile of a thread that runs, and trio keeps its threads: so a block holds all that is to be
    compared."""
    counted = Counted(Counter(), Counter())
    connect = sqlite3.connect

    def count_call(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            counted.calls[frame.f_code.co_filename] += 1

    def count_statement(sql: str) -> None:
        counted.statements[sql.split(maxsplit=1)[0]] += 1

    def connect_counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(count_statement)
        return connection

    threading.setprofile(count_call)
    sys.setprofile(count_call)
    try:
        with mock.patch("sqlite3.connect", connect_counted):
            yield counted
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def per(count: int, long: Counter[str], short: Counter[str] | None = None) -> Group:
    """Returns the numbers of `long` beyond those of `short`, per one of `count`, by a file's last
    three names."""
    short = short or Counter()
    group: Group = {}
    for cause, number in sorted(long.items()):
        name = "/".join(Path(cause).parts[-3:])
        if Path(cause) != Path(__file__) and number != short[cause]:
            group[name] = round(group.get(name, 0) + (number - short[cause]) / count, 2)
    return group


def modules(root: Path, *command: str) -> Group:
    """Runs a command in a process of its own. Returns how many modules it imports: those of casfs
    and the engine by package, others by their first name."""
    script = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from casfs.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print()\n"
        "    print(*sorted(set(sys.modules) - before))\n"
    )
    arguments = [sys.executable, "-c", script, "--store", str(root), *command]
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode == USAGE_ERROR:  # others may fail: `mark` without a daemon
        raise ValueError(done.stderr)
    group: Group = {}
    for name in done.stdout.splitlines()[-1].split():
        package = ".".join(name.split(".")[: 2 if name.startswith(("casfs.", "engine.")) else 1])
        group[package] = group.get(package, 0) + 1
    return group


def step(folder: Path) -> dict[str, Group]:
    from benchmarks.engine_peers import Shape
    from benchmarks.engine_runs import run_threads
    from casfs.backend.wal_checkpoints import count_pages
    from casfs.store.store import Store

    def run(counted: Counted, steps: int) -> tuple[Counted, int, int]:
        random.seed(0)
        root = folder / str(steps)
        counted.take()
        with Store.init(root) as store:
            run_threads(store, Shape(1, steps))
            pages = count_pages(root / "store.db-wal")
        stored = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        return counted.take(), pages, stored

    with counting() as counted:
        short, few_pages, few_bytes = run(counted, SHORT)
        long, pages, stored = run(counted, LONG)
    count = LONG - SHORT
    return {
        "calls": per(count, long.calls, short.calls),
        "statements": per(count, long.statements, short.statements),
        "pages": {"write-ahead log": round((pages - few_pages) / count, 2)},
        "bytes": {"store": round((stored - few_bytes) / count)},
    }


def plant(folder: Path, files: int) -> Path:
    """Makes files of 1000 random bytes, and waits for the racy window of the stat cache: within it
    a file is read again."""
    from casfs.trees.snapshot.stat_cache import RACY_WINDOW_NS

    chance = random.Random(0)
    for number in range(files):
        path = folder / f"d{number // FILES_PER_DIRECTORY}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(1000))
    time.sleep(RACY_WINDOW_NS / 1e9)
    return folder


def checkpoints(folder: Path) -> dict[str, Group]:
    from casfs.checkpoints.create import create
    from casfs.store.store import Store

    few, many = plant(folder / "few", FILES_PER_DIRECTORY), plant(folder / "many", FILES)
    groups = {}
    with counting() as counted, Store.init(folder / "store") as store:
        create(store, "warm", few, options=CreateOptions(defaults=False))
        for name in CHECKPOINTS:
            counted.take()
            create(store, f"few{name}", few, options=CreateOptions(defaults=False))
            base = counted.take().calls
            create(store, f"many{name}", many, options=CreateOptions(defaults=False))
            calls = counted.take().calls
            groups[f"calls of the {name}"] = per(FILES - FILES_PER_DIRECTORY, calls, base)
    return groups


def system_calls(folder: Path) -> dict[str, Group]:
    """What a checkpoint of FILES files costs beyond one of FILES_PER_DIRECTORY, by `strace`."""

    def traced(tree: Path, name: str) -> Counter[str]:
        counts = folder / "counts"
        command = [sys.executable, "-m", "casfs", "--store", str(folder / "store")]
        command += ["checkpoint", "create", name, str(tree)]
        subprocess.run(["strace", "-f", "-c", "-o", counts, *command], check=True, stdout=DEVNULL)
        # % time, seconds, usecs/call, calls, errors (may be empty), syscall
        rows = [line.split() for line in counts.read_text().splitlines()[2:-2]]
        return Counter({row[-1]: int(row[3]) for row in rows})

    few, many = plant(folder / "few", FILES_PER_DIRECTORY), plant(folder / "many", FILES)
    subprocess.run([sys.executable, "-m", "casfs", "--store", folder / "store", "init"], check=True)
    groups = {}
    for name in CHECKPOINTS:
        base, calls = traced(few, "few"), traced(many, "many")
        groups[f"system calls of the {name}"] = per(FILES - FILES_PER_DIRECTORY, calls, base)
    return groups


MEASURES: dict[str, Callable[[Path], dict[str, Group]]] = {
    "step": step,
    "checkpoints": checkpoints,
}

if __name__ == "__main__":
    print(json.dumps(MEASURES[sys.argv[1]](Path(sys.argv[2]))))
