"""Ignored files as the lowest layer of a thread's overlay: seen, written to, never lost, and there
once for all threads."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.system import rmtree
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import stat_cache, walker
from casfs.workspaces import ignored_files, strategies
from casfs.workspaces.desk import OVERLAYS, Desk
from casfs.workspaces.ignored_files import IgnoredFiles
from tests.support import operations
from tests.support.helpers import put_tree, read_tree, write_tree
from tests.support.served import Mount
from tests.support.strategies import able

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount overlays")
MOUNTED = [able(name) for name in (strategies.NATIVE, strategies.OVERLAY)]
BIG = b"big" * 100_000
WORK: dict[str, Any] = {"a": {"f": b"one"}, "pkg": {"code": b"two" * 1000}, "z": b"z"}
IGNORED: dict[str, Any] = {
    "data": {"big": BIG, "deep": {"small": b"s"}},
    "pkg": {"cache": {"c": b"cached"}, "local": b"l"},
}
PATHS = [b"data", b"pkg/cache", b"pkg/local"]


def keep(store: Store, directory: Path) -> IgnoredFiles:
    token = ignored_files.keep(
        store,
        directory,
        paths=PATHS,
        patterns=b"/data/\n/pkg/cache/\n/pkg/local\n",
        on_unreadable=pytest.fail,
    )
    return ignored_files.load(store, token)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "project", IGNORED)


@pytest.fixture
def state(mount: Mount) -> RecordedState:
    return RecordedState(put_tree(mount.store, WORK))


@pytest.fixture(params=MOUNTED)
def workspace(mount: Mount, project: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = Desk(
        mount.store,
        mount.store.root / "workspaces" / "T",
        lambda root: mount.path / "trees" / root.name,
        preferred=[request.param],
    )
    made.ignored = keep(mount.store, project)
    yield made
    made.remove()


LARGE = os.urandom(300_000)


def put_large(store: Store) -> str:
    return str(store.put(LARGE).hash)


def allocated(directory: Path) -> int:
    return sum(path.lstat().st_blocks for path in directory.rglob("*")) * 512


def files_of(store: Store, root: str) -> dict[bytes, Entry]:
    walked = tree.walk(store, root)
    return {path: entry for path, entry in walked if not isinstance(entry, Subdirectory)}


def test_they_are_seen_and_cost_nothing(workspace: Desk, state: RecordedState) -> None:
    workspace.reset(state)
    assert (workspace.path / "data/big").read_bytes() == BIG
    assert (workspace.path / "pkg/local").read_bytes() == b"l"
    assert workspace.record() == state
    assert allocated(workspace.path.parent / "upper") < 10_000


def test_what_an_agent_writes_to_them_is_not_recorded_and_not_kept(
    mount: Mount, workspace: Desk, state: RecordedState, project: Path
) -> None:
    workspace.reset(state)
    with (workspace.path / "data/big").open("ab") as file:
        file.write(b"more")
    (workspace.path / "data/new").write_bytes(b"n")
    (workspace.path / "pkg/local").unlink()
    (workspace.path / "z").write_bytes(b"changed")
    after = workspace.record()
    assert files_of(mount.store, after.full).keys() == {b"a/f", b"pkg/code", b"z"}
    layer = workspace.ignored.layer
    assert layer is not None
    assert read_tree(layer) == read_tree(project)
    workspace.reset(after)
    assert read_tree(workspace.path / "data") == read_tree(project / "data")
    assert (workspace.path / "pkg/local").read_bytes() == b"l"


@pytest.mark.parametrize(
    ("old", "new", "added"),
    [
        ("data/big", "moved", {b"moved": BIG}),
        ("data", "other", {b"other/big": BIG, b"other/deep/small": b"s"}),
        ("data/deep", "a/deep", {b"a/deep/small": b"s"}),
        ("pkg", "pkg2", {b"pkg2/code": WORK["pkg"]["code"], b"pkg2/cache/c": b"cached"}),
    ],
)
def test_what_is_moved_out_of_them_is_recorded(
    mount: Mount,
    workspace: Desk,
    state: RecordedState,
    old: str,
    new: str,
    added: dict[bytes, bytes],
) -> None:
    workspace.reset(state)
    os.rename(workspace.path / old, workspace.path / new)
    turn = workspace.record_turn()
    after = workspace.record()
    assert turn == after
    recorded = files_of(mount.store, after.tree)
    for path, content in added.items():
        entry = recorded[path]
        assert isinstance(entry, File)
        assert mount.store.get(entry.digest.hash) == content
    assert not [path for path in recorded if path.startswith(os.fsencode(old) + b"/")]


def test_links_to_them_and_other_modes_of_moved_ones(
    mount: Mount, workspace: Desk, state: RecordedState
) -> None:
    workspace.reset(state)
    os.link(workspace.path / "data/big", workspace.path / "linked")
    (workspace.path / "data/deep/small").chmod(0o755)
    os.rename(workspace.path / "data/deep/small", workspace.path / "a/small")
    recorded = files_of(mount.store, workspace.record().tree)
    small = recorded[b"a/small"]
    linked = recorded[b"linked"]
    assert isinstance(small, File)
    assert isinstance(linked, File)
    assert small.executable
    assert mount.store.get(small.digest.hash) == b"s"
    assert mount.store.get(linked.digest.hash) == BIG


def test_a_directory_that_an_agent_removes_takes_none_of_them_from_the_next_step(
    workspace: Desk, state: RecordedState
) -> None:
    workspace.reset(state)
    shutil.rmtree(workspace.path / "pkg")
    without = workspace.record()
    workspace.reset(without)
    assert read_tree(workspace.path / "pkg") == {b"cache": {b"c": b"cached"}, b"local": b"l"}
    assert workspace.record() == without
    (workspace.path / "z").write_bytes(b"changed")
    workspace.reset(workspace.record())
    assert (workspace.path / "pkg/local").read_bytes() == b"l"
    shutil.rmtree(workspace.path / "pkg")
    (workspace.path / "pkg").write_bytes(b"a file now")
    workspace.reset(workspace.record())
    assert (workspace.path / "pkg").read_bytes() == b"a file now"


def test_what_is_deep_below_a_directory_that_an_agent_removes(
    mount: Mount, workspace: Desk
) -> None:
    """Also of an image of changes that removes a file in its way."""
    workspace.reset(RecordedState(put_tree(mount.store, {"pkg": {"x": b"x"}, "data": b"a file"})))
    shutil.rmtree(workspace.path / "pkg")
    (workspace.path / "data").unlink()
    workspace.reset(workspace.record())
    assert read_tree(workspace.path / "pkg") == {b"cache": {b"c": b"cached"}, b"local": b"l"}
    assert (workspace.path / "data/deep/small").read_bytes() == b"s"


def test_an_ignored_path_that_is_named_as_an_object_stands_for_none(
    mount: Mount, project: Path, state: RecordedState
) -> None:
    """The kernel would take it for the content of a file of the image."""
    hash = put_large(mount.store)
    write_tree(project, {hash[:2]: {hash[2:]: b"other content"}})
    token = ignored_files.keep(
        mount.store, project, paths=[hash[:2].encode()], patterns=b"", on_unreadable=pytest.fail
    )
    tree_with = put_tree(mount.store, {"large": LARGE})
    workspace = Desk(
        mount.store,
        mount.store.root / "workspaces" / "T",
        lambda root: mount.path / "trees" / root.name,
        preferred=OVERLAYS,
    )
    workspace.ignored = ignored_files.load(mount.store, token)
    try:
        workspace.reset(RecordedState(tree_with))
        assert (workspace.path / "large").read_bytes() == LARGE
        assert (workspace.path / hash[:2] / hash[2:]).read_bytes() == b"other content"
    finally:
        workspace.remove()


@pytest.mark.parametrize("seed", range(10))
def test_what_is_recorded_is_what_the_kernel_shows(
    mount: Mount, workspace: Desk, state: RecordedState, seed: int, tmp_path: Path
) -> None:
    for step in range(4):
        workspace.reset(state)
        plain = tmp_path / f"plain-{step}"
        shutil.copytree(workspace.path, plain, symlinks=True)
        for operation in operations.script(100 * seed + step, 25, str(plain)):
            operations.play(str(workspace.path), operation)
        with mount.store.batch() as batch:
            shown = walker.snapshot(batch, workspace.path, workspace._rules()).dated.tree
        shown_files = files_of(mount.store, shown)
        state = workspace.record()
        assert files_of(mount.store, state.full) == shown_files, step
        rmtree.delete(plain)


def test_unchanged_files_are_there_once_for_all_threads(
    mount: Mount, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stat_cache, "RACY_WINDOW_NS", -(10**12))  # as if all were old
    first = keep(mount.store, project).layer
    (project / "data/deep/small").write_bytes(b"S")
    second = keep(mount.store, project).layer
    assert first is not None
    assert second is not None
    assert (first / "data/deep/small").read_bytes() == b"s"
    assert (second / "data/deep/small").read_bytes() == b"S"
    assert (first / "data/big").samefile(second / "data/big")
    assert not (second / "data/big").samefile(project / "data/big")
    rmtree.delete(first.parent)
    assert read_tree(second) == read_tree(project)


def test_files_that_may_have_changed_within_a_tick_are_copied_again(
    mount: Mount, project: Path
) -> None:
    first = keep(mount.store, project).layer
    second = keep(mount.store, project).layer
    assert first is not None
    assert second is not None
    assert not (first / "data/big").samefile(second / "data/big")


def test_a_part_of_a_file_on_a_full_disk_passes_for_no_file(
    mount: Mount, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stat_cache, "RACY_WINDOW_NS", -(10**12))  # as if all were old
    copy2 = shutil.copy2

    def full(source: str, target: str, **options: Any) -> Any:
        if str(source).endswith("big"):
            Path(target).write_bytes(BIG[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return copy2(source, target, **options)

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copy2", full)
        token = ignored_files.keep(
            mount.store, project, paths=[b"data"], patterns=b"", on_unreadable=said.append
        )
    assert len(said) == 1
    layer = ignored_files.load(mount.store, token).layer
    assert layer is not None
    assert not (layer / "data/big").exists()
    whole = keep(mount.store, project).layer
    assert whole is not None
    assert (whole / "data/big").read_bytes() == BIG
