"""Trees that the kernel shows alone: mounted, kept from gc, and forgotten when nobody sees them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from casfs.digest import hash_bytes
from casfs.errors import NotFound
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.system import mounts
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle, registry, strategies
from tests.support.engine import Cli
from tests.support.helpers import LARGE, Program, put_tree, read_tree, write_tree
from tests.support.maintenance import age
from tests.support.native import needs_native

pytestmark = needs_native
SAMPLE = {"a": {"f": b"one", "g": LARGE}, "run": Program(b"#!"), "empty": {}}
SCRIPT = "echo ready; read x; cat m/a/g"
OTHER = {"other": LARGE[1:]}


def mounted(cli: Cli, path: Path, tree: object = SAMPLE) -> str:
    with Store.open(cli.root) as store:
        root = put_tree(store, tree)  # type: ignore[arg-type]
    assert cli("tree", "mount", root, path).word == root
    return root


def collect(cli: Cli) -> None:
    with Store.open(cli.root) as store:
        age(store)
        gc.collect(store)


def is_stored(cli: Cli, root: str) -> bool:
    with Store.open(cli.root) as store:
        return bool(store.blobs.info([root]))


@contextmanager
def elsewhere(bound: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a mount table of its own, as a container does."""
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", SCRIPT]
    with subprocess.Popen(
        command, cwd=bound.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_life(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m"
    cli("checkpoint", "create", "ws", write_tree(tmp_path / "source", SAMPLE))
    said = cli("tree", "mount", "ws", path, "--json").json
    assert said["directory"] == str(path)
    assert read_tree(path) == read_tree(tmp_path / "source")
    with pytest.raises(OSError, match="Read-only"):
        (path / "new").touch()
    assert cli("status", "--json").json["mounts"] == [], "no process of ours serves it"
    (listed,) = cli("workspace", "list", "--json").json
    assert (listed["backend"], listed["state"], listed["readOnly"]) == (
        "erofs-overlay",
        "open",
        True,
    )
    assert "workspace already" in cli("tree", "mount", "ws", path, code=4).err
    with (path / "a/f").open():
        assert "busy" in cli("tree", "umount", path, code=4).err
    said = cli("tree", "umount", path, "--json").json
    assert (said["closed"], said["over"]) == (str(path), True)
    assert not path.exists()
    assert os.listdir(cli.root / "workspaces") == []
    assert "not an open workspace" in cli("tree", "umount", path, code=3).err


def test_a_writable_workspace_keeps_its_changes(cli: Cli, tmp_path: Path) -> None:
    cli("checkpoint", "create", "ws", write_tree(tmp_path / "source", SAMPLE))
    cli("workspace", "open", "ws", tmp_path / "w")
    (tmp_path / "w/new").touch()
    assert "not committed" in cli("tree", "umount", tmp_path / "w", code=4).err
    cli("workspace", "close", tmp_path / "w", "--force")


def test_gc_keeps_a_tree_while_it_is_mounted(cli: Cli, tmp_path: Path) -> None:
    root = mounted(cli, tmp_path / "m")
    collect(cli)
    assert (tmp_path / "m/a/g").read_bytes() == LARGE
    cli("tree", "umount", tmp_path / "m")
    collect(cli)
    assert not is_stored(cli, root)


def test_what_a_crash_has_ended_is_forgotten(cli: Cli, tmp_path: Path) -> None:
    """By gc; and the directory is free for another tree at once."""
    root = mounted(cli, tmp_path / "m")
    mounts.unmount(tmp_path / "m")
    collect(cli)
    assert not is_stored(cli, root)
    assert not (tmp_path / "m").exists()
    assert cli("workspace", "list", "--json").json == []
    mounted(cli, tmp_path / "m")
    mounts.unmount(tmp_path / "m")
    mounted(cli, tmp_path / "m", OTHER)
    assert read_tree(tmp_path / "m") == {b"other": LARGE[1:]}


def test_after_a_reboot_it_is_gone_whoever_asks(cli: Cli, tmp_path: Path) -> None:
    mounted(cli, tmp_path / "m")
    mounts.unmount(tmp_path / "m")
    with Store.open(cli.root) as store:
        (found,) = registry.listing(store)
        boot, namespace = found.record["system"].split()
        for system, gone in ((f"{boot} 1", boot), ("another-boot 1", "another-boot")):
            head = registry.Head(found.root, {**found.record, "system": system})
            registry.swap(store, found.id, store.heads.get(registry.HEADS + found.id), head)
            (now,) = registry.listing(store)
            seen = namespace == registry.INITIAL_PID_NAMESPACE
            assert now.is_unused == (seen or gone != boot)
        assert [one.id for one in lifecycle.sweep(store)] == [found.id]


def test_a_container_goes_on_with_it(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m"
    root = mounted(cli, path)
    with elsewhere(path) as process:
        said = cli("tree", "umount", path).text
        assert "still used by a container" in said
        assert cli("workspace", "list", "--json").json[0]["state"] == "left"
        other = mounted(cli, path, OTHER)
        collect(cli)
        assert is_stored(cli, root)
        assert is_stored(cli, other)
        with Store.open(cli.root) as store:
            assert registry.find(store, path).root == other
        assert process.communicate(b"\n")[0] == LARGE
    collect(cli)
    assert not is_stored(cli, root)
    assert read_tree(path) == {b"other": LARGE[1:]}
    cli("tree", "umount", path)
    assert os.listdir(cli.root / "workspaces") == []


def test_one_that_is_being_opened_is_not_swept(disk_store: Store, tmp_path: Path) -> None:
    root, strategy = put_tree(disk_store, SAMPLE), strategies.STRATEGIES[strategies.NATIVE]
    new = registry.new(
        disk_store, tmp_path / "m", RecordedState(root), strategy, None, read_only=True, mode=None
    )
    lock = registry.lock(new)
    registry.swap(disk_store, new.id, None, new.head)
    assert lifecycle.sweep(disk_store) == []
    os.close(lock)
    assert lifecycle.sweep(disk_store) == [new]


def test_what_cannot_be_mounted_natively(cli: Cli, tmp_path: Path) -> None:
    """Unasked, a workspace is made in the next best strategy, and that is said."""
    hash = "ab" * 32
    with Store.open(cli.root) as store:
        root = put_tree(store, {hash[:2]: {hash[2:]: b"not what it says"}})
    assert "cannot be an image" in cli("tree", "mount", root, tmp_path / "m", code=1).err
    assert (
        "cannot be an image"
        in cli("workspace", "open", root, tmp_path / "m", "--backend", "erofs-overlay", code=1).err
    )
    said = cli("workspace", "open", root, tmp_path / "m")
    assert "backend erofs-overlay does not work here" in said.err
    assert "backend: overlay" in said.text
    cli("workspace", "close", tmp_path / "m")
    with pytest.raises(NotFound), Store.open(cli.root) as store:
        registry.find(store, tmp_path / "m")


def test_objects_that_others_may_write_to_are_not_shown(cli: Cli, tmp_path: Path) -> None:
    mounted(cli, tmp_path / "m")
    cli("tree", "umount", tmp_path / "m")
    os.chown(next((cli.root / "objects").iterdir()), 65534, 65534)
    with Store.open(cli.root) as store:
        root = put_tree(store, SAMPLE)
    assert "alone to write" in cli("tree", "mount", root, tmp_path / "m", code=1).err


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_object_is_found_at_open(cli: Cli, tmp_path: Path, damage: str) -> None:
    """Also where the image was made before; a changed byte only with --verify."""
    path = tmp_path / "m"
    root = mounted(cli, path)
    cli("tree", "umount", path)
    hash = hash_bytes(LARGE)
    object = cli.root / "objects" / hash[:2] / hash[2:]
    object.chmod(0o644)
    wrong = LARGE[:-1] if damage == "cut" else LARGE[:-1] + bytes([LARGE[-1] ^ 1])
    object.write_bytes(wrong)
    if damage == "flipped":
        cli("tree", "mount", root, path)
        cli("tree", "umount", path)
    verify = ["--verify"] * (damage == "flipped")
    assert hash in cli("tree", "mount", root, path, *verify, code=1).err
    assert hash in cli("workspace", "open", root, path, "--verify", code=1).err
    assert not path.exists()
    object.write_bytes(LARGE)
    cli("tree", "mount", root, path, "--verify")
    assert read_tree(path) == read_tree(write_tree(tmp_path / "other", SAMPLE))
    cli("tree", "umount", path)
