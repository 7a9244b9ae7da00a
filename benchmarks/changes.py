"""Measure checkpoints of a large file that changes a little, beside keeping each version whole.

    .venv/bin/python benchmarks/changes.py [--dir DIR] [--mib N] [--versions N] [--pages N]

Before each checkpoint some pages of 4 KiB are overwritten at random places. Peak memory is that of
a process of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.store import disk_usage
from casfs.backend import block_maps
from casfs.checkpoints import create
from casfs.store.store import Store
from casfs.trees.dated import DatedTree
from casfs.trees.restore.write import WriteProgress, write_tree

PAGE = 4096
RESTORES = 5


def overwrite(file: Path, pages: int, chance: random.Random) -> None:
    with file.open("r+b") as out:
        for _ in range(pages):
            out.seek(chance.randrange(file.stat().st_size // PAGE) * PAGE)
            out.write(chance.randbytes(PAGE))


def restore(store: Store, root: DatedTree, place: Path) -> float:
    place.mkdir()
    fd = os.open(place, os.O_RDONLY)
    start = time.perf_counter()
    write_tree(store, root, fd, WriteProgress())
    seconds = time.perf_counter() - start
    os.close(fd)
    (place / "file").unlink()
    place.rmdir()
    return seconds


def measure(work: Path, mib: int, versions: int, pages: int, whole: bool) -> None:
    """Prints the seconds of the first checkpoint, of the next ones and of a restore (medians), the
    room on disk in sizes of the file, and the peak memory in MB."""
    if whole:
        block_maps.MIN_BYTES = 1 << 60  # of what is compared; the rows of a store have their own
    chance = random.Random(1)
    source = work / "source"
    source.mkdir()
    file = source / "file"
    with file.open("wb") as out:
        for _ in range(mib):
            out.write(chance.randbytes(1 << 20))
    times = []
    with Store.init(work / "store") as store:
        empty = disk_usage(work / "store")
        for number in range(versions + 1):
            if number:
                overwrite(file, pages, chance)
            os.sync()
            start = time.perf_counter()
            made = create.create(store, "file", source)
            times.append(time.perf_counter() - start)
        room = (disk_usage(work / "store") - empty) / (mib << 20)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        root = DatedTree(made.checkpoint.root)
        restores = [restore(store, root, work / "place") for _ in range(RESTORES)]
    print(times[0], statistics.median(times[1:]), statistics.median(restores), room, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="where to work (a temporary directory)")
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--child", choices=("whole", "differences"))
    options = parser.parse_args()
    if options.child:
        is_whole = options.child == "whole"
        measure(options.dir, options.mib, options.versions, options.pages, is_whole)
        return
    print(f"\n{options.mib} MiB, {options.versions} changes of {options.pages} pages each\n")
    print("| | first checkpoint s | the next s | restore s | room, × the file | peak RSS MB |")
    print("|---|---|---|---|---|---|")
    sizes = [f"--{name}={getattr(options, name)}" for name in ("mib", "versions", "pages")]
    for how in ("whole", "differences"):
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            command = [sys.executable, __file__, "--child", how, "--dir", folder, *sizes]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        first, later, restored, room, peak = map(float, out.split())
        print(f"| {how} | {first:.2f} | {later:.2f} | {restored:.3f} | {room:.2f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
