"""Measure packs: the first checkpoint, room, packing and warming; prints Markdown.

    .venv/bin/python -m benchmarks.packs [--dir DIR] [--tree DIR] [--rounds N] [--gib N]
                                         [--checkpoints N] [PART ...]

Parts: first space pack. The tree is a copy of the Python installation that runs this (some 50,000
files where the usual packages are installed), or --tree. As root: each tool writes to an ext4 in a
file of its own. Processor time is that of the command and its children; the kernel's writing
afterwards is not counted.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import common, file_systems
from benchmarks.common import Times, add, compared, in_seconds, table
from benchmarks.workspaces import size
from benchmarks.workspaces_peers import (
    CASFS,
    TOOLS,
    Borg,
    Casfs,
    Copy,
    Git,
    Restic,
    Tool,
    installed,
    run,
)
from casfs.backend.protocols import INLINE_MAX_BYTES
from casfs.store.store import Store

# -- the tree ---------------------------------------------------------------------------------


def make_tree(work: Path) -> Path:
    tree = work / "tree"
    run("cp", "-a", sys.base_prefix, tree)
    return tree


def files_of(tree: Path) -> list[Path]:
    found = (path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(found)


def change(files: Sequence[Path], turn: int) -> None:
    """One file in a hundred, other ones each time."""
    for path in random.Random(turn).sample(files, len(files) // 100):
        path.chmod(0o644)
        with path.open("ab") as out:
            out.write(f"{turn}".encode())


# -- the first checkpoint ---------------------------------------------------------------------


def spent(action: Callable[[], None]) -> tuple[float, float]:
    """Seconds on the clock, and of processors by the processes that it starts and waits for."""
    before, start = processors(), time.perf_counter()
    action()
    return time.perf_counter() - start, processors() - before


def processors() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def first(work: Path, tree: Path, options: argparse.Namespace) -> None:
    columns: dict[str, Times] = {}
    kinds, rounds = installed(TOOLS), options.rounds
    for turn in range(rounds):
        for make in kinds:
            with file_systems.ext4(work, "fresh", options.gib) as point:
                _first(make(point / "place", tree), "fresh", columns)
        with file_systems.ext4(work, "used", options.gib) as point:
            file_systems.use(point, tree)
            for make in kinds[turn % 2 :] + kinds[: turn % 2]:
                tool = make(point / f"place-{make.__name__}", tree)
                _first(tool, "used", columns)
                run("rm", "-rf", tool.place)
                os.sync()
    rows = compared(columns, [make.name for make in kinds], Copy.name, in_seconds)
    title = f"First checkpoint, medians of {rounds} (× {Copy.name})"
    table(title, ["", *columns], rows)


def _first(tool: Tool, kind: str, columns: dict[str, Times]) -> None:
    tool.prepare()
    os.sync()
    wall, processor = spent(tool.record)
    add(columns.setdefault(f"{kind}, clock", {}), tool.name, wall)
    add(columns.setdefault(f"{kind}, processors", {}), tool.name, processor)
    print(f"<!-- {kind} {tool.name}: {wall:.2f} {processor:.2f} -->", file=sys.stderr, flush=True)


# -- room -------------------------------------------------------------------------------------


class Packed(Casfs):
    name = "casfs, cold tier"

    def record(self) -> None:
        super().record()
        self.pack()

    def pack(self) -> None:
        run(*CASFS, "--store", self.place, "pack", "--older-than", "0s")


def space(work: Path, tree: Path, options: argparse.Namespace) -> None:
    state = work / "state"
    run("cp", "-a", tree, state)
    kinds = installed((Casfs, Packed, Git, Borg, Restic))
    tools = [make(work / make.__name__, state) for make in kinds]
    for tool in tools:
        tool.prepare()
    sizes: dict[str, list[int]] = {}
    files = files_of(state)
    for turn in range(options.checkpoints):
        if turn:
            change(files, turn)
        for tool in tools:
            tool.record()
            sizes.setdefault(tool.name, []).append(size(tool.place))
        for level in (("-3",), ("-3", "--long=27")):
            archive = work / "a.tar.zst"
            run("sh", "-c", f"tar c -C '{state}' . | zstd -q {' '.join(level)} -f -o '{archive}'")
            name = f"tar.zst {' '.join(level)}, one for each"
            sizes.setdefault(name, []).append(archive.stat().st_size)
    rows = []
    for name, values in sizes.items():
        last = sum(values) if name.startswith("tar") else values[-1]
        rows.append([name, f"{values[0] / 1e6:,.0f} MB", f"{last / 1e6:,.0f} MB"])
    header = ["", "one checkpoint", f"{options.checkpoints}, 1 % changed each"]
    table("Room on disk", header, rows)


# -- packing and warming ----------------------------------------------------------------------


def pack(work: Path, tree: Path, options: argparse.Namespace) -> None:
    rounds = options.rounds
    columns: dict[str, Times] = {"clock": {}, "processors": {}}
    moved = 0.0

    def measured(name: str, action: Callable[[], None]) -> None:
        os.sync()
        for column, value in zip(columns, spent(action), strict=True):
            add(columns[column], name, value)

    for turn in range(rounds):
        tool = Packed(work / f"pack-{turn}", tree)
        tool.prepare()
        Casfs.record(tool)
        moved = in_rows_no_more(tool.place)
        archive = f"tar c -C '{tree}' . | zstd -q -3 -f -o '{work}/a.tar.zst'; sync"
        measured("tar, zstd -3, sync", partial(run, "sh", "-c", archive))
        measured("cp -a", partial(run, "cp", "-a", tree, work / f"copy-{turn}"))
        measured("restore, all hot", partial(tool.restore, work / f"hot-{turn}"))
        measured("casfs pack", tool.pack)
        measured("restore, all cold", partial(tool.restore, work / f"cold-{turn}"))
        measured("casfs pack again", tool.pack)
        measured("warming all", partial(run, sys.executable, "-c", WARM, tool.place))
    rows = [
        [
            name,
            f"{median(values):.2f} s",
            f"{median(columns['processors'][name]):.2f} s",
            f"{moved / 1e6 / median(values):,.0f} MB/s",
        ]
        for name, values in columns["clock"].items()
    ]
    header = ["", "clock", "processors", f"of {moved / 1e6:,.0f} MB"]
    table(f"Packing and warming, medians of {rounds}", header, rows)


WARM = """
import sys; from pathlib import Path; from casfs.store.store import Store
with Store.open(Path(sys.argv[1])) as store:
    store.backend.tiers.warm([hash for _, hash, info in store.blobs.iterate()])
"""


def in_rows_no_more(place: Path) -> int:
    """Bytes of the blobs that are files or in packs."""
    with Store.open(place) as store:
        infos = (info for *_, info in store.blobs.iterate())
        return sum(info.size for info in infos if info.size > INLINE_MAX_BYTES)


PARTS = {"first": first, "space": space, "pack": pack}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gib", type=int, default=file_systems.GIB, help="of a file system")
    parser.add_argument("--checkpoints", type=int, default=10, help="of the part space")
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    common.unwind_on_signals()
    with common.workplace(options.dir) as work:
        print(common.machine(work), flush=True)
        tree = options.tree.resolve() if options.tree else make_tree(work)
        files = files_of(tree)
        total = sum(path.stat().st_size for path in files)
        print(f"\n## The tree: {len(files):,} files, {total / 1e6:,.0f} MB", flush=True)
        common.cache(tree)
        for part in options.parts or PARTS:
            PARTS[part](work, tree, options)


if __name__ == "__main__":
    main()
