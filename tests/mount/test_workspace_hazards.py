"""What a workspace must not do with a tree or an upper layer that somebody else made."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.cli import background
from casfs.errors import Failed
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Properties
from casfs.system import mounts, processes
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle, overlay_mount, strategies, strategy_choice
from casfs.workspaces.commit import commit_workspace
from tests.support.engine import Cli, until
from tests.support.helpers import put_tree, read_tree, write_tree
from tests.support.served import Mount
from tests.support.strategies import able, skip_without

VISIBLE = pytest.mark.parametrize(
    "strategy", [able(one.name) for one in strategies.STRATEGIES.values() if one.mount]
)


@pytest.fixture
def work(mount: Mount, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "work"
    yield folder
    if mounts.mounted_at(folder):
        overlay_mount.unmount(folder, lazy=True)


def opened(mount: Mount, work: Path, strategy: str, root: str) -> lifecycle.Workspace:
    chosen = strategies.STRATEGIES[strategy]
    return lifecycle.open(
        mount.store,
        RecordedState(root),
        work,
        chosen,
        lambda root: mount.path / "trees" / root.name,
    )


@VISIBLE
def test_no_mount_of_a_tree_brings_privileges(mount: Mount, work: Path, strategy: str) -> None:
    with mount.store.batch() as batch:
        file = File(b"f", batch.put(b"#!"), True, Properties(unix_mode=0o4755))
        root = batch.put_node("directory", directory.encode([file])).hash
    opened(mount, work, strategy, root)
    options = next(
        line.split()[5]
        for line in reversed(mounts.TABLE.read_text().splitlines())
        if line.split()[4] == str(work)
    )
    assert {"nosuid", "nodev"} <= set(options.split(","))


def test_a_copy_brings_no_set_id_bits(mount: Mount, work: Path) -> None:
    with mount.store.batch() as batch:
        file = File(b"f", batch.put(b"#!"), True, Properties(unix_mode=0o6755))
        root = batch.put_node("directory", directory.encode([file])).hash
    opened(mount, work, strategies.COPY, root)
    assert (work / "f").stat().st_mode & 0o7777 == 0o755


@skip_without(strategies.FUSE)
def test_fuse_overlayfs_takes_no_tree_whose_names_it_hides(mount: Mount, work: Path) -> None:
    root = put_tree(mount.store, {"d": {".wh.a": b"one", "a": b"two"}})
    with pytest.raises(Failed, match=r"^d/\.wh\.a: fuse-overlayfs hides"):
        opened(mount, work, strategies.FUSE, root)
    assert not work.exists()


@skip_without(strategies.FUSE)
@pytest.mark.parametrize("prefix", ["user.overlay.", "user.fuseoverlayfs.", "trusted.overlay."])
@pytest.mark.parametrize(("name", "value"), [("opaque", b"y"), ("redirect", b"/other")])
def test_attributes_that_anybody_sets_lose_no_file(
    mount: Mount, work: Path, prefix: str, name: str, value: bytes
) -> None:
    root = put_tree(mount.store, {"d": {"f": b"one"}, "other": {"g": b"two"}})
    found = opened(mount, work, strategies.FUSE, root)
    try:
        os.setxattr(work / "d", prefix + name, value)
    except OSError:
        pytest.skip("not settable here")
    assert os.listdir(work / "d") == ["f"]
    assert commit_workspace(mount.store, found).root == root


@skip_without(strategies.FUSE)
@pytest.mark.parametrize("made", ["mv f .wh.g", "mkdir .wh.g", "ln -s x .wh.g"])
def test_a_name_like_a_whiteouts_loses_no_file(mount: Mount, work: Path, made: str) -> None:
    found = opened(mount, work, strategies.FUSE, put_tree(mount.store, {"f": b"one", "g": b"two"}))
    subprocess.run(["sh", "-c", made], cwd=work, check=True)
    names = tree.load(mount.store, commit_workspace(mount.store, found).root)
    assert set(names) == set(map(os.fsencode, os.listdir(work)))
    assert {b"g", b".wh.g"} <= set(names)


@pytest.mark.parametrize("verb", ["close", "discard"])
@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_a_copy_is_closed_whatever_is_in_it(
    mount: Mount, work: Path, monkeypatch: pytest.MonkeyPatch, verb: str, kind: str
) -> None:
    root = put_tree(mount.store, {"f": b"one"})
    found = opened(mount, work, strategies.COPY, root)
    monkeypatch.chdir(work)
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "fifo":
            os.mkfifo("p")
        elif kind == "socket":
            bound.bind("p")
        elif os.geteuid() == 0:
            os.mknod("p", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    monkeypatch.chdir("/")
    if verb == "close":
        lifecycle.close(mount.store, found, force=True)
        assert not work.exists()
    else:
        lifecycle.discard(mount.store, found, lambda root: mount.path / "trees" / root.name)
        assert os.listdir(work) == ["f"]


@skip_without(strategies.OVERLAY)
def test_a_copy_is_opened_where_no_mount_works(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "f").write_text("one")
    cli("checkpoint", "create", "app", tmp_path / "project")
    order = [strategies.STRATEGIES[name] for name in (strategies.OVERLAY, strategies.COPY)]
    monkeypatch.setattr(strategy_choice, "choose", lambda name, store: list(order))

    def start(root: Path, arguments: list[str], log: str) -> int:
        raise Failed("no access to /dev/fuse")

    monkeypatch.setattr(background, "start", start)
    done = cli("workspace", "open", "app", tmp_path / "w")
    assert "backend: copy" in done.text
    assert "backend overlay does not work here: no access to /dev/fuse" in done.err
    cli("workspace", "close", tmp_path / "w")


def test_where_only_a_copy_works_it_is_not_opened_read_only(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = strategies.STRATEGIES[strategies.COPY]
    monkeypatch.setattr(strategy_choice, "choose", lambda name, store: [copy])
    cli("checkpoint", "create", "app", write_tree(tmp_path / "source", {"f": b"one"}))
    done = cli("workspace", "open", "app", tmp_path / "w", "--read-only", code=4)
    assert "a copy cannot be read-only" in done.err
    assert not (tmp_path / "w").exists()


@skip_without(strategies.OVERLAY)
def test_their_own_mount_ends_with_the_last_one(cli: Cli, tmp_path: Path) -> None:
    cli("checkpoint", "create", "ws", write_tree(tmp_path / "source", {"f": b"one"}))
    for name in ("one", "two"):
        cli("workspace", "open", "ws", tmp_path / name, "--backend", strategies.OVERLAY)
    (serving,) = cli("status", "--json").json["serving"]
    cli("workspace", "close", tmp_path / "one")
    assert cli("status", "--json").json["serving"] == [serving]
    assert read_tree(tmp_path / "two") == read_tree(tmp_path / "source")
    cli("workspace", "close", tmp_path / "two")
    for role in ("supervisor", "worker"):  # they end after their mount
        pid = serving[role]
        until(lambda pid=pid: processes.start_time(pid) is None, f"the end of the {role}")
    assert not Path(serving["mount"]).exists()
