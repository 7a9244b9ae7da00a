"""Reading what is large, running what is a program, and the numbers that files have."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.checkpoints import create
from casfs.store.store import Store
from tests.support.helpers import write_tree
from tests.support.lasting import ROOT_ONLY, drop_caches, record
from tests.support.new_store import init_store
from tests.support.programs import needs_pyfuse3, present
from tests.support.served import BY_EACH, TRANSPORTS, Mount, serving

LARGE = (24 << 20) + 4321  # bytes
HUGE = 4 << 30
MIDDLE = 2 << 30  # where the huge file has data again
LIMIT = 1 << 60
C_PROGRAM = '#include <stdio.h>\nint main(void) { puts("compiled"); return 3; }\n'
PROGRAM = "#!{python}\nimport sys\nfrom part import said\nprint(said, sys.argv[1:])\n"


@pytest.fixture(scope="module")
def mount(lasting_mount: Mount) -> Mount:
    return lasting_mount


def output(*command: str | Path) -> bytes:
    done = subprocess.run([os.fspath(part) for part in command], capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- large files --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    (folder / "file").write_bytes(random.Random(3).randbytes(LARGE))
    return folder


@pytest.fixture(scope="module")
def shown(mount: Mount, large: Path) -> Path:
    return record(mount, large, "large") / "file"


@pytest.mark.parametrize("size", ["4k", "128k", "1M", "7M"])
def test_a_large_file_in_order(shown: Path, large: Path, size: str) -> None:
    if os.geteuid() == 0:
        drop_caches()
    read = f"dd if={shown} bs={size} status=none | sha256sum"
    expected = hashlib.sha256((large / "file").read_bytes()).hexdigest()
    assert output("sh", "-c", read).decode().split()[0] == expected


@ROOT_ONLY
def test_a_large_file_anywhere(mount: Mount, shown: Path, large: Path) -> None:
    data = (large / "file").read_bytes()
    chance = random.Random(5)
    served = mount.state().starts
    with shown.open("rb", buffering=0) as file:
        for number in range(400):
            if number % 100 == 0:
                drop_caches()
            offset, size = chance.randrange(LARGE + 10), chance.choice((1, 4096, 100_000, 3 << 20))
            assert os.pread(file.fileno(), size, offset) == data[offset : offset + size]
        assert os.pread(file.fileno(), 10, LARGE) == b""
        assert os.pread(file.fileno(), 10, 1 << 62) == b""
    assert mount.state().starts == served


def test_a_large_file_without_the_kernels_cache(shown: Path, large: Path) -> None:
    fd = os.open(shown, os.O_RDONLY | os.O_DIRECT)
    try:
        with (large / "file").open("rb") as plain:
            for offset in (0, 4096, 20 << 20, LARGE // 4096 * 4096):
                assert os.pread(fd, 1 << 20, offset) == os.pread(plain.fileno(), 1 << 20, offset)
    finally:
        os.close(fd)


def test_a_large_file_by_splice(shown: Path, large: Path, tmp_path: Path) -> None:
    with shown.open("rb") as source, (tmp_path / "copy").open("wb") as copy:
        while os.sendfile(copy.fileno(), source.fileno(), None, 5 << 20):
            pass
    assert (tmp_path / "copy").read_bytes() == (large / "file").read_bytes()
    output("cmp", tmp_path / "copy", shown)
    output("cp", "--reflink=auto", "--sparse=always", shown, tmp_path / "other")
    output("cmp", tmp_path / "other", large / "file")


# -- a huge file with holes ---------------------------------------------------------------


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, str]]:
    """A store with such a file in a checkpoint, and the checkpoint's id."""
    top = tmp_path_factory.mktemp("huge")
    (top / "work").mkdir()
    with (top / "work/file").open("wb") as file:
        for at, data in ((0, b"start"), (MIDDLE, b"middle"), (HUGE - 3, b"end")):
            file.seek(at)
            file.write(data)
    with init_store(top / "store") as store:
        yield store, create.create(store, "ws", top / "work").checkpoint.id


