"""Measure the engine's steps beside a floor, LangGraph and DBOS; prints Markdown.

    python -m benchmarks.engine [--dir DIR] [--peers PYTHON] [--rounds N]
                                [--at-once THREADSxSTEPS ...] [--in-turn THREADSxSTEPS ...]
                                [--files N ...] [--deep N]

`--peers` is the Python of an environment outside the project with langgraph,
langgraph-checkpoint-sqlite and dbos in it (`benchmarks.engine_peers`). In a round each runs a shape
once, in an order that rotates, in a new directory of one file system. The tables hold medians of
the rounds, and in brackets medians of the ratios of a round: absolute times drift.

    commit   of a step: from its place in the commit queue until its nodes and the move of its
             thread's head are durable and its task is woken; building it is included
    turn     from the return of an agent to the next call of the same thread's agent: all that a
             step costs (parse, build, decide, commit, prompt)
    bytes    a step: the growth of all files of the store, less the 2,048 bytes of text; in brackets
             less what zstd makes of the text (half: the digits are hexadecimal), as the store does
    tree     of a step that changes no file: the median turn with a workspace, less that without one

`benchmarks.engine_daemon` measures what the daemon does beside the steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common import machine, table
from benchmarks.engine_peers import PAYLOAD_BYTES, PROGRAMS, Sample, Shape, perform, text
from benchmarks.engine_runs import casfs, long_thread, turns_with_tree
from casfs.system.zstd import Dictionary

PEER_MAX_STEPS = 400  # LangGraph stores the whole state at every step
TREE_ROUNDS, TREE_STEPS = 3, 15
Races = Mapping[Shape, Mapping[str, Sequence[Sample]]]  # of each entrant, a sample a round


def race(folder: Path, python: str | None, rounds: int, shape: Shape) -> dict[str, list[Sample]]:
    entrants: dict[str, Callable[[Path, Shape], Sample]] = {"casfs": casfs}
    entrants["floor"] = partial(perform, sys.executable, "floor")
    if python and shape.steps <= PEER_MAX_STEPS:
        entrants |= {name: partial(perform, python, name) for name in PROGRAMS if name != "floor"}
    names = list(entrants)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with tempfile.TemporaryDirectory(dir=folder) as place:
                os.sync()
                samples[name].append(entrants[name](Path(place), shape))
    return samples


def ratio(ours: Sequence[Sample], others: Sequence[Sample]) -> str:
    pairs = zip(ours, others, strict=True)
    return f"{statistics.median(one.rate / other.rate for one, other in pairs):.2f} ×"


def rates_table(title: str, races: Races) -> None:
    names, rows = list(PROGRAMS), []
    zipped = statistics.mean(len(Dictionary(None).compress(text().encode())) for _ in range(100))
    base = next(iter(races.values()), {}).get("casfs", [])
    for shape, samples in races.items():
        rates = {name: statistics.median(one.rate for one in samples[name]) for name in samples}
        stored = statistics.median(one.stored for one in samples["casfs"])
        cells = [f"{rates['casfs']:,.0f} ({ratio(samples['casfs'], base)})"]
        for name in names:
            rate, others = rates.get(name), samples.get(name, ())
            cells.append(f"{rate:,.0f} ({ratio(samples['casfs'], others)})" if rate else "–")
        cells.append(f"{stored - PAYLOAD_BYTES:,.0f} ({stored - zipped:,.0f})")
        rows.append([f"{shape.threads} × {shape.steps:,}", *cells])
    header = ["threads × steps", "casfs (to the first row)", *names, "bytes a step beside the text"]
    table(title, header, rows)


def durations_table(races: Races) -> None:
    rows = []
    for shape, samples in races.items():
        for field in ("commits", "turns"):
            values = sorted(value for one in samples["casfs"] for value in getattr(one, field))
            middle, high = values[len(values) // 2], values[len(values) * 99 // 100]
            cells = [ms(middle), ms(high), f"{high / middle:.1f} ×", ms(values[-1])]
            rows.append([f"{shape.threads} × {shape.steps:,}, {field}", *cells])
    table("Threads at once: durations", ["", "p50", "p99", "p99 / p50", "longest"], rows)


def tree_table(folder: Path, sizes: Sequence[int], rounds: int) -> None:
    rows = []
    for files in sizes:
        found = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                found.append(turns_with_tree(Path(place), files, TREE_STEPS))
        for kind in ("overlay", "copy"):
            turn = statistics.median(one[kind] for one in found)
            added = statistics.median(one[kind] - one["none"] for one in found)
            rows.append([f"{files:,} files", kind, ms(turn), f"{added * 1e6:,.0f} µs"])
    header = ["tree", "workspace", "turn", "the tree adds"]
    table("A step that changes no file", header, rows)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def shapes(given: Sequence[str], at_once: bool) -> list[Shape]:
    pairs = (one.split("x") for one in given)
    return [Shape(int(threads), int(steps), at_once) for threads, steps in pairs]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--dir", type=Path, help="Where to work; else a temporary directory.")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", nargs="*", default=["16x50", "16x400"])
    parser.add_argument("--in-turn", nargs="*", default=["16x50", "2x400", "1x10000"])
    parser.add_argument("--files", nargs="*", type=int, default=[1000, 20_000])
    parser.add_argument("--deep", type=int, default=100_000, help="Steps of one that is read.")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="casfs-bench-", dir=wanted.dir) as place:
        folder = Path(place)
        print(f"{machine(folder)}; {wanted.rounds} rounds", flush=True)
        run = partial(race, folder, wanted.peers, wanted.rounds)
        races = {one: run(one) for one in shapes(wanted.at_once, True)}
        rates_table("Threads at once, steps per second", races)
        durations_table(races)
        races = {one: run(one) for one in shapes(wanted.in_turn, False)}
        rates_table("One after the other, steps per second", races)
        tree_table(folder, wanted.files, min(wanted.rounds, TREE_ROUNDS))
        if wanted.deep:
            found = long_thread(folder / "deep", wanted.deep)
            rows = [[name, ms(seconds)] for name, seconds in found.items()]
            table(f"A thread of {wanted.deep:,} steps", ["what", "here"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
