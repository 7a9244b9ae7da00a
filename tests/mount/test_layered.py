"""A thread's workspace as an overlay: the same as a copy, and nothing of it stays mounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import CasfsError, Failed, Refused
from casfs.mount import registry
from casfs.mount.mount_points import unmount
from casfs.native import images
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system import daemon_socket, mounts, rmtree
from casfs.system.store_mounts import mounted
from casfs.threads import threads
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import stat_cache
from casfs.workspaces import desk, layers, overlay_snapshot, strategies
from casfs.workspaces.desk import OVERLAYS, Desk
from engine.workflow import registry as workflows
from tests.support import operations
from tests.support.engine import (
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
from tests.support.helpers import Program, put_tree, read_tree, take, write_tree
from tests.support.new_store import init_store
from tests.support.restores import restore_tree
from tests.support.served import Mount
from tests.support.strategies import able

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount overlays")
MOUNTED = [able(name) for name in (strategies.NATIVE, strategies.OVERLAY)]
EACH = pytest.mark.parametrize("strategy", MOUNTED)
SAMPLE: dict[str, Any] = {
    "a": {"f": b"one", "g": b"two" * 1000},
    "run": Program(b"#!"),
    "empty": {},
}


@pytest.fixture
def state(mount: Mount) -> RecordedState:
    return RecordedState(put_tree(mount.store, SAMPLE))


@pytest.fixture(params=MOUNTED)
def workspace(mount: Mount, request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = of_thread(mount, request.param)
    yield made
    made.remove()


def of_thread(mount: Mount, strategy: str) -> Desk:
    folder = mount.store.root / "workspaces" / "T"
    return Desk(mount.store, folder, trees(mount), preferred=[strategy])


def trees(mount: Mount) -> Any:
    return lambda root: mount.path / "trees" / root.name


def points(store: Store | Path) -> list[Path]:
    folder = store if isinstance(store, Path) else store.root
    assert folder is not None
    return mounts.mounted_below(folder / "workspaces")


def test_it_holds_and_records_trees(mount: Mount, workspace: Desk, state: RecordedState) -> None:
    workspace.reset(state)
    assert points(mount.store) == [workspace.path]
    assert read_tree(workspace.path) == read_tree(mount.path / "trees" / state.full)
    assert workspace.record() == workspace.state == state
    write_tree(workspace.path / "a", {"f": b"new", "h": b"more"})
    (workspace.path / "run").unlink()
    second = workspace.record()
    assert second.tree == take(mount.store, workspace.path) != state.tree
    workspace.reset(state)
    assert workspace.record() == state
    workspace.remove()
    workspace.remove()
    assert points(mount.store) == []
    assert os.listdir(mount.store.root / "workspaces") == []  # type: ignore[operator]


def test_every_step_begins_with_an_empty_upper(
    mount: Mount, workspace: Desk, state: RecordedState
) -> None:
    workspace.reset(state)
    write_tree(workspace.path / "a", {"f": b"new"})
    after = workspace.record()
    workspace.reset(after)
    assert os.listdir(workspace.path.parent / "upper") == []
    assert read_tree(workspace.path / "a")[b"f"] == b"new"
    assert workspace.record() == after
    number = workspace.path.stat().st_dev
    workspace.reset(after)
    assert workspace.path.stat().st_dev == number, "nothing was changed: nothing to be done"


def test_a_step_that_wrote_nothing_does_not_read_the_tree(
    workspace: Desk, state: RecordedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, snapshots = overlay_snapshot.snapshot, []

    def counted(*arguments: Any, **options: Any) -> Any:
        snapshots.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(overlay_snapshot, "snapshot", counted)
    for _ in range(2):
        workspace.reset(state)
        (workspace.path / "a/f").read_bytes()
        assert workspace.record() == state
    assert snapshots == []
    workspace.reset(state)
    workspace.path.chmod(0o700)
    private = workspace.record()
    assert private != state
    workspace.reset(private)
    assert workspace.record() == private
    (workspace.path / "new").write_bytes(b"1")
    assert workspace.record() != private
    assert len(snapshots) == 2


def test_a_process_that_stays_behind_keeps_nothing(
    mount: Mount, workspace: Desk, state: RecordedState
) -> None:
    workspace.reset(state)
    with (workspace.path / "a/f").open("r+") as held:
        workspace.reset(state)
        held.write("too late")
        held.flush()
        assert workspace.record() == state


@pytest.mark.parametrize("error", [Failed("no mount"), Refused("not empty"), OSError(13, "no")])
def test_without_a_mount_it_is_a_copy(disk_store: Store, tmp_path: Path, error: Exception) -> None:
    said: list[str] = []

    def none(root: DatedTree) -> Path:
        raise error

    root = put_tree(disk_store, SAMPLE)
    folder = tmp_path / "store/workspaces/T"
    (disk_store.root / "images").touch()  # type: ignore[operator]  # so that there can be none
    workspace = Desk(
        disk_store,
        folder,
        none,
        lambda event, **more: said.append(more["strategy"]),
        preferred=OVERLAYS,
    )
    workspace.reset(RecordedState(root))
    (workspace.path / "a/f").write_text("changed")
    assert points(disk_store) == []
    assert workspace.record().full == take(disk_store, workspace.path) != root
    assert said[-1] == strategies.OVERLAY
    workspace.remove()
    assert os.listdir(folder.parent) == []


@EACH
@pytest.mark.parametrize("few", [30, layers.MAX_DIFFERENT])
def test_steps_are_what_a_plain_copy_holds(
    mount: Mount, strategy: str, few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many earlier steps its layers are made of."""
    monkeypatch.setattr(layers, "MAX_DIFFERENT", few)
    many = {f"file-{number}": b"%d\n" % number for number in range(400)}
    root = put_tree(mount.store, {**SAMPLE, "many": many, "large": {"l": bytes(5000)}})
    workspace = of_thread(mount, strategy)
    try:
        for step in range(12):
            workspace.reset(RecordedState(root))
            assert take(mount.store, workspace.path) == root
            plain = tmp_path / str(step)
            restore_tree(mount.store, root, plain, parents=True)
            for operation in operations.script(step, 20, str(plain)):
                operations.play(str(workspace.path), operation)
            root = workspace.record().full
            assert root == take(mount.store, plain)
    finally:
        workspace.remove()
    count = len(images.roots(mount.store))
    if strategy == strategies.NATIVE:
        assert count == 1 if few == 5000 else 1 < count < 12


