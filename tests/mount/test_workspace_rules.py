"""What a commit of a workspace records, in each strategy: its modes, and all but what
`.casfsignore` names."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.trees.tree import diff
from casfs.workspaces import lifecycle, registry
from casfs.workspaces.commit import commit_workspace, is_dirty
from tests.mount.test_workspaces import EACH, opened, run
from tests.support.helpers import put_tree, take, write_tree
from tests.support.restores import restore_tree
from tests.support.served import Mount, serving, unmounted_after

TRACKED = {
    ".casfsignore": b"*.log\nlogs/\n",
    "old.log": b"one",
    "logs": {"a": b"a", "b": b"b"},
    "package.json": b"{}",
}


@pytest.fixture
def mount(disk_store: Store, tmp_path: Path, transport: str) -> Iterator[Mount]:
    """As that of workspaces, which shows private files, too."""
    with serving(disk_store, tmp_path / "mnt", with_local=True, transport=transport) as mount:
        yield mount


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with unmounted_after(tmp_path / "place") as folder:
        yield folder / "w"


def changes(store: Store, old: TreeHash, new: TreeHash) -> list[str]:
    return [f"{one.letter} {one.path.decode()}" for one in diff(store, old, new)]


@EACH
def test_a_commit_leaves_out_what_is_ignored_and_new(
    mount: Mount, place: Path, strategy: str
) -> None:
    store = mount.store
    first = opened(mount, place, strategy, put_tree(store, TRACKED))
    run(place, "echo 1 >new.log; echo 2 >logs/new")
    assert not is_dirty(store, registry.find(store, place))
    run(place, "mkdir node_modules; touch node_modules/m")
    run(place, "echo other >old.log; echo other >logs/a; rm logs/b; touch .env")
    made = commit_workspace(store, registry.find(store, place))
    assert changes(store, first.root, made.root) == [
        "M logs/a", "D logs/b", "M old.log",
    ]  # fmt: skip
    assert changes(store, made.root, registry.find(store, place).recorded.full) == [
        "A .env", "A node_modules", "A node_modules/m",
    ]  # fmt: skip
    assert {one.path for one in made.report.excluded} == {b"new.log", b"logs/new"}
    assert set(made.report.local) == {b".env"}
    run(place, "echo '!new.log' >.casfsignore")
    again = commit_workspace(store, registry.find(store, place))
    assert changes(store, made.root, again.root) == [
        "M .casfsignore", "A logs/new", "A new.log",
    ]  # fmt: skip
    run(place, "rm .casfsignore; touch last.log")
    last = commit_workspace(store, registry.find(store, place))
    assert changes(store, again.root, last.root) == ["D .casfsignore", "A last.log"]
    lifecycle.close(store, registry.find(store, place))


@EACH
def test_modes_are_kept(mount: Mount, place: Path, strategy: str, tmp_path: Path) -> None:
    """Those of the tree are seen, those that were changed are committed, others are not touched."""
    store = mount.store
    source = write_tree(tmp_path / "s", {"key": b"k", "open": b"o", "d": {"f": b""}, "e": {}})
    for name, mode in (("key", 0o600), ("d", 0o700), ("open", 0o666), (".", 0o750)):
        (source / name).chmod(mode)
    root = take(store, source)
    first = opened(mount, place, strategy, root)
    shown = run(place, "stat -c %a . key open d d/f e")
    assert shown.split() == ["750", "600", "644", "700", "644", "755"]
    assert not is_dirty(store, first)
    run(place, "umask 022; echo k >>key; chmod 400 open; echo n >new; mkdir -m 711 e/x")
    made = commit_workspace(store, registry.find(store, place)).root
    assert changes(store, root, made) == ["A e/x", "M key", "A new", "T open"]
    lifecycle.close(store, registry.find(store, place))
    restore_tree(store, made, tmp_path / "back")
    found = {
        name: stat.S_IMODE((tmp_path / "back" / name).stat().st_mode)
        for name in (".", "key", "open", "d", "d/f", "e", "e/x", "new")
    }
    assert found == {
        ".": 0o750, "key": 0o600, "open": 0o400, "d": 0o700, "d/f": 0o644, "e": 0o755,
        "e/x": 0o711, "new": 0o644,
    }  # fmt: skip
    assert take(store, tmp_path / "back") == made


def test_the_mount_shows_modes(mount: Mount, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "s", {"key": b"k", "d": {"f": b""}})
    (source / "key").chmod(0o600)
    (source / "d").chmod(0o700)
    source.chmod(0o711)
    shown = mount.path / "trees" / take(mount.store, source)
    assert (shown / "key").read_bytes() == b"k"
    modes = [stat.S_IMODE((shown / name).stat().st_mode) for name in (".", "key", "d", "d/f")]
    assert modes == [0o711, 0o600, 0o700, 0o644]
