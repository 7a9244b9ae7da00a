"""Overlays over a mounted tree or its image: no file stands for another, and a commit of the
upper is the tree that the overlay shows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import layers, overlay_mount, overlay_snapshot, strategies
from casfs.workspaces.layers import Stack
from tests.support import operations
from tests.support.helpers import put_tree, take
from tests.support.lasting import drop_caches
from tests.support.new_store import init_store
from tests.support.served import Mount, serving
from tests.support.strategies import able, skip_without

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount overlays")
TIMEOUT_S = 60  # seconds

MOUNTED = [able(name) for name in (strategies.NATIVE, strategies.OVERLAY, strategies.FUSE)]
KERNELS = MOUNTED[:2]


@contextmanager
def mounted_overlay(
    mount: Mount, root: str, folder: Path, strategy: str = strategies.OVERLAY
) -> Iterator[Stack]:
    """An overlay over the tree `root`, mounted for the time of the block."""
    point = folder / "point"
    stack = Stack(DatedTree(root), folder / "upper", point=point, changes=folder / "changes")
    layers.make_upper(mount.store, stack)
    point.mkdir()
    mounted(mount, stack, strategy)
    try:
        yield stack
    finally:
        overlay_mount.unmount(point)


def mounted(mount: Mount, stack: Stack, strategy: str) -> None:
    state = RecordedState.of_tree(stack.lower)
    layers.fill(
        mount.store,
        strategies.STRATEGIES[strategy],
        stack,
        state,
        lambda root: mount.path / "trees" / root.name,
    )


def commit(store: Store, root: str, upper: Path, strategy: str = strategies.OVERLAY) -> str:
    with store.batch() as batch:
        return overlay_snapshot.snapshot(
            store,
            batch,
            DatedTree(root),
            upper,
            marks_by_files=strategies.STRATEGIES[strategy].marks_by_files,
        ).tree


# -- many files that are alike ------------------------------------------------------------

ALIKE = b"alike\n" * 1000
SMALL = b"small\n"


def alike() -> dict[str, object]:
    """The same content under equal and different names, in directories that are equal too."""
    folder = {"same": ALIKE, "other": ALIKE, "small": SMALL, "small2": SMALL}
    return {**folder, "a": folder, "b": folder, "c": {"deep": folder, "same": ALIKE}}


def contents(top: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in top.rglob("*") if path.is_file())
    return {
        str(path.relative_to(top)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in files
    }


def _write(path: Path) -> None:
    path.write_bytes(b"new")


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _rename(path: Path) -> None:
    path.rename(path.with_name("renamed"))


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": _write,
    "append": _append,
    "chmod": lambda path: path.chmod(0o700),
    "rename": _rename,
    "unlink": Path.unlink,
}


@pytest.mark.parametrize("strategy", MOUNTED)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["same", "small", "a/same", "c/deep/small2"])
def test_a_change_to_one_of_many_equal_files_changes_that_one(
    mounted_alike: tuple[Mount, str], change: str, name: str, strategy: str, tmp_path: Path
) -> None:
    mount, root = mounted_alike
    with mounted_overlay(mount, root, tmp_path, strategy) as stack:
        before = contents(stack.point)
        assert len({path.stat().st_ino for path in stack.point.rglob("*")}) > len(before)
        CHANGES[change](stack.point / name)
        for drop in (False, True):
            if drop:
                drop_caches()
            after = contents(stack.point)
            differing = {path for path in before if after.get(path) != before[path]}
            assert differing == {name}
            assert after.keys() - before.keys() <= {str(Path(name).with_name("renamed"))}
        new = commit(mount.store, root, stack.upper, strategy)
        assert new == take(mount.store, stack.point) != root
    assert contents(mount.path / "trees" / root) == before


@pytest.fixture(scope="module")
def mounted_alike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mount, str]]:
    folder = tmp_path_factory.mktemp("alike")
    with init_store(folder / "store") as store, serving(store, folder / "mnt") as mount:
        yield mount, put_tree(store, alike())


# -- random scripts -----------------------------------------------------------------------


def sample() -> dict[str, object]:
    many = {f"file-{number}": b"%d\n" % number for number in range(20)}
    return {
        **{name: {"a": ALIKE, "b": SMALL, "e": {"deep": many}} for name in "abc"},
        "d": {"x": {"y": {"z": {"a": ALIKE}}}, "empty": {}},
        "top": b"top",
        "big": bytes(range(256)) * 500,
    }


def played(mount: Mount, seed: int, count: int, folder: Path, strategy: str) -> None:
    """A script on a plain copy and on an overlay, committed half strategy and at the end; and the
    overlay mounted again shows what was committed."""
    root = put_tree(mount.store, sample())
    plain = folder / "plain"
    shutil.copytree(mount.path / "trees" / root, plain, symlinks=True)
    with mounted_overlay(mount, root, folder, strategy) as stack:
        for part in range(2):
            script = operations.script(seed + part, count // 2, str(plain))
            for operation in script:
                operations.play(str(stack.point), operation)
            wanted = take(mount.store, plain)
            found = commit(mount.store, root, stack.upper, strategy)
            changes = [
                (change.letter, change.path) for change in tree.diff(mount.store, wanted, found)
            ]
            assert changes == []
            assert found == wanted
    try:
        mounted(mount, stack, strategy)
        assert take(mount.store, stack.point) == found
    finally:
        overlay_mount.unmount(stack.point)


@pytest.mark.parametrize("strategy", KERNELS)
@pytest.mark.parametrize("seed", range(8))
def test_a_commit_is_what_a_plain_copy_holds(
    mount: Mount, seed: int, strategy: str, tmp_path: Path
) -> None:
    played(mount, seed * 1000, 300, tmp_path, strategy)


@pytest.mark.parametrize("strategy", KERNELS)
@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(seed=st.integers(0, 1 << 32), count=st.integers(2, 60))
def test_short_scripts(
    mounted_alike: tuple[Mount, str],
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    count: int,
    strategy: str,
) -> None:
    played(mounted_alike[0], seed, count, tmp_path_factory.mktemp("script"), strategy)


@skip_without(strategies.FUSE)
@pytest.mark.parametrize("seed", range(3))
def test_a_commit_of_fuse_overlayfs_is_what_it_shows(
    mount: Mount, seed: int, tmp_path: Path
) -> None:
    """Which is not always what it should show, so the script goes by that and may fail."""
    root = put_tree(mount.store, sample())
    with mounted_overlay(mount, root, tmp_path, strategies.FUSE) as stack:
        for step in range(20):
            with suppress(OSError):
                operations.script(seed * 100 + step, 10, str(stack.point), links=False)
            found = commit(mount.store, root, stack.upper, strategies.FUSE)
            assert found == take(mount.store, stack.point)
        assert found != root


# -- what a commit costs ------------------------------------------------------------------


def test_only_the_changed_paths_are_loaded(mount: Mount, tmp_path: Path) -> None:
    store = mount.store
    root = put_tree(
        store, {f"d{n}": {f"e{m}": {"f": b"%d" % (n * m)} for m in range(10)} for n in range(10)}
    )
    with mounted_overlay(mount, root, tmp_path) as stack, Store.open(store.root) as fresh:  # type: ignore[arg-type]
        (stack.point / "d3/e4/f").write_text("new")
        seen: list[str] = []
        load = fresh.node

        def counted(hash: str, type: str | None = None) -> object:
            seen.append(hash)
            return load(hash, type)

        fresh.node = counted  # type: ignore[method-assign, assignment]
        commit(fresh, root, stack.upper)
    assert len(set(seen)) == 3
