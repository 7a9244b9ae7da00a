"""Outputs on their way to their places, and what is left when their writer is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from casfs.actions import outputs
from casfs.errors import Refused
from casfs.store.store import Store
from casfs.trees.dated import DatedTree
from tests.support.helpers import put_tree, write_tree

HALF = """
import os, sys
from pathlib import Path
from casfs.actions import outputs
from casfs.store.store import Store
from casfs.trees.dated import DatedTree
store, root, tree = sys.argv[1:]
with Store.open(Path(store)) as found, outputs.staged(found, DatedTree(tree), Path(root), ["out"]):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "in", {"out": b"old", "src": b"src"})


def place(store: Store, root: Path, content: bytes) -> None:
    tree = put_tree(store, {"out": content})
    with outputs.staged(store, DatedTree(tree), root, ["out"]) as ready:
        ready.move()


def writer(store: Store, root: Path) -> subprocess.Popen[str]:
    """Another process that has written outputs beside their place, and waits."""
    tree = put_tree(store, {"out": b"of another"})
    argv = [sys.executable, "-c", HALF, str(store.root), str(root), tree]
    made = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    return made


def test_nothing_stays_beside_them(disk_store: Store, root: Path) -> None:
    place(disk_store, root, b"new")
    assert (root / "out").read_bytes() == b"new"
    assert sorted(os.listdir(root)) == ["out", "src"]


def test_what_a_killed_writer_left_is_swept_and_a_living_one_keeps_its_own(
    disk_store: Store, root: Path
) -> None:
    with writer(disk_store, root) as dead, writer(disk_store, root) as living:
        try:
            left = {name for name in os.listdir(root) if name.startswith(outputs.STAGING_PREFIX)}
            assert len(left) == 2
            assert all(outputs.STAGING_NAME.fullmatch(name.encode()) for name in left)
            place(disk_store, root, b"new")
            assert left < set(os.listdir(root)), "both live"
            dead.kill()
            dead.wait()
            place(disk_store, root, b"newer")
            assert len(left & set(os.listdir(root))) == 1
            assert living.communicate("")[0] == ""
            assert living.returncode == 0
        finally:
            dead.kill()
            living.kill()
    assert sorted(os.listdir(root)) == ["out", "src"]
    assert (root / "out").read_bytes() == b"newer"


def test_only_what_has_just_such_a_name_is_swept(disk_store: Store, root: Path) -> None:
    mine = {
        ".casfs.out.mine": {"f": b""},
        ".casfs.0123456789abcdef": {"f": b"a restore's"},
        ".casfs.out.0123456789abcdef0": {"f": b""},
    }
    write_tree(root, mine)
    outside = write_tree(root.parent / "outside", {"f": b""})
    (root / ".casfs.out.0123456789abcdef").symlink_to(outside)
    place(disk_store, root, b"new")
    assert set(mine) < set(os.listdir(root))
    assert os.listdir(outside) == ["f"]


def test_a_link_on_the_way_is_refused(disk_store: Store, root: Path) -> None:
    (root / "way").symlink_to(root.parent)
    tree = put_tree(disk_store, {"way": {"out": b"new"}})
    with (
        outputs.staged(disk_store, DatedTree(tree), root, ["way/out"]) as ready,
        pytest.raises(Refused),
    ):
        ready.move()
    assert not (root.parent / "out").exists()
