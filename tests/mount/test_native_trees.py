"""Trees of a mount that are walked are mounted by the kernel (`casfs.mount.mounter`)."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from casfs.digest import Digest, TreeHash
from casfs.errors import Refused
from casfs.maintenance import gc, purge
from casfs.mount import child_process, mounter, native_mounts
from casfs.mount.mount_points import unmount
from casfs.mount.supervisor import replace_program
from casfs.store import removals
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.system import locks, mounts
from casfs.system.clock import now_ms
from casfs.system.processes import start_time
from casfs.trees.dated import DatedTree
from tests.support.engine import until
from tests.support.helpers import put_tree, read_tree, write_tree
from tests.support.lasting import object_of, opened, record
from tests.support.native import needs_native, shown_natively
from tests.support.served import Mount, gone, kill, serving
from tests.support.thread_example import make_thread

pytestmark = [needs_native, pytest.mark.usefixtures("nothing_stays_mounted")]
LARGE = b"y" * 300_000
TOP = b"t" * 5000
CONTENT = {
    "d": {"e": {"small": b"x", "large": LARGE}, "none": b""},
    "top": TOP,
    "program": b"#!/bin/sh\n",
}


@pytest.fixture
def native_mount(disk_store: Store, tmp_path: Path) -> Iterator[Mount]:
    with serving(disk_store, tmp_path / "mnt", native="auto") as mount:
        yield mount


@pytest.fixture
def tree(native_mount: Mount, tmp_path: Path) -> Path:
    source = write_tree(tmp_path / "source", CONTENT)
    (source / "program").chmod(0o755)
    (source / "link").symlink_to("d/e/large")
    os.utime(source / "d/e", ns=(1, 1_234_567_890_123_456_789))
    return record(native_mount, source)


def native_points(mount: Mount) -> list[Path]:
    fuse = mounts.mounted_at(mount.path)
    assert fuse is not None
    return [native.point for native in native_mounts.mounted_over(fuse)]


def children(mount: Mount) -> set[int]:
    supervisor = mount.supervisor.pid
    pids = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text()
    return set(map(int, pids.split()))


def mounter_pid(mount: Mount) -> int:
    """The subprocess of the supervisor that is not its worker."""
    (pid,) = children(mount) - {mount.state().worker}
    return pid


def described(top: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, mtime (ns) and, of all but directories, size of each entry, by its path."""
    entries = {}
    for path in [top, *sorted(top.rglob("*"))]:
        info = path.lstat()
        size = 0 if path.is_dir() and not path.is_symlink() else info.st_size
        entries[str(path.relative_to(top))] = (info.st_mode, info.st_mtime_ns, size)
    return entries


def test_a_walked_tree_is_the_same_natively(
    native_mount: Mount, tree: Path, disk_store: Store, tmp_path: Path
) -> None:
    with serving(disk_store, tmp_path / "other", native="off") as plain:
        other = plain.path / tree.relative_to(native_mount.path)
        before = described(other), read_tree(other)
        shown_natively(tree)
        assert not native_points(plain)
    assert (described(tree), read_tree(tree)) == before
    requests = native_mount.requests()
    assert read_tree(tree) == before[1]
    after = native_mount.requests()
    assert after["read"] - requests["read"] <= 2  # of the counts themselves
    assert not (tree / "absent").exists()


def test_each_tree_has_a_native_mount(native_mount: Mount) -> None:
    thread = make_thread(native_mount.store)
    thread.step("planner", "Planned.")
    root = put_tree(native_mount.store, CONTENT)
    (step,) = (native_mount.path / "threads" / thread.id / "steps").glob("*1*/workspace")
    for top in (native_mount.path / "trees" / root, step.resolve()):
        before = read_tree(top)
        shown_natively(top)
        assert read_tree(top) == before
    assert (step / "hello.txt").read_text() == "hello\n"


def test_a_look_mounts_nothing(native_mount: Mount, tree: Path) -> None:
    assert sorted(os.listdir(tree)) == ["d", "link", "program", "top"]
    assert (tree / "d/e/large").read_bytes() == LARGE
    root = put_tree(native_mount.store, {"d": {"later": b"1"}})
    shown_natively(native_mount.path / "trees" / root)
    assert tree not in native_points(native_mount)


def test_a_large_flat_tree_is_walked_by_its_listing(native_mount: Mount) -> None:
    root = put_tree(native_mount.store, {f"name-{n}": b"%d" % n for n in range(3000)})
    top = native_mount.path / "trees" / root
    assert len(os.listdir(top)) == 3000
    until(lambda: native_points(native_mount) == [top])
    assert len(os.listdir(top)) == 3000


def test_the_oldest_that_is_not_in_use_goes_first(native_mount: Mount) -> None:
    tops = []
    for number in range(mounter.MAX_MOUNTED + 2):
        root = put_tree(native_mount.store, {"d": {"number": b"%d" % number}})
        tops.append(native_mount.path / "trees" / root)
    shown_natively(tops[0])
    with opened(tops[0] / "d"):
        for top in tops[1:]:
            shown_natively(top)
        assert set(native_points(native_mount)) == {tops[0], *tops[3:]}
    assert [(top / "d/number").read_text() for top in tops] == [str(n) for n in range(len(tops))]


