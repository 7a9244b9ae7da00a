"""Bisect over 1,000 steps, or another power of ten, and `git bisect run` over the same history.

    python -m benchmarks.history bisect [DIR] [STEPS] [--files N ...] [--rounds N]

The history is that of `benchmarks.history`, in trees of 20 and of 2,000 files; the command is a
`grep` that fails from nine tenths on. Own time of a run is all but the command itself: the key, the
workspace, the result; the median, and in brackets the mean of the processor's. git's is what a run
takes without the command. Best of three.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

from benchmarks import history
from casfs.cli.run_on_tree import tree_runner
from casfs.history.bisect import BAD, GOOD, first_bad
from casfs.history.versions import find
from casfs.store.store import Store


def timed(command: Sequence[str | Path]) -> tuple[float, float, str]:
    """Returns the time of a command in seconds, that of the processor, and its output."""
    begin, before = time.monotonic(), os.times()
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = os.times()
    return time.monotonic() - begin, sum(after[2:4]) - sum(before[2:4]), out


def best(command: Sequence[str | Path], rounds: int) -> str:
    took, cost, _ = min(timed(command) for _ in range(rounds))
    return f"{took:.2f} s ({cost:.2f} s)"


def own_times(root: Path, steps: int, number: int) -> list[tuple[float, float]]:
    """The own time of each run in ms, and of the processor, in a process that has loaded all."""
    found = []
    with Store.open(root) as store, tree_runner(store, ["true", str(number)]) as run:
        versions = find(store, "run")[0].chain.versions[::-1]

        def test(at: int) -> str:
            begin, cost, tree = time.monotonic(), time.process_time(), versions[at].dated(store)
            done = run(tree)
            assert not done.hit
            took = (time.monotonic() - begin) * 1000 - done.duration_ms
            found.append((took, (time.process_time() - cost) * 1000))
            return BAD if at >= steps * 9 // 10 else GOOD

        first_bad(len(versions), test)
    return found


def git(work: Path, argv: Sequence[str]) -> tuple[float, float, int, float]:
    """The time of `git bisect run`, that of the processor, the number of runs, and the ms of a run
    without the command."""
    command = ["git", "-C", str(work)]
    timed([*command, "checkout", "-q", "main"])
    *_, first = timed([*command, "rev-list", "--max-parents=0", "main"])
    begin, start, _ = timed([*command, "bisect", "start", "main", first.strip()])
    took, cost, out = timed([*command, "bisect", "run", *argv])
    runs = out.count("Bisecting: ") + 1
    alone = min(timed(["sh", "-c", f"cd {work} && {argv[-1]} || :"])[0] for _ in range(3))
    return begin + took, start + cost, runs, (took / runs - alone) * 1000


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("dir", type=Path, nargs="?", help="Where to work.")
    parser.add_argument("steps", type=int, nargs="?", default=1000, help="A power of ten.")
    parser.add_argument("--files", type=int, nargs="+", default=[20, 2000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    count, rounds = options.steps, options.rounds
    last_tenth = f"9[0-9]{{{len(str(count)) - 2}}}|{count}"
    probe = ["sh", "-c", f'! grep -rqE "step ({last_tenth})$" src']
    print("| files | casfs bisect | again | a run | git bisect run | a run |")
    print("|---|---|---|---|---|---|")
    for files in options.files:
        history.FILES = files
        with tempfile.TemporaryDirectory(dir=options.dir) as place:
            store, work = Path(place) / "store", Path(place) / "git"
            history.fill_store(store, count)
            history.fill_git(work, count)
            measured = [own_times(store, count, number) for number in range(rounds)]
            least = min(measured, key=lambda runs: sum(took for took, _ in runs))
            own, cost = zip(*least, strict=True)
            casfs = [sys.executable, "-m", "casfs", "--store", str(store), "bisect", "run"]
            fresh = best([*casfs, "--no-cache", "--", *probe], rounds)
            again = best([*casfs, "--", *probe], rounds)
            whole, start, runs, each = min(git(work, probe) for _ in range(rounds))
            theirs = f"{whole:.2f} s ({start:.2f} s), {runs} runs | {each:.0f} ms"
            ours = f"{median(own):.0f} ms ({mean(cost):.0f} ms)"
            print(f"| {files:,} | {fresh} | {again} | {ours} | {theirs} |", flush=True)