@pytest.mark.parametrize("transport", BY_EACH)
def test_a_huge_file(huge: tuple[Store, str], tmp_path: Path, transport: str) -> None:
    store, id = huge
    with serving(store, tmp_path / "mnt", transport=transport) as mount:
        path = mount.path / "trees/ws" / id / "file"
        assert path.stat().st_size == HUGE
        with path.open("rb", buffering=0) as file:
            fd = file.fileno()
            assert os.pread(fd, 100, HUGE - 3) == b"end"
            assert os.pread(fd, 100, HUGE - 10) == bytes(7) + b"end"
            assert os.pread(fd, 100, HUGE) == b""
            assert os.pread(fd, 8, MIDDLE - 1) == b"\0middle\0"
            assert os.lseek(fd, 0, os.SEEK_END) == HUGE
            after = os.lseek(fd, 0, os.SEEK_HOLE)
            if transport == "libfuse":
                assert after == HUGE, "pyfuse3 has no such request: all of it is data"
                return
            assert 5 <= after < 1 << 20
            assert MIDDLE - (1 << 20) < os.lseek(fd, after, os.SEEK_DATA) <= MIDDLE
            assert MIDDLE < os.lseek(fd, MIDDLE, os.SEEK_HOLE) < MIDDLE + (1 << 20)
            with pytest.raises(OSError, match="No such device or address"):
                os.lseek(fd, HUGE, os.SEEK_DATA)


# -- programs -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    (folder / "script").write_text(PROGRAM.format(python=sys.executable))
    (folder / "part.py").write_text("said = 'interpreted'\n")
    if present("cc"):
        (folder / "main.c").write_text(C_PROGRAM)
        output("cc", "-o", folder / "compiled", folder / "main.c")
    else:
        shutil.copy("/bin/false", folder / "compiled")
    (folder / "data").write_bytes(b"no program")
    for name in ("script", "compiled"):
        (folder / name).chmod(0o755)
    return folder


def test_programs_run(mount: Mount, programs: Path) -> None:
    tree = record(mount, programs, "programs")
    for forget in (drop_caches if os.geteuid() == 0 else bool, bool):
        assert output(tree / "script", "one", "two") == b"interpreted ['one', 'two']\n"
        done = subprocess.run([tree / "compiled"], capture_output=True)
        plain = subprocess.run([programs / "compiled"], capture_output=True)
        assert done.returncode == plain.returncode > 0
        assert done.stdout == plain.stdout
        forget()
    with pytest.raises(PermissionError):
        subprocess.run([tree / "data"])
    assert sorted(os.listdir(tree)) == sorted(os.listdir(programs)), "no __pycache__ either"


# -- numbers ------------------------------------------------------------------------------

HELD = {
    "same": b"as in another place",
    "folder": {"same": b"as in another place", "inner": {"same": b"as in another place"}},
    "twin": {"same": b"as in another place", "inner": {"same": b"as in another place"}},
    "changes": b"first",
    "empty": b"",
    "also empty": b"",
}


def numbers(root: Path) -> dict[str, os.stat_result]:
    paths = [root, *root.rglob("*")]
    return {str(path.relative_to(root)): os.lstat(path) for path in paths}


def checkpoints(mount: Mount, work: Path, name: str, count: int) -> list[Path]:
    write_tree(work, HELD)
    (work / "link").symlink_to("same")
    (work / "other link").symlink_to("same")
    made = []
    for number in range(count):
        (work / "changes").write_bytes(b"version %d" % number)
        made.append(record(mount, work, name))
    return made


def test_numbers(mount: Mount, tmp_path: Path) -> None:
    first, second = checkpoints(mount, tmp_path / "work", "numbers", 2)
    before, after = numbers(first), numbers(second)
    for found in (before, after):
        inos = [one.st_ino for one in found.values()]
        assert len(set(inos)) == len(inos), "no two paths of a tree share one"
        assert all(1 < ino < LIMIT for ino in inos)
    for path, one in before.items():
        changed = path == "changes" or stat.S_ISDIR(one.st_mode)
        assert (one.st_ino != after[path].st_ino) is changed, path
    folders = [found["folder"].st_ino for found in (before, after)]
    assert len({*folders, before["twin"].st_ino}) == 3, "directories are unique per path"
    with os.scandir(first) as entries:
        assert {one.name: one.inode() for one in entries} == {
            path: one.st_ino for path, one in before.items() if "/" not in path and path != "."
        }


@needs_pyfuse3
def test_numbers_are_the_same_in_every_mount(disk_store: Store, tmp_path: Path) -> None:
    found: list[dict[str, int]] = []
    for number, transport in enumerate([*TRANSPORTS, *TRANSPORTS]):
        with serving(disk_store, tmp_path / "mnt", transport=transport) as mount:
            if number == 0:
                checkpoints(mount, tmp_path / "work", "numbers", 2)
            found.append({path: one.st_ino for path, one in numbers(mount.path / "trees").items()})
    assert len(found[0]) > 2 * len(HELD)
    assert found[1:] == found[:1] * 3
