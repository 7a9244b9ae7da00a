"""File systems of the benchmark's own, so that what a disk did before is the same for all tools.

Each is an ext4 in a sparse file, mounted by a loop device: needs root.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.workspaces_peers import run

GIB = 8
COPIES = 4  # of the tree, written and deleted before a file system counts as used
# Else the kernel writes inode tables while something is being measured.
SETTINGS = ("-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0")


@contextmanager
def ext4(work: Path, name: str, gib: int = GIB) -> Iterator[Path]:
    """A new file system, gone at the end."""
    image, point = work / f"{name}.img", work / name
    with image.open("wb") as out:
        out.truncate(gib << 30)
    run("mkfs.ext4", *SETTINGS, image)
    point.mkdir(exist_ok=True)
    run("mount", "-o", "loop", image, point)
    try:
        yield point
    finally:
        run("umount", "-l", point)
        point.rmdir()
        image.unlink()


def use(point: Path, tree: Path) -> None:
    """Write several copies of a tree and delete them, one half after the other: what comes then
    finds free room in pieces and inodes that were deleted."""
    for number in range(COPIES):
        run("cp", "-a", tree, point / f"copy-{number}")
    os.sync()
    for number in (0, 2, 1, 3):
        shutil.rmtree(point / f"copy-{number}")
        os.sync()
