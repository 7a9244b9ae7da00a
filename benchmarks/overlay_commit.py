"""Measure the commit of one changed file from an overlay, over trees of three sizes; Markdown.

    .venv/bin/python benchmarks/overlay_commit.py [--dir DIR] [--rounds N] [FILES…]

As root: the overlay is the kernel's, over a mount of the store. Timed is the library call,
durable when it returns, by a store that was opened just before (nothing is remembered) and
by one that has committed already. Directories hold 50 files and up to 20 directories.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from casfs.digest import TreeDigest, TreeHash
from casfs.mount import mount_points
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle, registry, strategies
from casfs.workspaces.commit import commit_workspace

SIZES = (1_000, 10_000, 100_000)
FILES, FOLDERS = 50, 20  # of a directory
SIZE = 2_000  # bytes of a file


def plant(batch: Batch, files: int, name: str) -> TreeDigest:
    """A tree of so many files, each with content of its own."""
    here = min(files, FILES)
    entries: list[Entry] = [
        File(b"file-%d" % number, batch.put(f"{name}/{number}\n".encode().ljust(SIZE, b".")))
        for number in range(here)
    ]
    rest = files - here
    folders = min(FOLDERS, -(-rest // FILES))
    for number in range(folders):
        share = rest // folders + (number < rest % folders)
        below = plant(batch, share, f"{name}/{number}")
        entries.append(Subdirectory(b"folder-%d" % number, below))
    return batch.put_directory(directory.encode(entries))


def deepest(root: Path) -> Path:
    """A file as far down as the tree goes."""
    while (root / "folder-0").is_dir():
        root = root / "folder-0"
    return root / "file-0"


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def measure(place: Path, shown: Path, root: TreeHash, rounds: int) -> tuple[float, float, float]:
    """Milliseconds: opening the workspace, a commit by a fresh store, a commit by the same."""
    point, strategy = place / "work", strategies.STRATEGIES[strategies.OVERLAY]

    def change(number: int) -> None:
        deepest(point).write_text(f"changed {root} {number} {time.time_ns()}")

    with Store.open(place / "store") as store:
        opening = timed(
            lambda: lifecycle.open(
                store,
                RecordedState(root),
                point,
                strategy,
                lambda tree: shown / "trees" / tree.name,
            )
        )
        fresh, again = [], []
        for number in range(rounds):
            change(number)
            with Store.open(place / "store") as other:
                found = registry.find(other, point)
                fresh.append(timed(partial(commit_workspace, other, found)))
            change(-number - 1)
            again.append(timed(partial(commit_workspace, store, registry.find(store, point))))
        lifecycle.close(store, registry.find(store, point))
    return opening, statistics.median(fresh), statistics.median(again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dir", type=Path, help="where to work")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("files", type=int, nargs="*", default=SIZES)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("only root may mount an overlay")
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        place = Path(name)
        shown = place / "mnt"
        shown.mkdir()
        with Store.init(place / "store") as store:
            roots = []
            for files in arguments.files:
                with store.batch() as batch:
                    roots.append(plant(batch, files, str(files)).hash)
        casfs = [sys.executable, "-m", "casfs", "--store", str(place / "store")]
        subprocess.run([*casfs, "mount", str(shown)], check=True, stdout=subprocess.DEVNULL)
        try:
            print("| files | open, ms | commit, fresh store, ms | commit again, ms |")
            print("|---|---|---|---|")
            for files, root in zip(arguments.files, roots, strict=True):
                figures = measure(place, shown, root, arguments.rounds)
                print(f"| {files:,} | " + " | ".join(f"{one:.1f}" for one in figures) + " |")
        finally:
            mount_points.unmount(shown)


if __name__ == "__main__":
    main()
