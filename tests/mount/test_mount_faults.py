"""A mount whose store is in trouble, and one that is asked for anything at all: never a wrong
byte, and the mount goes on."""

from __future__ import annotations

import errno
import os
import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint
from casfs.errors import CasfsError
from casfs.fuse.session import MAX_NAME_BYTES
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.system import mounts
from tests.support.lasting import ROOT_ONLY, fill, record
from tests.support.new_store import init_store
from tests.support.served import BY_EACH, Mount, serving
from tests.test_faults import full

DISK = 24 << 20  # bytes
GUESSES = 10_000
READERS = 24
ROUNDS = 24
PAUSE = 0.2  # seconds between two looks of a reader, or whoever writes is kept from it
ODD = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EIO}
STATE = ("store.db", "store.db-wal", "store.db-shm")


# -- the database, the disk ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["garbage", "nothing", "gone"])
@pytest.mark.parametrize("transport", BY_EACH)
def test_a_database_that_cannot_be_read(tmp_path: Path, transport: str, how: str) -> None:
    contents = fill(tmp_path / "work")
    store = init_store(tmp_path / "store")
    with serving(store, tmp_path / "mnt", transport=transport) as mount:
        tree = record(mount, tmp_path / "work")
        seen = next(iter(contents))
        assert (tree / seen).read_bytes() == contents[seen]
        store.close()
        for name in STATE:
            path = tmp_path / "store" / name
            if how == "gone":
                path.unlink()
            elif how == "nothing":
                if name != STATE[2]:  # it is mapped; a process whose map is cut off cannot go on
                    os.truncate(path, 0)
            else:
                with path.open("r+b") as file:
                    file.write(os.urandom(path.stat().st_size))
        for _ in range(2):
            for name, data in contents.items():
                with suppress(OSError):
                    assert (tree / name).read_bytes() == data, name
            for view in ("trees", "threads", "threads.json", f"blobs/{'0' * 64}", "history"):
                with suppress(OSError):
                    os.stat(mount.path / view)
                    os.listdir(mount.path / view)
        assert "README.txt" in os.listdir(mount.path)
        assert mount.requests()["lookup"] > 0
        os.statvfs(mount.path)
        assert mount.state().starts == 1


@ROOT_ONLY
@pytest.mark.parametrize("transport", BY_EACH)
def test_a_full_disk(tmp_path: Path, transport: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    contents = fill(tmp_path / "work")
    mounts.mount("small", disk, "tmpfs", 0, b"size=%d" % DISK)
    try:
        with (
            init_store(disk / "store") as store,
            serving(store, tmp_path / "mnt", transport=transport) as mount,
        ):
            tree = record(mount, tmp_path / "work")
            (tmp_path / "work/new").write_bytes(os.urandom(1 << 20))
            with full(disk, 0):
                for name, data in contents.items():
                    assert (tree / name).read_bytes() == data, name
                with pytest.raises(CasfsError):
                    record(mount, tmp_path / "work")
                assert os.listdir(tree.parent) == [tree.name, "latest"]
                assert mount.requests()["read"] > 0
            again = record(mount, tmp_path / "work")
            assert (again / "new").read_bytes() == (tmp_path / "work/new").read_bytes()
            assert mount.state().starts == 1
    finally:
        mounts.unmount(disk, lazy=True)


# -- anything at all ----------------------------------------------------------------------


@pytest.mark.parametrize("transport", BY_EACH)
def test_random_names_and_offsets(disk_store: Store, tmp_path: Path, transport: str) -> None:
    with serving(disk_store, tmp_path / "mnt", transport=transport) as mount:
        guess(mount, tmp_path)
        assert mount.state().starts == 1


def guess(mount: Mount, tmp_path: Path) -> None:
    contents = fill(tmp_path / "work")
    tree = record(mount, tmp_path / "work", "guessed")
    chance = random.Random(17)
    places = [
        mount.path,
        tree,
        tree / "row-1",
        *(mount.path / view for view in os.listdir(mount.path)),
    ]
    names = list(contents)
    for _ in range(GUESSES // 2):
        letters = chance.choices(
            range(1, 256), k=chance.choice((1, 8, 64, MAX_NAME_BYTES, MAX_NAME_BYTES + 1))
        )
        name = os.fsdecode(bytes(letters))
        if "/" not in name and name not in (".", ".."):
            with pytest.raises(OSError, match=r"\[Errno") as caught:
                os.lstat(chance.choice(places) / name)
            assert caught.value.errno in ODD, name
    for _ in range(GUESSES // 2):
        name = chance.choice(names)
        data = contents[name]
        offset, size = chance.randrange(1 << chance.randrange(63)), chance.randrange(200_000)
        with (tree / name).open("rb", buffering=0) as file:
            assert os.pread(file.fileno(), size, offset) == data[offset : offset + size]


def stamped(name: str, version: int) -> bytes:
    """What a file says about itself, again and again."""
    line = f"{name} {version}\n".encode()
    return line * (1 + 40_000 * (int(name[1:]) % 3) // len(line))


def check(tree: Path, found: list[str], *, kept: bool) -> None:
    """Each file has one version's content; where the tree may go, it may be gone."""
    try:
        for name in os.listdir(tree):
            data = (tree / name).read_bytes()
            version = int(data.split(b"\n")[0].split()[1])
            if data != stamped(name, version):
                found.append(f"wrong bytes in {name}")
    except OSError as error:
        if kept:
            found.append(f"{tree}: {error}")


@pytest.mark.parametrize("transport", BY_EACH)
def test_readers_while_checkpoints_come_and_go(
    disk_store: Store, tmp_path: Path, transport: str
) -> None:
    with serving(disk_store, tmp_path / "mnt", transport=transport) as mount:
        assert come_and_go(mount, tmp_path / "work") == []
        assert mount.state().starts == 1


def come_and_go(mount: Mount, work: Path) -> list[str]:
    """What was wrong."""
    store = mount.store
    work.mkdir()

    def write(version: int) -> None:
        for number in range(6):
            (work / f"f{number}").write_bytes(stamped(f"f{number}", version))

    write(0)
    first = record(mount, work, "busy")
    found: list[str] = []
    over = threading.Event()

    def read(number: int) -> None:
        while not over.wait(PAUSE):
            check(first, found, kept=True)
            check(first.parent / "latest", found, kept=False)
            if number % 8 == 0:
                for id in os.listdir(first.parent):
                    check(first.parent / id, found, kept=False)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        for version in range(1, ROUNDS):
            write(version)
            newest = record(mount, work, "busy")
            for one in checkpoint.listing(store, "busy"):
                if one.id not in (first.name, newest.name):
                    name = f"checkpoints/busy/{one.id}"
                    with store.batch() as batch:
                        batch.swap(name, store.heads.get(name), None)
            gc.collect(store, grace=0)
            assert (newest / "f0").read_bytes() == stamped("f0", version)
    finally:
        over.set()
        for reader in readers:
            reader.join()
    return found
