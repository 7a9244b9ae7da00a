"""Blame and log of a file in threads of 100, 1,000, 10,000 steps, and of git on the same history.

    python -m benchmarks.history [DIR] [STEPS...] [--rounds N]
    python -m benchmarks.history forks [DIR] [OPTIONS]        (`benchmarks.history_forks`)
    python -m benchmarks.history turns [DIR] [OPTIONS]        (`benchmarks.history_turns`)
    python -m benchmarks.history bisect [DIR] [STEPS] [OPTIONS]        (`benchmarks.history_bisect`)
    python -m benchmarks.history watch [DIR] [OPTIONS]        (`benchmarks.history_watch`)

Each step replaces a line of one of 20 files of 200 lines, in turn, in a tree of two levels; all are
measured as whole commands, on a store, or repository, that was just written. Best of three.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from casfs.digest import TreeHash
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Subdirectory
from casfs.store.store import Store
from casfs.threads import threads
from tests.support.thread_example import Example, make_thread

FILES, LINES, TARGET = 20, 200, 0
PATH = f"src/f{TARGET:02}.py"


def versions(steps: int) -> Iterator[tuple[int, bytes]]:
    """(file, content): first of every file, then of the one that each step changes."""
    random = Random(1)
    texts = [[b"line %d of file %d\n" % (n, one) for n in range(LINES)] for one in range(FILES)]
    yield from ((one, b"".join(text)) for one, text in enumerate(texts))
    for step in range(1, steps + 1):
        one = step % FILES
        texts[one][random.randrange(LINES)] = b"changed by step %d\n" % step
        yield one, b"".join(texts[one])


def fill_store(root: Path, steps: int) -> None:
    with Store.init(root) as store:
        thread, files = make_thread(store, name="run"), dict[int, File]()
        history = versions(steps)
        for start in range(-FILES, steps, 1000):
            with store.batch() as batch:
                for step in range(start + 1, min(start + 1000, steps) + 1):
                    one, text = next(history)
                    files[one] = File(b"f%02d.py" % one, batch.put(text))
                    inner = batch.put_directory(directory.encode(files.values()))
                    top = directory.encode([Subdirectory(b"src", inner)])
                    tree = batch.put_directory(top).hash
                    if step > 0:
                        made = batch.put_node("thread-step", payload(store, thread, tree))
                        thread.steps.append(made.hash)
        thread.move(thread.steps[-1])


def payload(store: Store, thread: Example, tree: TreeHash) -> dict[str, Any]:
    index = len(thread.steps) + 1
    task = store.node(thread.start).payload["input"]
    return {
        "index": index,
        "role": "planner",
        "meta": {"status": "planned"},
        "content": task,
        "detail": task,
        "agent": thread.agent,
        "start": thread.start,
        "compact": None,
        "childThreads": [],
        "attempts": [],
        "extraction": "block",
        "workspace": tree,
        "changes": None,
        "startedAt": index * 1000,
        "completedAt": index * 1000 + 500,
        **threads.links(thread.steps),  # type: ignore[arg-type]
    }


def fill_git(root: Path, steps: int) -> None:
    subprocess.run(["git", "init", "-q", "-b", "main", root], check=True)
    command = ["git", "-C", str(root), "fast-import", "--quiet"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number, (one, text) in enumerate(versions(steps), start=1 - FILES):
            if number == 1 - FILES or number > 0:
                head = b"commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 1\nm\n"
                process.stdin.write(head % (number + 1_000_000_000))
            name = b"M 644 inline src/f%02d.py\n" % one
            process.stdin.write(name + b"data %d\n%s\n" % (len(text), text))


def best(command: Sequence[str | Path], lines: int, rounds: int) -> str:
    """Returns the least time of a command, and the least time of the processor."""
    found, cost = [], []
    for _ in range(rounds):
        begin, before = time.monotonic(), os.times()
        out = subprocess.run(command, check=True, capture_output=True).stdout
        after = os.times()
        found.append(time.monotonic() - begin)
        cost.append(sum(after[2:4]) - sum(before[2:4]))
        assert len(out.splitlines()) == lines, out[-500:]
    return f"{min(found):.2f} s ({min(cost):.2f} s)"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("dir", type=Path, nargs="?", help="Where to work.")
    parser.add_argument("steps", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    print("| steps | casfs blame | git blame | casfs log | git log |\n|---|---|---|---|---|")
    for steps in options.steps:
        with tempfile.TemporaryDirectory(dir=options.dir) as place:
            store, work = Path(place) / "store", Path(place) / "git"
            fill_store(store, steps)
            fill_git(work, steps)
            casfs = [sys.executable, "-m", "casfs", "--store", str(store)]
            git = ["git", "--no-pager", "-C", str(work)]
            changes = steps // FILES
            times = [
                best([*casfs, "blame", f"run:{PATH}"], LINES, options.rounds),
                best([*git, "blame", "main", "--", PATH], LINES, options.rounds),
                best([*casfs, "log", f"run:{PATH}"], changes + 1, options.rounds),
                best([*git, "log", "--oneline", "main", "--", PATH], changes + 1, options.rounds),
            ]
            print(f"| {steps:,} | " + " | ".join(times) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["forks"]:
        from benchmarks import history_forks

        history_forks.main(sys.argv[2:])
    elif sys.argv[1:2] == ["watch"]:
        from benchmarks import history_watch

        history_watch.main(sys.argv[2:])
    elif sys.argv[1:2] == ["turns"]:
        from benchmarks import history_turns

        history_turns.main(sys.argv[2:])
    elif sys.argv[1:2] == ["bisect"]:
        from benchmarks import history_bisect

        history_bisect.main(sys.argv[2:])
    else:
        main(sys.argv[1:])
