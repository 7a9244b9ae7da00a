from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from casfs.errors import Failed, NotFound
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.walker import MAX_DEPTH
from tests.support.helpers import (
    LARGE,
    Link,
    Program,
    blobs,
    private_files,
    put_tree,
    take,
    write_tree,
)

TREE = {
    "empty": {},
    "zero": b"",
    "large": LARGE,
    "run": Program(b"#!/bin/sh\n"),
    "nested": {"a": {"b": {"c": b"deep"}}},
    "dangling": Link(b"nowhere"),
    "absolute": Link(b"/etc/passwd"),
    "up": Link(b"../../.."),
    b"\xff\xfe": b"byte name",
    b"link\xff": Link(b"\xfe\xff"),
    "n" * 255: b"long name",
    " \n\\*": b"odd name",
}


def test_a_snapshot_holds_what_is_there(store: Store, tmp_path: Path) -> None:
    report = SnapshotReport()
    root = take(store, write_tree(tmp_path / "w", TREE), report)
    assert root == put_tree(store, TREE)
    assert report.warnings == []
    assert report.files == 7
    sizes = [0, len(LARGE), 10, 4, 9, 9, 8]
    assert report.bytes == sum(sizes)


@pytest.mark.parametrize(("mode", "executable"), [(0o644, False), (0o744, True), (0o655, False)])
def test_the_owners_x_bit_counts(store: Store, tmp_path: Path, mode: int, executable: bool) -> None:
    path = write_tree(tmp_path / "w", {"f": b""}) / "f"
    path.chmod(mode)
    found = tree.load(store, take(store, tmp_path / "w"))[b"f"]
    assert isinstance(found, File)
    assert found.executable == executable


def test_times_and_owners_do_not_count(store: Store, tmp_path: Path) -> None:
    first = take(store, write_tree(tmp_path / "w", TREE))
    os.utime(tmp_path / "w" / "zero", (1, 1))
    os.chown(tmp_path / "w" / "large", os.geteuid(), os.getegid())
    assert take(store, tmp_path / "w") == first


def test_a_second_snapshot_stores_nothing(disk_store: Store, tmp_path: Path) -> None:
    write_tree(tmp_path / "w", TREE)
    first = take(disk_store, tmp_path / "w")
    before = blobs(disk_store)
    assert take(disk_store, tmp_path / "w") == first
    assert blobs(disk_store) == before


def test_the_root_may_be_reached_through_a_symlink(store: Store, tmp_path: Path) -> None:
    write_tree(tmp_path / "w", {"f": b"1"})
    (tmp_path / "link").symlink_to("w")
    assert take(store, tmp_path / "link") == put_tree(store, {"f": b"1"})