SLOW_WALK = """
import os, sys, time
top = sys.argv[1]
os.chdir(top)
above = []
for level in range(10):
    above.append(os.stat("."))
    os.listdir(".")
    os.chdir("d")
time.sleep(2)
while above:
    os.chdir("..")
    here, before = os.stat("."), above.pop()
    assert (here.st_dev, here.st_ino) == (before.st_dev, before.st_ino), len(above)
"""


def test_a_walk_ends_in_the_mount_in_which_it_began(native_mount: Mount) -> None:
    """It goes down by names and up again by `..`, as find does in deep trees."""
    deep: dict[str, object] = {}
    for _ in range(12):
        deep = {"d": deep, "f": b"x"}
    top = native_mount.path / "trees" / put_tree(native_mount.store, deep)
    subprocess.run([sys.executable, "-c", SLOW_WALK, top], check=True)
    until(lambda: native_points(native_mount) == [top])
    subprocess.run([sys.executable, "-c", SLOW_WALK, top], check=True)


def test_a_tree_that_a_shell_sits_in_is_not_mounted(native_mount: Mount, tree: Path) -> None:
    with opened(tree / "d/e") as fd:
        read_tree(tree)
        root = put_tree(native_mount.store, {"d": {"later": b"1"}})
        shown_natively(native_mount.path / "trees" / root)
        assert tree not in native_points(native_mount)
        assert sorted(os.listdir(fd)) == ["large", "small"]
    until(lambda: tree in native_points(native_mount))


def test_unmounting_does_not_wait_for_an_image(native_mount: Mount, tree: Path) -> None:
    (head,) = (head for _, head in native_mount.store.heads.list("checkpoints/"))
    root = DatedTree(TreeHash(head.record["root"]), head.record.get("times"))
    name = f"images-{root.name}-{os.geteuid()}.{os.getegid()}.v1.erofs"
    with locks.held(native_mount.store.root, name, lambda: None):
        read_tree(tree)
        time.sleep(1.5)  # the mounter waits for the lock
        unmount(native_mount.path)
    assert native_mount.supervisor.wait(20) == 0


def test_a_new_mount_has_nothing_of_an_old_one(
    disk_store: Store, tmp_path: Path, tree: Path, native_mount: Mount
) -> None:
    """Both have the same inode numbers."""
    where = native_mount.path
    with opened(tree) as fd:
        unmount(where, lazy=True)
        with serving(disk_store, where, native="off"):
            walk = ["sh", "-c", "ls d d/e && sleep 0.2"]
            for _ in range(10):
                subprocess.run(walk, preexec_fn=lambda: os.fchdir(fd), check=True)
            assert read_tree(tree)[b"top"] == TOP
            assert not [mount for mount in mounts.mounts() if mount.point == tree]
        where.mkdir(exist_ok=True)


def test_unmounting_ends_all(native_mount: Mount, tree: Path) -> None:
    shown_natively(tree)
    pid = mounter_pid(native_mount)
    unmount(native_mount.path)
    assert native_mount.supervisor.wait(10) == 0
    assert start_time(pid) is None
    assert not mounts.mounted_below(native_mount.path)
    assert not list((native_mount.store.root / "mounts").iterdir())


def test_the_users_of_a_native_mount_are_named(native_mount: Mount, tree: Path) -> None:
    shown_natively(tree)
    sleeper = subprocess.Popen(["sleep", "1000"], cwd=tree / "d")
    try:
        with pytest.raises(Refused, match=rf"busy: pid {sleeper.pid} \(sleep\)"):
            unmount(native_mount.path)
        assert native_mount.state().serves
        unmount(native_mount.path, lazy=True)
        until(lambda: not mounts.mounted_below(native_mount.path))
        assert Path(f"/proc/{sleeper.pid}/cwd/e/small").read_bytes() == b"x"
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all(native_mount: Mount, tree: Path, number: signal.Signals) -> None:
    shown_natively(tree)
    pid = mounter_pid(native_mount)
    native_mount.supervisor.send_signal(number)
    native_mount.supervisor.wait(10)
    assert not mounts.mounted_below(native_mount.path)
    assert start_time(pid) is None


def test_a_killed_worker_changes_nothing(native_mount: Mount, tree: Path) -> None:
    shown_natively(tree)
    before = native_mount.state()
    kill(before.worker)
    assert read_tree(tree)[b"top"] == TOP
    until(lambda: native_mount.state().starts > before.starts and native_mount.state().serves)
    root = put_tree(native_mount.store, {"d": {"later": b"1"}})
    shown_natively(native_mount.path / "trees" / root)  # the new worker tells the same mounter


def test_a_killed_mounter_has_a_successor(native_mount: Mount, tree: Path) -> None:
    shown_natively(tree)
    killed = mounter_pid(native_mount)
    kill(killed)
    until(lambda: start_time(killed) is None)
    assert read_tree(tree)[b"top"] == TOP
    root = put_tree(native_mount.store, {"d": {"later": b"1"}})
    shown_natively(native_mount.path / "trees" / root)


