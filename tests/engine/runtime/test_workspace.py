"""The private directory of a thread: it holds just the tree that it is reset to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.threads import threads
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore_state import RestoreStates
from casfs.trees.snapshot import stat_cache, walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.workspaces.desk import Desk
from engine.runtime.workspace import sweep
from engine.threads import suspension, transitions
from engine.threads.suspension import Suspension
from tests.support.desks import desk_at
from tests.support.engine import ONE, begin, daemon, says
from tests.support.new_store import init_store


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with everything that a tree can hold, and what others leave out."""
    root = tmp_path / "project"
    for folder in ("empty", "src/node_modules", ".hg"):
        (root / folder).mkdir(parents=True)
    (root / "src/node_modules/dep.js").write_text("dep\n")
    (root / ".hg/HEAD").write_text("ref\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("../outside")
    (root / os.fsdecode(b"caf\xe9")).write_bytes(b"\0" * 5000)
    return root


@pytest.fixture
def state(disk_store: Store, project: Path) -> RecordedState:
    with disk_store.batch() as batch:
        return RecordedState.of_tree(walker.snapshot(batch, project, IgnoreRules()).dated)


@pytest.fixture
def workspace(disk_store: Store, state: RecordedState) -> Desk:
    """A workspace that holds `state`."""
    made = desk_at(disk_store, disk_store.root / "workspaces" / "T")
    made.reset(state)
    return made


def beside(workspace: Desk) -> list[str]:
    return sorted(os.listdir(workspace.path.parent))


def test_everything_is_recorded(workspace: Desk, state: RecordedState) -> None:
    assert workspace.record() == workspace.state == state
    assert (workspace.path / "src/node_modules/dep.js").exists()


def test_private_files_are_named_once(
    disk_store: Store, workspace: Desk, state: RecordedState
) -> None:
    (workspace.path / ".env").write_text("TOKEN=1\n")
    recorded = workspace.record()
    assert recorded.tree == state.tree
    assert tree.find(disk_store, recorded.full, b".env") is not None
    assert list(workspace.take_report().local) == [b".env"]
    assert workspace.take_report().local == {}
    (workspace.path / "id_rsa").touch()
    workspace.record()
    assert list(workspace.take_report().local) == [b"id_rsa"]


def test_what_did_not_change_is_not_read_again(
    workspace: Desk, state: RecordedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stat_cache, "RACY_WINDOW_NS", -(10**12))  # as if all were old
    assert workspace.record() == state
    workspace.take_report()
    (workspace.path / "new").write_text("new\n")
    changed = workspace.record()
    assert changed != state
    assert workspace._report.read == 1
    workspace.reset(state)
    assert workspace.record() == state


def test_reset_takes_back_every_change(workspace: Desk, state: RecordedState) -> None:
    (workspace.path / "run").chmod(0o644)
    (workspace.path / "empty").rmdir()
    (workspace.path / "link").unlink()
    (workspace.path / "new").write_text("new\n")
    assert workspace.record() != state
    workspace.reset(state)
    assert workspace.record() == state


def test_what_holds_the_tree_already_is_left_as_it_is(
    workspace: Desk, state: RecordedState
) -> None:
    workspace.record()
    before = (workspace.path / "run").stat().st_ino
    workspace.reset(state)
    assert (workspace.path / "run").stat().st_ino == before


def test_what_an_agent_may_have_touched_is_made_again(
    workspace: Desk, state: RecordedState
) -> None:
    before = (workspace.path / "run").stat().st_ino
    (workspace.path / "keep").touch()  # so that no number is given out twice
    kept = os.open(workspace.path / "run", os.O_RDONLY)
    workspace.reset(state)
    os.close(kept)
    assert (workspace.path / "run").stat().st_ino != before


def test_remove_leaves_nothing(workspace: Desk) -> None:
    workspace.remove()
    workspace.remove()
    assert beside(workspace) == []
    assert workspace.state is None
    with pytest.raises(NotFound):
        workspace.record()


def test_remove_takes_what_a_killed_restore_left(disk_store: Store, workspace: Desk) -> None:
    half = workspace.path.parent / RestoreStates(disk_store.root).staging_name(workspace.path)
    other = workspace.path.parent / ".casfs.0123456789abcdef"
    for made in (half, other):
        (made / "half").mkdir(parents=True)
    assert os.listdir(disk_store.root / "restored")
    workspace.remove()
    assert beside(workspace) == [other.name]
    assert os.listdir(disk_store.root / "restored") == []


def test_a_daemon_sweeps_what_threads_that_are_over_left(
    disk_store: Store, state: RecordedState
) -> None:
    folder = disk_store.root / "workspaces"
    agents = {"a": says({})}
    ended, running, suspended = (begin(disk_store, ONE, agents, state) for _ in range(3))
    transitions.cancel(disk_store, ended)
    suspension.suspend(disk_store, suspended, Suspension("a reason"))
    gone = threads.new_id()
    for name in (ended.id, running.id, suspended.id, gone):
        Desk(disk_store, folder / name).reset(state)
    opened, half = folder / "0123456789abcdef", folder / ".casfs.0123456789abcdef"
    for made in (opened / "0/upper", half / "a"):
        made.mkdir(parents=True)
    assert sweep(disk_store) == 3
    assert set(os.listdir(folder)) == {running.id, suspended.id, opened.name}
    assert len(os.listdir(disk_store.root / "restored")) == 2
    assert sweep(disk_store) == 0


def test_a_daemon_sweeps_when_it_starts(disk_store: Store, state: RecordedState) -> None:
    ended = begin(disk_store, ONE, {"a": says({})}, state)
    transitions.cancel(disk_store, ended)
    place = disk_store.root / "workspaces" / ended.id
    Desk(disk_store, place).reset(state)
    with daemon(disk_store.root):
        assert not place.exists()
    lines = (disk_store.root / "log/daemon.jsonl").read_text().splitlines()
    assert [one["workspaces"] for one in map(json.loads, lines) if one["event"] == "swept"] == [1]


def test_nothing_to_sweep(store: Store, disk_store: Store) -> None:
    assert sweep(store) == sweep(disk_store) == 0


def test_write_protected_directories_are_removed_and_links_not_followed(
    disk_store: Store, state: RecordedState, runtime_dir: Path
) -> None:
    """Root is stopped by no mode, so root does this as somebody else, in a child process; he
    has a store of his own."""
    own = init_store(runtime_dir / "store")
    workspace = desk_at(disk_store, runtime_dir / "workspaces" / "T")
    workspace.reset(state)
    outside = runtime_dir / "outside"
    outside.mkdir()
    (outside / "file").touch(mode=0o400)
    deep = workspace.path / "a/b"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (deep / "to-file").symlink_to(outside / "file")
    (deep / "to-folder").symlink_to(outside)
    everything = _below(runtime_dir)
    for path, mode in ((deep, 0o000), (deep.parent, 0o500), (workspace.path, 0o500)):
        path.chmod(mode)
    outside.chmod(0o500)
    _as_nobody(desk_at(own, workspace.path), everything)
    own.close()
    assert beside(workspace) == []
    assert (outside / "file").stat().st_mode & 0o777 == 0o400
    assert outside.stat().st_mode & 0o777 == 0o500


def _below(top: Path) -> list[Path]:
    return [top, *(Path(folder, name) for folder, a, b in os.walk(top) for name in [*a, *b])]


def _as_nobody(workspace: Desk, paths: list[Path]) -> None:
    """Remove the workspace without root's powers; `paths` are given away for that."""
    if os.geteuid() != 0:
        workspace.remove()
        return
    for path in paths:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            workspace.remove()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("target", ["/etc", "/no/such"])
def test_a_link_in_its_place_is_removed_not_followed(
    target: str, workspace: Desk, state: RecordedState
) -> None:
    workspace.path.rename(workspace.path.with_name("moved"))
    workspace.path.symlink_to(target)
    workspace.reset(state)
    assert not workspace.path.is_symlink()
    assert workspace.record() == state
