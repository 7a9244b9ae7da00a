"""Native mounts of trees whose files are in a remote: the kernel serves what is local, a FUSE mount
the rest."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from casfs.cli import implicit_mount
from casfs.digest import TreeHash, hash_bytes
from casfs.mount import registry
from casfs.mount.registry import wait_until
from casfs.native import images
from casfs.store.store import Store
from casfs.system import mounts
from casfs.system.processes import start_time
from casfs.system.store_mounts import mounted
from casfs.threads import lookup
from casfs.trees import tree
from engine.workflow import registry as workflows
from tests.support.engine import Cli, daemon, loop, says, steps
from tests.support.helpers import Program, read_tree, write_tree
from tests.support.native import ensure_image, needs_native

pytestmark = needs_native
LARGE, OTHER = random.Random(2).randbytes(3 << 20), random.Random(3).randbytes(2 << 20)
TREE = {
    "d": {f"f{n}": f"line {n}\n".encode() * (n * 40 + 1) for n in range(60)},
    "big": {"large": LARGE, "other": OTHER},
    "run": Program(b"#!/bin/sh\n" + b"# comment\n" * 500),
    "empty": b"",
    "none": {},
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "source", TREE)


@pytest.fixture
def clone(
    cli: Cli,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Iterator[Cli]:
    """The command line on a lazy clone of a store with a checkpoint `t`."""
    (tmp_path / "remote").mkdir()
    url = (tmp_path / "remote").as_uri()
    cli("remote", "add", "origin", url)
    cli("checkpoint", "create", "t", source)
    cli("push", "origin", "t")
    cli("clone", url, tmp_path / "clone", "--lazy")
    other = Cli(tmp_path / "clone", monkeypatch, capfdbinary)
    try:
        yield other
    finally:
        for point in mounts.mounted_below(tmp_path.resolve()):
            mounts.unmount(point, lazy=True)
        implicit_mount.end(other.root, os.environ)


@pytest.fixture
def top(clone: Cli, tmp_path: Path) -> Path:
    """The tree, mounted natively."""
    clone("tree", "mount", "t", tmp_path / "m")
    return tmp_path / "m"


def by_mmap(path: Path) -> bytes:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:]


def failure(read: Callable[[Path], bytes], path: Path) -> int:
    try:
        read(path)
    except OSError as error:
        return error.errno or 0
    return 0


def kill_server(clone: Cli) -> None:
    (state,) = registry.listing(clone.root)
    for pid in (state.supervisor, state.worker):  # in this order: it would start another
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not registry.listing(clone.root), "the server lives")


def is_file(clone: Cli, content: bytes) -> bool:
    hash = hash_bytes(content)
    return (clone.root / "objects" / hash[:2] / hash[2:]).exists()


def test_every_file_is_as_in_a_restore(clone: Cli, top: Path, source: Path) -> None:
    assert mounts.mounted_at(top.resolve()).type == "overlay"  # type: ignore[union-attr]
    for path in [*sorted((source / "d").iterdir())[::2], source / "big/large"]:
        assert by_mmap(top / path.relative_to(source)) == path.read_bytes()
    assert read_tree(top) == read_tree(source)
    (state,) = registry.listing(clone.root)
    clone("tree", "umount", top)
    assert mounted(clone.root) == []
    assert mounts.mounted_below(clone.root.resolve()) == []
    assert [start_time(pid) for pid in (state.supervisor, state.worker)] == [None, None]


def test_a_walk_in_a_mount_fetches_no_image(clone: Cli, source: Path, tmp_path: Path) -> None:
    """The files of an image are read when it is made: of a lazy clone that would be all of them."""
    clone("mount", tmp_path / "mnt", "--native", "auto")
    top = (tmp_path / "mnt/trees/t/latest").resolve()
    names = {path.name: sorted(os.listdir(path)) for path in top.iterdir() if path.is_dir()}
    assert names["big"] == ["large", "other"]
    time.sleep(2)  # seconds in which it would have been mounted
    assert mounts.mounted_below(tmp_path / "mnt") == []
    assert not is_file(clone, LARGE)
    assert not (clone.root / "images").exists()
    assert read_tree(top) == read_tree(source)
    clone("umount", tmp_path / "mnt")


def test_a_killed_server_leaves_what_is_local(clone: Cli, source: Path, tmp_path: Path) -> None:
    clone("cat", "t:big/large")
    clone("tree", "mount", "t", tmp_path / "m")
    top = tmp_path / "m"
    kill_server(clone)
    assert is_file(clone, LARGE)
    assert (top / "big/large").read_bytes() == by_mmap(top / "big/large") == LARGE
    assert (top / "empty").read_bytes() == b""
    assert sorted(os.listdir(top / "d")) == sorted(os.listdir(source / "d"))
    for read in (Path.read_bytes, by_mmap):
        for name in ("big/other", "d/f3"):
            assert failure(read, top / name) == errno.ENOTCONN
    clone("cat", "t:big/other")
    assert is_file(clone, OTHER)
    assert (top / "big/other").read_bytes() == by_mmap(top / "big/other") == OTHER
    assert failure(Path.read_bytes, top / "d/f3") == errno.ENOTCONN
    clone("pull", "origin")
    clone("tree", "umount", top)
    assert mounted(clone.root) == []
    clone("tree", "mount", "t", top)
    assert read_tree(top) == read_tree(source)
    assert registry.listing(clone.root) == [], "all is local"
    clone("tree", "umount", top)


def test_a_new_mount_heals(clone: Cli, top: Path, source: Path) -> None:
    kill_server(clone)
    assert failure(Path.read_bytes, top / "big/other") == errno.ENOTCONN
    clone("tree", "umount", top)
    clone("tree", "mount", "t", top)
    assert read_tree(top) == read_tree(source)
    clone("tree", "umount", top)
    assert mounted(clone.root) == []


def test_two_trees_share_one_server(clone: Cli, top: Path, source: Path, tmp_path: Path) -> None:
    (first,) = registry.listing(clone.root)
    clone("tree", "mount", "t", tmp_path / "n")
    assert registry.listing(clone.root) == [first]
    clone("tree", "umount", top)
    assert read_tree(tmp_path / "n") == read_tree(source)
    clone("tree", "umount", tmp_path / "n")
    wait_until(lambda: start_time(first.worker) is None, "the server outlives its mounts")


def test_a_writable_workspace(clone: Cli, source: Path, tmp_path: Path) -> None:
    said = clone("workspace", "open", "t", tmp_path / "w", "--json").json
    assert said["backend"] == "erofs-overlay"
    with (tmp_path / "w/d/f9").open("ab") as file:
        file.write(b"more")
    (tmp_path / "w/big/other").unlink()
    clone("workspace", "commit", tmp_path / "w")
    (source / "big/other").unlink()
    with (source / "d/f9").open("ab") as file:
        file.write(b"more")
    assert read_tree(tmp_path / "w") == read_tree(source)
    clone("workspace", "close", tmp_path / "w")
    assert mounted(clone.root) == []
    clone("checkpoint", "restore", "t", tmp_path / "out")
    assert read_tree(tmp_path / "out") == read_tree(source)


def test_without_lazy_blobs_no_process_serves_a_tree(clone: Cli, source: Path) -> None:
    with Store.open(clone.root) as store:
        ((_, head),) = store.heads.list("checkpoints/t/")
        whole = TreeHash(str(store.node(head.hash).payload["root"]))
        root = TreeHash(tree.load(store, whole)[b"big"].digest.hash)  # type: ignore[union-attr]
        image = ensure_image(store, root)
        assert images.needs_remote(image)
        clone("cat", "t:big/large")
        assert images.needs_remote(ensure_image(store, root, recheck=True))
        clone("cat", "t:big/other")
        assert ensure_image(store, root) == image
        assert images.needs_remote(image), "still right, and not looked at again"
        assert not images.needs_remote(ensure_image(store, root, recheck=True))
    top = source.with_name("m")
    clone("tree", "mount", root, top)
    assert registry.listing(clone.root) == []
    assert read_tree(top) == read_tree(source / "big")
    clone("tree", "umount", top)


def test_a_thread_works_on_it(clone: Cli, source: Path) -> None:
    with Store.open(clone.root) as store:
        workflows.add(store, loop(2))
    script = "cat d/f3 >>copy; rm -f big/other"
    agent = f"a=command:{json.dumps(says({}, script))}"
    with daemon(clone.root):
        made = clone(
            *("thread", "start", "sample", "--input", "x", "--agent", agent, "--wait"),
            *("--workspace", "t"),
        ).word
    with Store.open(clone.root) as store:
        last = steps(store, lookup.find(store, made))[-1]
    clone("tree", "restore", str(last["workspace"]), source.with_name("out"))
    (source / "copy").write_bytes((source / "d/f3").read_bytes() * 2)
    (source / "big/other").unlink()
    assert read_tree(source.with_name("out")) == read_tree(source)
    assert mounted(clone.root) == []
    log = clone.root / "log"
    assert not any(b"no overlay" in one.read_bytes() for one in log.iterdir())
