"""Measure checkpoints and restores beside what people use today; prints Markdown.

    .venv/bin/python -m benchmarks.workspaces [--dir DIR] [--tree DIR] [--modules DIR]
        [--rounds N] [--states N] [--files N] [--large MIB] [PART ...]

Parts: first again restore space memory. Peers from Debian: git, borgbackup, restic, zstd and
`cp -a`, each with its durable defaults. Without --tree a tree of some 57,000 files is put
together from /usr/share, /usr/include and /usr/lib/python3; --modules names a large
node_modules. The tools take turns, and the tables hold medians and ratios of one run:
absolute times drift. Nothing is deleted between two timings: an ext4 that has just lost many
inodes is slow in making new ones.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.workspaces_peers import TOOLS, Borg, Casfs, Copy, Git, Restic, Tool, installed, run


def seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def size(path: Path) -> int:
    """Bytes on disk, a hard-linked file once."""
    out = subprocess.run(["du", "-s", "-B1", path], capture_output=True, text=True, check=True)
    return int(out.stdout.split()[0])


def first(work: Path, tree: Path, rounds: int) -> None:
    times: dict[str, list[float]] = {}
    kinds = installed(TOOLS)
    for turn in range(rounds):
        for make in kinds:
            tool = make(work / f"first-{turn}-{make.__name__}", tree)
            tool.prepare()
            os.sync()
            times.setdefault(tool.name, []).append(seconds(tool.record))
    table("First checkpoint", times, Copy.name)


def again(work: Path, tree: Path, rounds: int) -> None:
    kinds = [kind for kind in installed(TOOLS) if kind is not Copy]
    tools = [make(work / f"again-{number}", tree) for number, make in enumerate(kinds)]
    for tool in tools:
        tool.prepare()
        tool.record()
    time.sleep(3)  # past the racy moment: a file written just now is read again
    for tool in tools:
        tool.record()
    nothing: dict[str, list[float]] = {}
    one: dict[str, list[float]] = {}
    victim = next(path for path in sorted(tree.rglob("*.h")) if path.is_file())
    for turn in range(rounds):
        for tool in tools:
            nothing.setdefault(tool.name, []).append(seconds(tool.record))
        with victim.open("a") as out:
            out.write(f"/* {turn} */\n")
        for tool in tools:
            one.setdefault(tool.name, []).append(seconds(tool.record))
    table("Again, nothing changed", nothing, Git.name)
    table("Again, one file changed", one, Git.name)


def restore(work: Path, tree: Path, rounds: int) -> None:
    store = Casfs(work / "restore", tree)
    store.prepare()
    store.record()
    full: dict[str, list[float]] = {}
    for turn in range(rounds):
        copy, target = work / f"copy-{turn}", work / f"restored-{turn}"
        full.setdefault("cp -a", []).append(seconds(partial(run, "cp", "-a", tree, copy)))
        full.setdefault("casfs, full", []).append(seconds(partial(store.restore, target)))
    target = work / "restored-0"
    victim = next(path for path in sorted(tree.rglob("*.h")) if path.is_file())
    for turn in range(rounds):
        with victim.open("a") as out:
            out.write(f"/* restore {turn} */\n")
        store.record()
        full.setdefault("casfs, one file changed", []).append(
            seconds(lambda: store.restore(target))
        )
    table("Restore", full, "cp -a")


def space(work: Path, tree: Path, modules: Path | None, states: int) -> None:
    """Room for N states: of one directory that changes by 1 %, and of equal directories."""
    kinds = installed((Casfs, Borg, Restic))
    casfs, *others = (kind.__name__.lower() for kind in kinds)
    header = ["", "copies", casfs, "saved", *others, "N × tar.zst"]
    equal = states // 2
    print(f"\n### Space\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    _space_row(work, kinds, f"{states} checkpoints, 1 % changed each", tree, states, change=True)
    _space_row(work, kinds, f"{equal} sessions of one project", tree, equal, change=False)
    if modules is not None:
        label = f"one node_modules in {equal} workspaces"
        _space_row(work, kinds, label, modules, equal, change=False)


def _space_row(
    work: Path, kinds: Sequence[type[Tool]], label: str, origin: Path, count: int, *, change: bool
) -> None:
    tree = work / "state"
    run("cp", "-a", origin, tree)
    tools = [make(work / make.__name__, tree) for make in kinds]
    for tool in tools:
        tool.prepare()
    copies = archives = 0
    files = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    for turn in range(count):
        if turn and change:
            for path in random.Random(turn).sample(files, len(files) // 100):
                path.chmod(0o644)
                with path.open("ab") as out:
                    out.write(f"{turn}".encode())
        elif turn:  # another workspace: the same content elsewhere
            moved = work / f"state-{turn}"
            tree.rename(moved)
            tree = moved
            for tool in tools:
                tool.tree = tree
        for tool in tools:
            tool.record()
        copies += size(tree)
        if turn == 0 or change:
            run("sh", "-c", f"tar c -C '{tree}' . | zstd -q -3 -f -o '{work}/a.tar.zst'")
        archives += (work / "a.tar.zst").stat().st_size
    stored = [size(tool.place) for tool in tools]
    saved = 100 * (1 - stored[0] / copies)
    sizes = [f"{value >> 20:,} MiB" for value in (copies, *stored, archives)]
    cells = [label, *sizes[:2], f"{saved:.1f} %", *sizes[2:]]
    print(f"| {' | '.join(cells)} |", flush=True)
    shutil.rmtree(tree)
    for tool in tools:
        shutil.rmtree(tool.place)


def memory(work: Path, count: int, large_mib: int) -> None:
    tree = work / "many"
    for number in range(count):
        if number % 100 == 0:
            folder = tree / f"{number // 10000:02}" / f"{number // 100 % 100:02}"
            folder.mkdir(parents=True)
        (folder / f"{number}").write_bytes(b"%d" % number * 300)
    store = Casfs(work / "memory", tree)
    store.prepare()
    store.record()
    first_peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    with (tree / "large").open("wb") as out:
        out.truncate(large_mib << 20)
        out.write(b"x")
    store.record()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print("\n### Memory\n\n| a checkpoint of | peak |\n|---|---|")
    print(f"| {count:,} files | {first_peak} MiB |")
    print(f"| … and one of {large_mib:,} MiB | {peak} MiB |", flush=True)


def table(title: str, times: dict[str, list[float]], base: str) -> None:
    rounds = len(times[base])
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"\n### {title}\n\n| | median of {rounds} | × {base} |\n|---|---|---|")
    for name, value in medians.items():
        print(f"| {name} | {value:.2f} s | {value / medians[base]:.2f} |", flush=True)


def make_tree(work: Path) -> Path:
    tree = work / "tree"
    tree.mkdir()
    for origin in ("/usr/share", "/usr/include", "/usr/lib/python3"):
        run("cp", "-a", origin, tree)
    return tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--modules", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--states", type=int, default=10, help="of the part space")
    parser.add_argument("--files", type=int, default=100_000, help="of the part memory")
    parser.add_argument("--large", type=int, default=4096, help="MiB of its large file")
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        work = Path(folder)
        tree = options.tree.resolve() if options.tree else make_tree(work)
        count = sum(len(files) for _, _, files in os.walk(tree))
        print(f"## The tree: {count:,} files, {size(tree) >> 20:,} MiB on disk")
        for part in options.parts or ("first", "again", "restore", "space", "memory"):
            if part == "space":
                space(work, tree, options.modules, options.states)
            elif part == "memory":
                memory(work, options.files, options.large)
            else:
                timings = {"first": first, "again": again, "restore": restore}
                timings[part](work, tree, options.rounds)


if __name__ == "__main__":
    main()
