"""A hundred forks of a thread: the whole command, and what the store grows by.

    python -m benchmarks.history forks [DIR] [--steps N] [--files N] [--count N] [--rounds N]

The thread has 40 steps and a tree of 2,000 files, and is forked after step 20, with one agent for
all and with ten in turn. One thread runs at once, and its agent sleeps: forking is measured.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from casfs.store.store import Store
from casfs.threads import threads
from engine.threads import forking
from engine.workflow import registry as workflows
from tests.support.engine import daemon, loop, says, spawn, start_thread
from tests.support.helpers import put_tree

AGENTS = 10


def forked(root: Path, command: list[str], count: int) -> tuple[float, int]:
    """Returns the seconds of so many forks, and the bytes that the store grew by."""
    before, begin = stored_bytes(root), time.monotonic()
    done = spawn("--store", root, *command, "--count", str(count))
    took = time.monotonic() - begin
    assert len(done.stdout.split()) == count, done.stderr
    return took, stored_bytes(root) - before


def stored_bytes(root: Path) -> int:
    with closing(sqlite3.connect(root / "store.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    files = [*root.glob("store.db*"), *(root / "objects").rglob("*")]
    return sum(path.stat().st_size for path in files)


def measure(root: Path, steps: int, files: int, count: int) -> dict[str, tuple[float, int]]:
    with Store.init(root) as store:
        (root / "config.toml").write_text("[runs]\nlimit = 1\n")
        workflows.add(store, loop(steps))
        tree = put_tree(store, {f"{n}": b"%d\n" % n for n in range(files)})
    with daemon(root):
        id = start_thread(root, "sample", {"a": says({})}, workspace=tree, name="old")
        shown = spawn("--store", root, "thread", "log", id, "--follow")
        assert shown.returncode == 0, shown.stderr
        fork = ["thread", "fork", "old", "--at", str(steps // 2)]
        sleeping = [f"a=command:sleep {600 + n}" for n in range(AGENTS)]
        many = [word for one in sleeping for word in ("--agent", one)]
        found = {
            "one agent": forked(root, [*fork, *many[:2]], count),
            f"{AGENTS} agents in turn": forked(root, [*fork, *many], count),
        }
    with Store.open(root) as store:
        old, before, begin = (
            threads.get(store, threads.ThreadId(id)),
            stored_bytes(root),
            time.monotonic(),
        )
        forking.fork(store, old, steps // 2, count=count)
        found["the publication alone"] = time.monotonic() - begin, stored_bytes(root) - before
    return found


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("dir", type=Path, nargs="?", help="Where to work.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.dir) as place:
            store = Path(place) / "store"
            rounds.append(measure(store, options.steps, options.files, options.count))
    print(f"| fork of {options.count} | time | bytes |\n|---|---|---|")
    for name in rounds[0]:
        least = min(one[name][0] for one in rounds)
        print(f"| {name} | {least:.2f} s | {max(one[name][1] for one in rounds):,} |")
