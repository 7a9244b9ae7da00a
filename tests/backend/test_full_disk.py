"""A store on a full disk: what still works, and that it never ends a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from casfs.backend.journal import JournalReader
from casfs.store.store import Store
from casfs.system import mounts
from tests.support.engine import spawn
from tests.support.helpers import LARGE
from tests.support.lasting import ROOT_ONLY
from tests.support.programs import require

IMAGE_BYTES = 12 << 20
PUTS = """
import os, sys
from pathlib import Path
from casfs.store.store import Store
with Store.open(Path(sys.argv[1])) as store:
    while True:
        store.put(os.urandom(900))
"""
TOUCH = """
import os, sys
from pathlib import Path
from casfs.backend.frame_mirror import FrameMirror, create_mirror, mirror_path
from casfs.digest import hash_bytes
from casfs.errors import Failed
from casfs.packs.reader import open_pack
from casfs.packs.writer import PackWriter
root = Path(sys.argv[1])
with (root / "pack").open("xb") as out:
    writer = PackWriter(out)
    writer.add(hash_bytes(b"x"), b"x")
    name = writer.finish()
size = (root / "pack").stat().st_size
create_mirror(root, "origin", size, open_pack(root / "pack").index)
path = mirror_path(root, "origin", name)
path.with_suffix(".uses").touch()
with (root / "fill").open("wb", buffering=0) as file:
    found = os.statvfs(root)
    os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize)
try:
    FrameMirror(path).touch(0)
except Failed as error:
    print(error)
"""
pytestmark = ROOT_ONLY


@contextmanager
def mounted(point: Path, *command: str | Path) -> Iterator[Path]:
    point.mkdir()
    subprocess.run(["mount", *command, point], check=True)
    try:
        yield point
    finally:
        mounts.unmount(point, lazy=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=20m", "tmpfs") as point:
        yield point


def fill(place: Path, left: int = 0) -> None:
    """Leaves `left` bytes free."""
    with (place / "fill").open("wb", buffering=0) as file:
        found = os.statvfs(place)
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - left)


def filled(small: Path) -> Path:
    """A store that no process has open, on a full disk."""
    root = small / "store"
    (small / "project").mkdir()
    (small / "project/large").write_bytes(LARGE)
    assert spawn("--store", root, "init").returncode == 0
    assert spawn("--store", root, "checkpoint", "create", "p", small / "project").returncode == 0
    shutil.rmtree(small / "project")
    fill(small)
    assert os.statvfs(small).f_bavail == 0
    return root


READING = [
    "checkpoint list", "tree ls p", "stats", "status", "thread list", "workflow list", "heads",
    "list checkpoint", "workspace list", "fsck", "config",
]  # fmt: skip


def test_what_only_reads_works(small: Path) -> None:
    root = filled(small)
    for verb in READING:
        answer = spawn("--store", root, *verb.split())
        assert answer.returncode == 0, (verb, answer.stderr)
    assert "large" in spawn("--store", root, "tree", "ls", "p").stdout


def test_readers_in_several_threads(small: Path) -> None:
    """They share one connection, also where one reads while another read is under way."""
    from concurrent.futures import ThreadPoolExecutor

    root = filled(small)
    with Store.open(root) as store, ThreadPoolExecutor(4) as pool:
        names = [name for name, _ in store.heads.list()]
        found = list(pool.map(store.heads.get, names * 8))
        assert None not in found
        for name, head in store.heads.list("checkpoints/"):
            assert store.heads.get(name) == head


def test_a_reader_that_follows_the_journal(small: Path) -> None:
    root = filled(small)
    with Store.open(root) as store:
        journal = JournalReader(store.backend, after=0)
        assert [move.name for move in journal.new_moves() if move.name.startswith("checkpoints/p")]
        assert journal.new_moves() == []


def test_a_write_is_refused_in_one_line(small: Path) -> None:
    answer = spawn("--store", filled(small), "put", "-", input="x")
    assert answer.returncode == 1
    assert "full" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_gc_makes_room_in_a_store_that_never_had_a_daemon(small: Path) -> None:
    root = filled(small)
    answer = spawn("--store", root, "gc", "--grace", "0")
    assert answer.returncode == 0, answer.stderr
    assert (root / "reserve").stat().st_blocks > 0


def test_where_blocks_are_smaller_than_pages(tmp_path: Path) -> None:
    """A page of the mapped index without all its blocks was a SIGBUS."""
    require("mkfs.ext4")
    if not Path("/dev/loop-control").exists():
        pytest.skip("this machine has no loop devices")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "1024", "-m", "0", image], check=True)
    with mounted(tmp_path / "disk", "-o", "loop", image) as place:
        root = place / "store"
        Store.init(root).close()
        for left in (8 << 10, 24 << 10, 40 << 10, 120 << 10, 200 << 10, 400 << 10):
            fill(place, left)
            writer = [sys.executable, "-c", PUTS, root]
            done = subprocess.run(writer, capture_output=True, text=True, check=False)
            assert done.returncode == 1, (left, done.returncode, done.stderr)
            assert "full" in done.stderr
            answer = spawn("--store", root, "heads")
            assert answer.returncode == 0, (left, answer.stderr)
            (place / "fill").unlink()


def test_a_mirror_of_a_remote_pack_is_refused(small: Path) -> None:
    """Its map of uses is written to: a page without a block was a SIGBUS."""
    script = [sys.executable, "-c", TOUCH, small]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "No space left" in done.stdout
