"""What the kernel forgets, the server forgets: walks leave nothing behind.

The kernel frees from the bottom up, and passes over what was used lately: it is told to drop
its caches again and again, until the table of inodes is as it was.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from casfs.checkpoints import create
from casfs.checkpoints.create import Content
from casfs.digest import Digest
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Subdirectory
from casfs.trees.recorded_state import RecordedState
from tests.support.lasting import CACHES, ROOT_ONLY, inodes
from tests.support.served import Mount

CHECKPOINTS = 100  # of each name
NAMES = ["first", "second", "third", "fourth"]
FOLDERS = 80  # in a checkpoint; each is an inode of its own
TRIES = 50
TABLE = "memfd:casfs-inodes"
LEAST = 64  # bytes of the table for each inode
A_VNODE = 300  # bytes of the server's memory, at least
PAGE = 4096


@pytest.fixture
def checkpoints(mount: Mount) -> dict[str, list[Path]]:
    """By name: all differ, but the names have the same ones, under other paths."""
    made: dict[str, list[Path]] = {}
    with mount.store.batch() as batch:
        blob = batch.put(b"a file of all of them\n")
        inner = batch.put_node("directory", directory.encode([File(b"file", blob)]))
        folders = [Subdirectory(b"folder-%03d" % number, inner) for number in range(FOLDERS)]
        stats = {"files": FOLDERS + 1, "bytes": 0, "added": 0, "modified": 0, "deleted": 0}
        for name in NAMES:
            last = None
            for number in range(CHECKPOINTS):
                own: Digest = batch.put(b"of number %d\n" % number)
                root = batch.put_node("directory", directory.encode([File(b"own", own), *folders]))
                last = create.put(
                    batch, name, last, Content(RecordedState(root.hash), "", stats, [])
                )
                made.setdefault(name, []).append(mount.path / "trees" / name / last.id)
    return made


def walk(mount: Mount, tops: Sequence[Path]) -> None:
    """Look at all, read some; as many inodes are held then."""
    wanted = inodes(mount) + len(tops) * (FOLDERS + 2)
    for _ in range(TRIES):
        found = subprocess.check_output(["find", *tops, "-printf", "%y\n"]).split()
        assert (found.count(b"d"), found.count(b"f")) == (len(tops) * (FOLDERS + 1),) * 2
        subprocess.run(["grep", "-rq", "nowhere", *tops[:10]], check=False)
        if inodes(mount) >= wanted and resident(mount)[1] >= wanted * LEAST:
            return  # nobody else has dropped the caches meanwhile
    pytest.fail(f"{inodes(mount)} inodes are held in {resident(mount)[1]} bytes, of {wanted}")


def forget(mount: Mount, base: int) -> None:
    """Returns when no more than `base` inodes are held."""
    for number in range(TRIES):
        CACHES.write_text("3\n" if number % 2 else "2\n")
        held = inodes(mount)
        if held <= base:
            return
    pytest.fail(f"{held} inodes are held after {TRIES} times; before the walk {base} were")


def resident(mount: Mount) -> tuple[int, int]:
    """Bytes of the server's memory: all, and of it the mapped table of inodes."""
    process = Path("/proc") / str(mount.state().worker)
    total = int(re.findall(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())[0])
    mapped = re.findall(rf"{TABLE}.*\n(?:.*\n)*?Rss:\s+(\d+) kB", (process / "smaps").read_text())
    return total << 10, sum(map(int, mapped)) << 10


@ROOT_ONLY
def test_walks_leave_nothing_behind(mount: Mount, checkpoints: dict[str, list[Path]]) -> None:
    """The first walk fills the caches of nodes, which are bounded; the others find all there."""
    base = inodes(mount)
    walk(mount, checkpoints["first"])
    forget(mount, base)
    before, table = resident(mount)
    for name in NAMES[1:]:
        walk(mount, checkpoints[name])
        forget(mount, base)
        assert resident(mount)[1] <= table + PAGE
    leaked = (len(NAMES) - 1) * CHECKPOINTS * FOLDERS * A_VNODE
    assert resident(mount)[0] < before + leaked / 2
