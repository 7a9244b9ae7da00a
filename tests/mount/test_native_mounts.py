"""Native mounts beside gc, beside what a crash has left, and beside one another."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.digest import Digest
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.system import mounts
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import image_mount, layers, lifecycle, registry, strategies
from casfs.workspaces.commit import commit_workspace
from casfs.workspaces.layers import Stack
from casfs.workspaces.registry import Workspace
from tests.support.helpers import LARGE, Program, Tree, put_tree, read_tree
from tests.support.lasting import drop_caches
from tests.support.maintenance import age
from tests.support.native import ensure_image, needs_native
from tests.support.programs import needs

pytestmark = needs_native
NATIVE = strategies.STRATEGIES[strategies.NATIVE]
TREE: Tree = {"a": {"large": LARGE, "small": b"small"}, "run": Program(b"#!")}
EXPECTED = {b"a": {b"large": LARGE, b"small": b"small"}, b"run": Program(b"#!")}
BYTES = b"never read before\n" * 30_000


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where trees are mounted; whatever still is at the end is unmounted."""
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    for point in mounts.mounted_below(tmp_path):
        mounts.unmount(point, lazy=True)


def nowhere(root: DatedTree) -> Path:
    raise AssertionError(f"no mount of the store is needed for {hash}")


def opened(store: Store, point: Path, tree: Tree = TREE, *, read_only: bool = True) -> Workspace:
    root = put_tree(store, tree)
    return lifecycle.open(store, RecordedState(root), point, NATIVE, nowhere, read_only=read_only)


# -- beside gc ----------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
def test_an_image_that_is_mounted_may_be_evicted(
    disk_store: Store, place: Path, read_only: bool
) -> None:
    found = opened(disk_store, place / "m", read_only=read_only)
    age(disk_store)
    (gone,) = gc.collect(disk_store, limits=gc.Limits(max_bytes=1)).evicted
    assert gone.startswith(f"images/{found.root}")
    drop_caches(2)
    assert read_tree(place / "m") == EXPECTED
    if not read_only:
        (place / "m/a/large").chmod(0o755)
        changed = {**TREE, "a": {"large": Program(LARGE), "small": b"small"}}
        made = commit_workspace(disk_store, found)
        assert made.root == put_tree(disk_store, changed)
        assert made.report.read == 0


def test_an_image_that_goes_before_it_is_mounted_is_made_again(
    disk_store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, asked = put_tree(disk_store, TREE), []
    point = place / "m"
    point.mkdir()
    stack = Stack(DatedTree(root), place / "0/upper", point=point, changes=place / "changes")
    layers.make_upper(disk_store, stack)
    make = image_mount.image

    def taken_away(*arguments: Any, **options: Any) -> Path:
        image = make(*arguments, **options)
        asked.append(image)
        if len(asked) == 1:
            image.unlink()
        return image

    monkeypatch.setattr(image_mount, "image", taken_away)
    state = RecordedState(root)
    layers.fill(disk_store, NATIVE, stack, state, lambda root: pytest.fail("it needs no mount"))
    assert len(asked) == 2
    assert read_tree(point) == EXPECTED


# -- after a crash ------------------------------------------------------------------------


def test_images_that_a_crash_has_left_mounted(disk_store: Store, place: Path) -> None:
    """Killed between the mount of the image and that of the overlay."""
    root = put_tree(disk_store, TREE)
    new = registry.new(
        disk_store, place / "m", RecordedState(root), NATIVE, None, read_only=True, mode=None
    )
    registry.swap(disk_store, new.id, None, new.head)
    (place / "m").mkdir()
    spot = new.upper.with_name("lower-0")
    spot.mkdir(parents=True)
    image = ensure_image(disk_store, root)
    mounts.mount(str(image), spot, "erofs", mounts.MS_RDONLY)
    assert lifecycle.sweep(disk_store) == [new]
    assert mounts.mounted_below(new.folder) == []
    assert not new.folder.exists()
    assert not (place / "m").exists()
    assert image.exists()


# -- beside one another -------------------------------------------------------------------


@needs("fincore")
def test_what_is_cached_of_one_is_cached_of_all(disk_store: Store, place: Path) -> None:
    """Another tree, another place in it, and a writable one."""
    one = opened(disk_store, place / "one", {"f": BYTES})
    other = opened(disk_store, place / "other", {"d": {"g": BYTES, "x": b"x"}}, read_only=False)
    points = [one.path / "f", other.path / "d/g"]
    forget(disk_store, BYTES)
    assert list(map(cached, points)) == [0, 0]
    assert points[0].read_bytes() == BYTES
    assert min(map(cached, points)) >= len(BYTES)
    before = read_here()
    assert points[1].read_bytes() == BYTES
    assert read_here() == before, "from no disk"


def forget(store: Store, data: bytes) -> None:
    """Take an object out of the page cache."""
    hash = Digest.of(data).hash
    fd = os.open(store.root / "objects" / hash[:2] / hash[2:], os.O_RDONLY)
    try:
        os.sync()
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def cached(path: Path) -> int:
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


def read_here() -> int:
    """Bytes that this process has had read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes: "))