def test_unmounted_by_somebody_it_is_not_recorded(
    mount: Mount, workspace: Desk, state: RecordedState
) -> None:
    """An empty directory is not what the agent left."""
    workspace.reset(state)
    mounts.unmount(workspace.path)
    with pytest.raises(Failed, match="unmounted by another process"):
        workspace.record()


def test_what_a_killed_daemon_left_is_unmounted(
    mount: Mount, workspace: Desk, state: RecordedState
) -> None:
    workspace.reset(state)
    with (workspace.path / "a/f").open():
        assert desk.unmount_all(mount.store.root) == 1
    assert points(mount.store) == []
    assert desk.unmount_all(mount.store.root) == 0
    workspace.reset(state)
    assert workspace.record() == state


# -- the daemon ---------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """(a store with a workflow of three steps, a tree)"""
    folder = tmp_path / "place"
    with init_store(folder) as store:
        workflows.add(store, loop(3))
        tree = put_tree(store, {**SAMPLE, "log": b""})
    yield folder, tree
    for point in [*points(folder), *mounted(folder)]:
        mounts.unmount(point, lazy=True)


def logs(root: Path, id: str, where: Path) -> list[bytes]:
    """What the file `log` was after each step."""
    with Store.open(root) as store:
        found = [step["workspace"] for step in steps(store, threads.get(store, id))]
        for number, tree in enumerate(found):
            restore_tree(store, tree, where / str(number), parents=True)
    return [(where / str(number) / "log").read_bytes() for number in range(len(found))]


@EACH
def test_the_engine_works_in_overlays(
    place: tuple[Path, str], strategy: str, tmp_path: Path
) -> None:
    root, tree = place
    if strategy != strategies.NATIVE:
        (root / "images").touch()  # so that there can be none
    go = tmp_path / "go"
    wait = f"echo $$ >>{tmp_path}/pids; while [ ! -e {go} ]; do sleep 0.01; done"
    agent = says({}, f"stat -f -c %T . >>log; {wait}")
    with daemon(root):
        id = start_thread(root, "sample", {"a": agent}, workspace=tree)
        until(lambda: pids(tmp_path / "pids"), "the agent")
        assert points(root) == [root / "workspaces" / id / "tree"]
        assert len(mounted(root)) == (strategy != strategies.NATIVE), (
            "it needs no process to serve it"
        )
        go.touch()
        assert daemon_socket.request(root, "wait", id=id)["status"] == "ended"
        assert points(root) == []
        assert os.listdir(root / "workspaces") == []
        made = daemon_socket.request(root, "fork", id=id, at=1)
        assert daemon_socket.request(root, "wait", id=made["id"])["status"] == "ended"
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
            assert daemon_socket.request(root, "wait", id=id)["status"] == "ended"
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
        daemon_socket.request(root, "cancel", id=id)
        assert points(root) == []
        assert os.listdir(root / "workspaces") == []