def test_a_mounter_that_is_killed_again_and_again_is_given_up(
    native_mount: Mount, tree: Path
) -> None:
    log = native_mount.store.root / "log/mount.jsonl"

    def goes_on(killed: int) -> bool:
        return bool(children(native_mount) - {killed, native_mount.state().worker})

    for _ in range(child_process.RESTARTS):
        killed = mounter_pid(native_mount)
        kill(killed)
        until(partial(lambda pid: goes_on(pid) or _given_up(log), killed))
    assert _given_up(log)
    assert read_tree(tree)[b"top"] == TOP
    assert native_mount.state().serves


def _given_up(log: Path) -> bool:
    return "mounter given up" in log.read_text()


def test_where_the_supervisor_is_killed_all_ends_with_the_worker(
    native_mount: Mount, tree: Path
) -> None:
    shown_natively(tree)
    pid = mounter_pid(native_mount)
    worker = native_mount.state().worker
    native_mount.supervisor.kill()
    native_mount.supervisor.wait()
    assert read_tree(tree)[b"top"] == TOP
    kill(worker, signal.SIGTERM)
    gone(worker, pid)
    assert not mounts.mounted_below(native_mount.path)


def test_where_all_are_killed_unmounting_takes_all_along(native_mount: Mount, tree: Path) -> None:
    shown_natively(tree)
    worker = native_mount.state().worker
    pid = mounter_pid(native_mount)
    native_mount.supervisor.kill()
    native_mount.supervisor.wait()
    kill(pid)
    kill(worker)
    gone(worker, pid)
    unmount(native_mount.path, lazy=True)
    assert not mounts.mounted_below(native_mount.path)
    with serving(native_mount.store, native_mount.path, native="auto"):
        shown_natively(tree)


def test_a_new_program_mounts_anew(native_mount: Mount, tree: Path) -> None:
    shown_natively(tree)
    before = mounter_pid(native_mount)
    replace_program(native_mount.state())
    assert read_tree(tree)[b"top"] == TOP
    until(lambda: start_time(before) is None)
    until(lambda: read_tree(tree) and native_points(native_mount) == [tree])
    assert mounter_pid(native_mount) != before


def test_a_purge_ends_the_native_mount(native_mount: Mount, tree: Path) -> None:
    shown_natively(tree)
    stone = Tombstone(Digest.of(TOP).hash, len(TOP), now_ms())
    purge.purge_all(native_mount.store, [stone])

    def purged() -> bool:
        with suppress(OSError):
            return b"top" not in read_tree(tree)
        return False

    until(purged)


def test_a_removed_checkpoint_is_gone(native_mount: Mount, tree: Path) -> None:
    shown_natively(tree)
    store = native_mount.store
    with store.batch() as batch:
        removals.remove(store, batch, store.heads.list("checkpoints/"))
    until(lambda: not tree.exists())
    assert not native_points(native_mount)


def test_a_tree_that_nothing_keeps_is_kept_while_it_is_mounted(native_mount: Mount) -> None:
    store = native_mount.store
    root = put_tree(store, CONTENT)
    top = native_mount.path / "trees" / root
    before = read_tree(top)
    shown_natively(top)
    time.sleep(1.1)  # its blobs were put a second ago
    gc.collect(store, grace=0)
    assert read_tree(top) == before
    assert native_points(native_mount) == [top]
    mounts.unmount(top)
    assert gc.collect(store, grace=0).freed.blobs


def test_a_gc_that_has_looked_at_the_mounts_already_keeps_a_tree(native_mount: Mount) -> None:
    """It keeps what was touched since it began, as a tree is before it is mounted."""
    store = native_mount.store
    top = native_mount.path / "trees" / put_tree(store, CONTENT)
    with closing(sqlite3.connect(store.root / "store.db")) as db, db:
        db.execute("UPDATE blobs SET touched = touched - 7200")
    shown_natively(top)
    before = read_tree(top)
    mounts.unmount(top)
    gc.collect(store, grace=3600)
    assert read_tree(top) == before


def test_a_damaged_tree_stays_with_fuse(native_mount: Mount, tree: Path) -> None:
    object_of(native_mount.store, Digest.of(LARGE).hash).unlink()
    log = native_mount.store.root / "log/mount.jsonl"
    assert sorted(os.listdir(tree / "d/e")) == ["large", "small"]
    until(lambda: log.exists() and "not mounted natively" in log.read_text())
    assert (tree / "d/e/small").read_bytes() == b"x"
    with pytest.raises(OSError, match="Input/output"):
        (tree / "d/e/large").read_bytes()
    assert not native_points(native_mount)


@pytest.mark.parametrize(("native", "xattr"), [("off", False), ("auto", True)])
def test_where_it_is_not_wanted(
    disk_store: Store, tmp_path: Path, native: str, xattr: bool
) -> None:
    with serving(disk_store, tmp_path / "mnt", native=native, xattr=xattr) as mount:
        top = mount.path / "trees" / put_tree(disk_store, CONTENT)
        read_tree(top)
        assert children(mount) == {mount.state().worker}
