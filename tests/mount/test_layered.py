"""A thread's workspace as an overlay: the same as a copy, and nothing of it stays mounted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import (
    alive,
    daemon,
    kill,
    loop,
    pids,
    says,
    spawn,
    start_thread,
    steps,
    until,
)
from helpers import Program, put_tree, read_tree, take, write_tree
from served import Mount

from casfs import kernel, threads
from casfs.errors import Failed
from casfs.mount import mounted, unmount
from casfs.store import Store
from casfs.trees.restore import restore
from engine import catalog, control, layered
from engine.layered import Layered

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount overlays")
SAMPLE = {"a": {"f": b"one", "g": b"two" * 1000}, "run": Program(b"#!"), "empty": {}}


@pytest.fixture
def root(mount: Mount) -> str:
    return put_tree(mount.store, SAMPLE)


@pytest.fixture
def workspace(mount: Mount) -> Iterator[Layered]:
    assert mount.store.root is not None
    made = Layered(mount.store, mount.store.root / "workspaces" / "T", trees(mount))
    yield made
    made.remove()


def trees(mount: Mount) -> Any:
    return lambda hash: mount.path / "trees" / hash


def points(store: Store | Path) -> list[Path]:
    folder = store if isinstance(store, Path) else store.root
    assert folder is not None
    return kernel.mounted_below(folder / "workspaces")


def test_it_holds_and_records_trees(mount: Mount, workspace: Layered, root: str) -> None:
    workspace.reset(root)
    assert points(mount.store) == [workspace.path]
    assert read_tree(workspace.path) == read_tree(mount.path / "trees" / root)
    assert workspace.record() == workspace.root == root
    write_tree(workspace.path / "a", {"f": b"new", "h": b"more"})
    (workspace.path / "run").unlink()
    second = workspace.record()
    assert second == take(mount.store, workspace.path) != root
    workspace.reset(root)
    assert workspace.record() == root
    workspace.remove()
    workspace.remove()
    assert points(mount.store) == []
    assert os.listdir(mount.store.root / "workspaces") == []  # type: ignore[operator]


def test_every_step_begins_with_an_empty_upper(mount: Mount, workspace: Layered, root: str) -> None:
    workspace.reset(root)
    write_tree(workspace.path / "a", {"f": b"new"})
    after = workspace.record()
    workspace.reset(after)
    assert os.listdir(workspace.path.parent / "upper") == []
    assert read_tree(workspace.path / "a")[b"f"] == b"new"
    assert workspace.record() == after
    number = workspace.path.stat().st_dev
    workspace.reset(after)
    assert workspace.path.stat().st_dev == number, "nothing was changed: nothing to be done"


def test_a_process_that_stays_behind_keeps_nothing(
    mount: Mount, workspace: Layered, root: str
) -> None:
    workspace.reset(root)
    with (workspace.path / "a/f").open("r+") as held:
        workspace.reset(root)
        held.write("too late")
        held.flush()
        assert workspace.record() == root


def test_without_a_mount_it_is_a_copy(disk_store: Store, tmp_path: Path) -> None:
    said: list[str] = []

    def none(hash: str) -> Path:
        raise Failed("no mount here")

    root = put_tree(disk_store, SAMPLE)
    folder = tmp_path / "store/workspaces/T"
    workspace = Layered(disk_store, folder, none, lambda event, **more: said.append(event))
    workspace.reset(root)
    (workspace.path / "a/f").write_text("changed")
    assert points(disk_store) == []
    assert workspace.record() == take(disk_store, workspace.path) != root
    assert said == ["no overlay"]
    workspace.remove()
    assert os.listdir(folder.parent) == []


def test_unmounted_by_somebody_it_is_not_recorded(
    mount: Mount, workspace: Layered, root: str
) -> None:
    """An empty directory is not what the agent left."""
    workspace.reset(root)
    kernel.unmount(workspace.path)
    with pytest.raises(Failed, match="unmounted by somebody"):
        workspace.record()


def test_what_a_killed_daemon_left_is_unmounted(
    mount: Mount, workspace: Layered, root: str
) -> None:
    assert mount.store.root is not None
    workspace.reset(root)
    with (workspace.path / "a/f").open():
        assert layered.clean(mount.store.root) == 1
    assert points(mount.store) == []
    assert layered.clean(mount.store.root) == 0
    workspace.reset(root)
    assert workspace.record() == root


# -- the daemon ---------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """(a store with a workflow of three steps, a tree)"""
    folder = tmp_path / "place"
    with Store.init(folder) as store:
        catalog.add(store, loop(3))
        tree = put_tree(store, {**SAMPLE, "log": b""})
    yield folder, tree
    for point in [*points(folder), *mounted(folder)]:
        kernel.unmount(point, lazy=True)


def logs(root: Path, id: str, where: Path) -> list[bytes]:
    """What the file `log` was after each step."""
    with Store.open(root) as store:
        found = [step["workspace"] for step in steps(store, threads.get(store, id))]
        for number, tree in enumerate(found):
            restore(store, tree, where / str(number))
    return [(where / str(number) / "log").read_bytes() for number in range(len(found))]


def test_the_engine_works_in_overlays(place: tuple[Path, str], tmp_path: Path) -> None:
    root, tree = place
    go = tmp_path / "go"
    wait = f"echo $$ >>{tmp_path}/pids; while [ ! -e {go} ]; do sleep 0.01; done"
    agent = says({}, f"stat -f -c %T . >>log; {wait}")
    with daemon(root):
        id = start_thread(root, "sample", {"a": agent}, workspace=tree)
        until(lambda: pids(tmp_path / "pids"), "the agent")
        assert points(root) == [root / "workspaces" / id / "tree"]
        assert len(mounted(root)) == 1
        go.touch()
        assert control.request(root, "wait", id=id)["status"] == "ended"
        assert points(root) == []
        assert os.listdir(root / "workspaces") == []
        made = control.request(root, "fork", id=id, at=1)
        assert control.request(root, "wait", id=made["id"])["status"] == "ended"
    wanted = [b"overlayfs\n" * number for number in (1, 2, 3)]
    assert logs(root, id, tmp_path / "out") == wanted
    assert logs(root, made["id"], tmp_path / "forked") == wanted
    assert mounted(root) == []


def test_killed_with_an_overlay_mounted(place: tuple[Path, str], tmp_path: Path) -> None:
    root, tree = place
    side, go = tmp_path / "side", tmp_path / "go"
    agent = says(
        {}, f"echo $CASFS_STEP >>log; echo $$ >>{side}; while [ ! -e {go} ]; do sleep 0.01; done"
    )
    with daemon(root) as first:
        id = start_thread(root, "sample", {"a": agent}, workspace=tree)
        until(lambda: len(pids(side)) == 1, "the agent")
        kill(first)
        assert len(points(root)) == 1
        with daemon(root):
            until(lambda: len(pids(side)) == 2, "the agent that is run again")
            assert not alive(pids(side)[0])
            assert len(points(root)) == 1
            go.touch()
            assert control.request(root, "wait", id=id)["status"] == "ended"
    assert points(root) == mounted(root) == []
    assert os.listdir(root / "workspaces") == []
    assert logs(root, id, tmp_path / "out") == [b"1\n", b"1\n2\n", b"1\n2\n3\n"]


def test_stopping_leaves_nothing_mounted(place: tuple[Path, str], tmp_path: Path) -> None:
    root, tree = place
    side = tmp_path / "side"
    with daemon(root):
        agent = says({}, f"echo $$ >>{side}; sleep 600")
        id = start_thread(root, "sample", {"a": agent}, workspace=tree)
        until(lambda: pids(side), "the agent")
        assert spawn("--store", root, "daemon", "stop").returncode == 0
        assert points(root) == mounted(root) == []
    assert not alive(pids(side)[0])
    with daemon(root):
        until(lambda: len(pids(side)) == 2, "the agent that is run again")
        control.request(root, "cancel", id=id)
        assert points(root) == []
        assert os.listdir(root / "workspaces") == []


def test_a_mount_that_dies_costs_one_try(place: tuple[Path, str], tmp_path: Path) -> None:
    """The thread is suspended or goes on; resumed, it ends, on a new mount."""
    root, tree = place
    side, go = tmp_path / "side", tmp_path / "go"
    script = (
        f"echo $$ >>{side}; while [ ! -e {go} ]; do sleep 0.01; done; cat a/g >/dev/null || exit 1"
    )
    with daemon(root):
        id = start_thread(root, "sample", {"a": says({}, script)}, workspace=tree)
        until(lambda: pids(side), "the agent")
        (point,) = mounted(root)
        unmount(point, lazy=True)
        kill(server_of(root))
        go.touch()
        assert control.request(root, "wait", id=id)["status"] == "suspended"
        control.request(root, "resume", id=id)
        assert control.request(root, "wait", id=id)["status"] == "ended"


def server_of(root: Path) -> int:
    """The process that serves the store at `root`."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            if b"mount" in words and os.fsencode(root) in words:
                return int(name)
    raise AssertionError("nobody serves it")