def test_a_mount_that_dies_costs_one_try(place: tuple[Path, str], tmp_path: Path) -> None:
    """The thread is suspended or goes on; resumed, it ends, on a new mount."""
    root, tree = place
    (root / "images").touch()  # so that there can be none, and it stands on the mount
    side, go = tmp_path / "side", tmp_path / "go"
    script = (
        f"echo $$ >>{side}; while [ ! -e {go} ]; do sleep 0.01; done; cat a/g >/dev/null || exit 1"
    )
    with daemon(root):
        id = start_thread(root, "sample", {"a": says({}, script)}, workspace=tree)
        until(lambda: pids(side), "the agent")
        (point,) = mounted(root)
        (serving,) = registry.listing(root)
        unmount(point, lazy=True)
        kill(serving.supervisor)
        kill(serving.worker)
        go.touch()
        assert daemon_socket.request(root, "wait", id=id)["status"] == "suspended"
        daemon_socket.request(root, "resume", id=id)
        assert daemon_socket.request(root, "wait", id=id)["status"] == "ended"


def test_trees_of_turns_change_nothing_of_what_comes_after(
    mount: Mount, workspace: Desk, state: RecordedState
) -> None:
    workspace.reset(state)
    assert workspace.record_turn() == state
    (workspace.path / "a/f").write_bytes(b"three")
    first = workspace.record_turn()
    assert first.tree == put_tree(mount.store, {**SAMPLE, "a": {**SAMPLE["a"], "f": b"three"}})
    assert workspace.state is None, "the agent may write from now on too"
    (workspace.path / "a/g").unlink()
    (workspace.path / "new").mkdir()
    (workspace.path / "new/.env").write_bytes(b"x")
    second = workspace.record_turn()
    assert workspace.record() == second != first
    assert tree.find(mount.store, second.tree, b"new/.env") is None, "it is private"
    assert list(workspace.take_report().local) == [b"new/.env"], "named once, by the step"
    workspace.reset(state)
    assert workspace.record() == state, "nothing is left of them"


def test_a_turn_does_not_read_files_again(
    mount: Mount, workspace: Desk, state: RecordedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.reset(state)
    file = workspace.path / "large"
    file.write_bytes(b"l" * 100_000)
    monkeypatch.setattr(stat_cache, "RACY_WINDOW_NS", 0)
    first = workspace.record_turn()
    (workspace.path / "small").write_bytes(b"s")
    read: list[int] = []
    put_staged = Batch.put_staged
    monkeypatch.setattr(
        Batch, "put_staged", lambda batch, staged: read.append(1) or put_staged(batch, staged)
    )
    second = workspace.record_turn()
    assert len(read) == 1, "only the new file"
    assert workspace.record() == second != first
    file.write_bytes(b"m" * 100_000)
    third = workspace.record_turn()
    large = [tree.find(mount.store, turn.tree, b"/large") for turn in (second, third)]
    assert large[0] != large[1]
    assert workspace.record() == third


def test_a_tree_of_a_turn_while_others_write(
    mount: Mount, workspace: Desk, state: RecordedState
) -> None:
    """Files come, go and become directories meanwhile: there is a tree, or a CasfsError."""
    workspace.reset(state)
    script = "while :; do echo $$ >x; mkdir d; echo 1 >d/y; rm x; mkdir x; rm -r d x; done"
    with subprocess.Popen(["sh", "-c", script], cwd=workspace.path) as busy:
        try:
            made = []
            for _ in range(50):
                with suppress(CasfsError):
                    made.append(workspace.record_turn())
        finally:
            busy.kill()
    assert made
    for turn in made:
        list(tree.walk(mount.store, turn.full))

    def is_restored() -> bool:
        """A child of the script may have outlived it."""
        for name in ("d", "x"):
            try:
                rmtree.delete(workspace.path / name)
            except Failed:  # it made a directory of the file meanwhile
                return False
        return workspace.record().is_equal(state)

    until(is_restored, "the tree as it was")
