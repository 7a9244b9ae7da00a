"""Measure checkpoints of a large file that changes a little, beside keeping each version whole.

    .venv/bin/python -m benchmarks.changes [--dir DIR] [--mib N] [--versions N] [--pages N]

Before each checkpoint some pages of 4 KiB are overwritten at random places; after it, it is pushed
to a remote in a directory. Peak memory is that of a process of its own.
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
from contextlib import nullcontext
from pathlib import Path

from benchmarks.store import disk_usage
from casfs.backend import block_maps
from casfs.checkpoints import create
from casfs.remotes import heads, push
from casfs.remotes.remote import Remote, Settings, save
from casfs.remotes.remote import create as create_remote
from casfs.store.store import Store
from casfs.trees.dated import DatedTree
from casfs.trees.restore.write import WriteProgress, write_tree

ROOT = Path(__file__).resolve().parents[1]
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


def push_all(store: Store, remote: Remote) -> int:
    """Returns how many bytes were sent."""
    wanted = heads.of_store(store, ["file"])
    none = nullcontext(lambda blobs, size: None)
    return push.push(store, remote, wanted, dry_run=False, begin=lambda blobs, size: none).sent


def measure(work: Path, mib: int, versions: int, pages: int, whole: bool) -> None:
    """Prints the seconds of the first checkpoint, of the next ones and of a restore (medians), the
    room on disk and what the next pushes send (median) in sizes of the file, and the peak memory
    in MB."""
    if whole:
        block_maps.MIN_BYTES = 1 << 60  # of what is compared; the rows of a store have their own
    chance = random.Random(1)
    source = work / "source"
    source.mkdir()
    file = source / "file"
    with file.open("wb") as out:
        for _ in range(mib):
            out.write(chance.randbytes(1 << 20))
    times, sent = [], []
    settings = Settings((work / "remote").as_uri())
    with Store.init(work / "store") as store:
        create_remote(settings.storage())
        save(store.root, "there", settings)
        empty = disk_usage(work / "store")
        for number in range(versions + 1):
            if number:
                overwrite(file, pages, chance)
            os.sync()
            start = time.perf_counter()
            made = create.create(store, "file", source)
            times.append(time.perf_counter() - start)
            with Remote.open(store.root, "there") as remote:
                sent.append(push_all(store, remote) / (mib << 20))
        room = (disk_usage(work / "store") - empty) / (mib << 20)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        root = DatedTree(made.checkpoint.root)
        restores = [restore(store, root, work / "place") for _ in range(RESTORES)]
    later = statistics.median(times[1:])
    pushed = statistics.median(sent[1:])
    print(times[0], later, statistics.median(restores), room, pushed, peak)


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
    print(
        "| | first checkpoint s | the next s | restore s | room, × the file | next push | RSS MB |"
    )
    print("|---|---|---|---|---|---|---|")
    sizes = [f"--{name}={getattr(options, name)}" for name in ("mib", "versions", "pages")]
    for how in ("whole", "differences"):
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            command = [sys.executable, "-m", "benchmarks.changes", "--child", how]
            command += ["--dir", folder, *sizes]
            out = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout
        first, later, restored, room, pushed, peak = map(float, out.split())
        print(
            f"| {how} | {first:.2f} | {later:.2f} | {restored:.3f} | {room:.2f} | {pushed:.3f} ×"
            f" | {peak:.0f} |"
        )


if __name__ == "__main__":
    main()
