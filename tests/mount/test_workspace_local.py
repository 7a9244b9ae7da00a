"""Private and derived files in a workspace, in each strategy: opened with it, kept by commits, and
never a part of the work."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.checkpoints import checkpoint, create
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore import restore
from casfs.workspaces import lifecycle, registry, strategies
from casfs.workspaces.commit import commit_workspace, is_dirty
from tests.mount.test_workspaces import EACH, run, trees
from tests.support import planted
from tests.support.engine import Cli
from tests.support.helpers import Program, read_tree, write_tree
from tests.support.served import Mount, serving, unmounted_after

SECRET, OTHER = planted.settings_file(), planted.settings_file("b")
PROJECT: dict[str, Any] = {
    ".env": b"KEY=1\n",
    "a": b"a\n",
    "conf": SECRET,
    "d": {"id_rsa": b"k\n"},
    "package.json": b"{}",
    "node_modules": {"m": b"m\n"},
}
WORK = {"a", "d", "package.json"}
LOCAL = {".env", "conf", "d/id_rsa", "node_modules", "node_modules/m"}
MODES = "stat -c %a .env d/id_rsa node_modules/m"


@pytest.fixture
def mount(disk_store: Store, tmp_path: Path, transport: str) -> Iterator[Mount]:
    """As that of workspaces, which shows private files, too."""
    with serving(disk_store, tmp_path / "mnt", with_local=True, transport=transport) as mount:
        yield mount


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with unmounted_after(tmp_path / "place") as folder:
        yield folder / "w"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git work tree in which nothing is tracked, so that `conf` is private."""
    found = write_tree(tmp_path / "project", PROJECT)
    (found / ".env").chmod(0o600)
    (found / "d/id_rsa").chmod(0o400)
    (found / "node_modules/m").chmod(0o711)
    subprocess.run(["git", "init", "-q", found], check=True)
    return found


def opened(
    mount: Mount, project: Path, place: Path, strategy: str, **more: Any
) -> registry.Workspace:
    made = create.create(
        mount.store, "app", project, options=create.CreateOptions(with_derived=True)
    ).checkpoint
    return lifecycle.open(
        mount.store,
        checkpoint.recorded(mount.store, made),
        place,
        strategies.STRATEGIES[strategy],
        trees(mount),
        origin=made,
        **more,
    )


def paths(store: Store, root: str) -> set[str]:
    return {path.decode() for path, _ in tree.walk(store, root)}


def content(store: Store, root: str, path: bytes) -> bytes:
    entry = tree.find(store, root, path)
    return store.get(entry.digest.hash)  # type: ignore[union-attr]


def latest(store: Store) -> RecordedState:
    found = checkpoint.latest(store, "app")
    assert found is not None
    return checkpoint.recorded(store, found)


@EACH
def test_both_are_there_and_commits_keep_them_apart(
    mount: Mount, project: Path, place: Path, strategy: str, tmp_path: Path
) -> None:
    store = mount.store
    first = opened(mount, project, place, strategy)
    shown = run(place, f"{MODES}; cat .env d/id_rsa node_modules/m conf")
    assert shown.encode() == b"600\n400\n711\nKEY=1\nk\nm\n" + SECRET
    assert not is_dirty(store, first)
    assert first.root == latest(store).tree
    assert paths(store, first.root) == WORK

    run(place, "echo 2 >>.env; echo n >node_modules/new; echo K >d/.netrc")
    assert is_dirty(store, registry.find(store, place)), "a private file counts"
    made = commit_workspace(store, registry.find(store, place))
    assert made.root == first.root, "the work is the same"
    assert made.checkpoint is not None
    state = latest(store)
    assert paths(store, state.tree) == WORK
    assert paths(store, state.full) == WORK | LOCAL | {"d/.netrc", "node_modules/new"}
    assert not is_dirty(store, registry.find(store, place))

    run(place, "echo b >>a; rm d/id_rsa")
    commit_workspace(store, registry.find(store, place))
    state = latest(store)
    assert content(store, state.tree, b"a") == b"a\nb\n"
    assert paths(store, state.tree) == WORK
    assert paths(store, state.full) == paths(store, state.tree) | (LOCAL - {"d/id_rsa"}) | {
        "d/.netrc",
        "node_modules/new",
    }
    lifecycle.close(store, registry.find(store, place))

    restore(store, state, tmp_path / "back")
    assert read_tree(tmp_path / "back") == {
        b".env": b"KEY=1\n2\n", b"a": b"a\nb\n", b"conf": SECRET, b"d": {b".netrc": b"K\n"},
        b"package.json": b"{}", b"node_modules": {b"m": Program(b"m\n"), b"new": b"n\n"},
    }  # fmt: skip
    assert (tmp_path / "back/.env").stat().st_mode & 0o777 == 0o600


@EACH
def test_what_is_private_for_its_content_stays_so_without_git(
    mount: Mount, project: Path, place: Path, strategy: str, tmp_path: Path
) -> None:
    """A workspace has no `.git`; what was private before is so while it holds a secret."""
    store = mount.store
    opened(mount, project, place, strategy)
    (tmp_path / "other").write_bytes(OTHER)
    run(place, f"cat {tmp_path}/other >conf")
    commit_workspace(store, registry.find(store, place))
    state = latest(store)
    assert paths(store, state.tree) == WORK
    assert content(store, state.full, b"conf") == OTHER
    run(place, "echo clean >conf")
    commit_workspace(store, registry.find(store, place))
    assert content(store, latest(store).tree, b"conf") == b"clean\n"
    lifecycle.close(store, registry.find(store, place))


@EACH
def test_discard_brings_back_private_files(
    mount: Mount, project: Path, place: Path, strategy: str
) -> None:
    store = mount.store
    opened(mount, project, place, strategy)
    run(place, "echo 2 >>.env")
    commit_workspace(store, registry.find(store, place))
    run(place, "rm -rf .env node_modules; echo lost >d/.netrc")
    lifecycle.discard(store, registry.find(store, place), trees(mount))
    shown = run(place, "cat .env node_modules/m; ls -A d")
    assert shown == "KEY=1\n2\nm\nid_rsa\n"
    assert not is_dirty(store, registry.find(store, place))
    lifecycle.close(store, registry.find(store, place))


@EACH
def test_the_command_line_opens_all_and_commits_the_work(
    cli: Cli, project: Path, place: Path, strategy: str
) -> None:
    cli("checkpoint", "create", "app", project)
    cli("workspace", "open", "app", place, "--backend", strategy)
    assert (place / ".env").read_bytes() == b"KEY=1\n"
    (place / ".env").write_bytes(b"KEY=2\n")
    (place / "a").write_bytes(b"b\n")
    stat = cli("diff", "app", "--stat", place).text.splitlines()
    assert [line.endswith("  (private)") for line in stat if ".env" in line] == [True]
    cli("workspace", "commit", place)
    text = cli("diff", "app~1", "app", "--patch").text
    assert "+b" in text
    assert "+KEY=2" in text
    cli("workspace", "close", place)
    cli("checkpoint", "restore", "app", project)
    assert (project / ".env").read_bytes() == b"KEY=2\n"