def test_what_a_tree_cannot_hold_is_left_out_with_a_warning(store: Store, tmp_path: Path) -> None:
    write_tree(tmp_path / "w", {"d": {}, "f": b"1"})
    os.mkfifo(tmp_path / "w" / "d" / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        place = os.open(tmp_path / "w", os.O_RDONLY)
        server.bind(f"/proc/self/fd/{place}/socket")
        os.close(place)
        report = SnapshotReport()
        root = take(store, tmp_path / "w", report)
    assert root == put_tree(store, {"d": {}, "f": b"1"})
    assert sorted(report.warnings) == [
        f"{tmp_path}/w/d/fifo: left out, it is a fifo",
        f"{tmp_path}/w/socket: left out, it is a socket",
    ]


def test_what_is_ignored_is_left_out(store: Store, tmp_path: Path) -> None:
    write_tree(tmp_path / "w", {"build": {"x": b""}, "src": {"build": b"a file"}})
    with store.batch() as batch:
        root = walker.snapshot(batch, tmp_path / "w", IgnoreRules(b"build/")).node.hash
    assert root == put_tree(store, {"src": {"build": b"a file"}})


@pytest.mark.parametrize("name", ["missing", "file", "file/below"])
def test_there_must_be_a_directory(store: Store, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotFound, match=name):
        take(store, tmp_path / name)


def test_a_sparse_file_stays_sparse(disk_store: Store, tmp_path: Path) -> None:
    write_tree(tmp_path / "w", {})
    with (tmp_path / "w" / "sparse").open("wb") as file:
        file.seek(16 << 20)
        file.write(b"end")
    take(disk_store, tmp_path / "w")
    kept = [path for path in (disk_store.root / "objects").rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in kept] == [(16 << 20) + 3]
    assert kept[0].stat().st_blocks * 512 < 2 << 20


def test_directories_may_be_nested_up_to_a_bound(store: Store, tmp_path: Path) -> None:
    def nested(depth: int) -> Path:
        path = tmp_path / f"depth-{depth}"
        path.mkdir()
        at = os.open(path, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir("d", dir_fd=at)
            below = os.open("d", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        os.close(at)
        return path

    report = SnapshotReport()
    options = SnapshotOptions(must_be_whole=True)
    with store.batch() as batch:
        walker.snapshot(batch, nested(MAX_DEPTH), IgnoreRules(), options=options)
        deeper = nested(MAX_DEPTH + 1)
        walker.snapshot(batch, deeper, IgnoreRules(), report=report)
        assert len(report.unreadable) == 1
        with pytest.raises(Failed, match="directories deep"):
            walker.snapshot(batch, deeper, IgnoreRules(), options=options)


# -- files that cannot be read ------------------------------------------------------------

CHILD = """
import os, sys
from pathlib import Path
from casfs.errors import Failed
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotOptions
from casfs.trees.snapshot.walker import snapshot
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree
Store.memory().close()  # the imports: another user may not read the program
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
store = Store.memory()
options = SnapshotOptions(must_be_whole=True)
try:
    with store.batch() as batch:
        snapshot(batch, Path(sys.argv[1]), IgnoreRules(), options=options)
except Failed as error:
    sys.exit(f"failed: {error}")
"""


@pytest.mark.parametrize(
    ("name", "mode"), [("secret", 0), ("d", 0), ("d", 0o444), ("d/inner", 0), (".", 0o300)]
)
def test_an_unreadable_file_fails_and_is_named(runtime_dir: Path, name: str, mode: int) -> None:
    runtime_dir.chmod(0o755)
    root = write_tree(runtime_dir / "w", {"secret": b"x", "d": {"inner": b"y"}, "z": b""})
    (root / name).chmod(mode)
    place = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", CHILD, root]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place, check=False)
    (root / name).chmod(0o700)
    assert done.returncode == 1
    assert done.stderr.startswith(f"failed: cannot read {(root / name)}")
    assert done.stderr.endswith(": Permission denied\n")
    assert done.stderr.count("\n") == 1


def test_a_read_error_is_told_of_the_file_that_was_read(
    disk_store: Store,
) -> None:
    """/proc/self/mem is a regular file that gives EIO where nothing is mapped."""

    class OnlyMem(IgnoreRules):
        def reason(self, path: bytes, name: bytes, **_: object) -> str | None:
            return None if path == b"mem" else "not mem"

    options = SnapshotOptions(must_be_whole=True)
    with (
        pytest.raises(Failed, match=r"^cannot read /proc/self/mem: Input/output error$"),
        disk_store.batch() as batch,
    ):
        walker.snapshot(batch, Path("/proc/self"), OnlyMem(), options=options)


def test_a_failed_snapshot_leaves_no_private_files(disk_store: Store, tmp_path: Path) -> None:
    write_tree(tmp_path / "w", {f"f{n}": LARGE * 256 + b"%d" % n for n in range(5)})
    batch = disk_store.batch()
    walker.snapshot(batch, tmp_path / "w", IgnoreRules())
    assert len(private_files(disk_store.root)) == 5
    stop = RuntimeError("stop")
    batch.__exit__(type(stop), stop, None)
    assert private_files(disk_store.root) == []
