"""A hundred forks of a thread: the whole command, and what the store grows by.

    python -m benchmarks.history forks [DIR]

The thread has 40 steps and a tree of 2,000 files, and is forked after step 20, with one agent for
all and with ten in turn. One thread runs at once, and its agent sleeps: forking is measured.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from casfs import threads
from casfs.store import Store
from engine.threads import forking
from engine.workflow import registry as workflows
from tests.support.engine import daemon, loop, says, spawn, start_thread
from tests.support.helpers import put_tree

STEPS, FILES, COUNT, AGENTS, ROUNDS = 40, 2000, 100, 10, 3


def forked(root: Path, command: list[str]) -> tuple[float, int]:
    """Returns the seconds of a fork of COUNT, and the bytes that the store grew by."""
    before, begin = stored_bytes(root), time.monotonic()
    done = spawn("--store", root, *command, "--count", str(COUNT))
    took = time.monotonic() - begin
    assert len(done.stdout.split()) == COUNT, done.stderr
    return took, stored_bytes(root) - before


def stored_bytes(root: Path) -> int:
    with closing(sqlite3.connect(root / "store.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    files = [*root.glob("store.db*"), *(root / "objects").rglob("*")]
    return sum(path.stat().st_size for path in files)


def measure(root: Path) -> dict[str, tuple[float, int]]:
    with Store.init(root) as store:
        (root / "config.toml").write_text("[runs]\nlimit = 1\n")
        workflows.add(store, loop(STEPS))
        tree = put_tree(store, {f"{n}": b"%d\n" % n for n in range(FILES)})
    with daemon(root):
        id = start_thread(root, "sample", {"a": says({})}, workspace=tree, name="old")
        shown = spawn("--store", root, "thread", "log", id, "--follow")
        assert shown.returncode == 0, shown.stderr
        fork = ["thread", "fork", "old", "--at", str(STEPS // 2)]
        sleeping = [f"a=command:sleep {600 + n}" for n in range(AGENTS)]
        many = [word for one in sleeping for word in ("--agent", one)]
        found = {
            "one agent": forked(root, [*fork, *many[:2]]),
            f"{AGENTS} agents in turn": forked(root, [*fork, *many]),
        }
    with Store.open(root) as store:
        old, before, begin = (
            threads.get(store, threads.ThreadId(id)),
            stored_bytes(root),
            time.monotonic(),
        )
        forking.fork(store, old, STEPS // 2, count=COUNT)
        found["the publication alone"] = time.monotonic() - begin, stored_bytes(root) - before
    return found


def main(folder: str | None = None) -> None:
    rounds = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            rounds.append(measure(Path(place) / "store"))
    print(f"| fork of {COUNT} | time | bytes |\n|---|---|---|")
    for name in rounds[0]:
        least = min(one[name][0] for one in rounds)
        print(f"| {name} | {least:.2f} s | {max(one[name][1] for one in rounds):,} |")
