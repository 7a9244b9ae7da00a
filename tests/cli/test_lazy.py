"""What the commands do with blobs that are in a remote only: as with local ones, or they say so."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from casfs.backend.derived import in_remote
from casfs.store.store import Store
from tests.support.engine import Cli
from tests.support.native import ensure_image
from tests.support.programs import needs_device

LARGE = random.Random(2).randbytes(3 << 20)
FILES = {f"d{n // 50}/f{n:03}.txt": f"line {n}\n".encode() * (n + 200) for n in range(120)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, data in {**FILES, "large.bin": LARGE}.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "tree"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    (tmp_path / "remote").mkdir()
    return tmp_path / "remote"


@pytest.fixture
def other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[[str], Cli]:
    """The command line on another store."""
    return lambda name: Cli(tmp_path / name, monkeypatch, capfdbinary)


@pytest.fixture
def clone(cli: Cli, other: Callable[[str], Cli], tree: Path, remote: Path, tmp_path: Path) -> Cli:
    """The command line on a lazy clone of a store with a checkpoint `t`."""
    cli("remote", "add", "origin", remote.as_uri())
    cli("checkpoint", "create", "t", str(tree))
    cli("push", "origin", "t")
    cli("clone", remote.as_uri(), str(tmp_path / "clone"), "--lazy")
    return other("clone")


def same(one: Path, other: Path) -> bool:
    names = [path.relative_to(one) for path in one.rglob("*") if path.is_file()]
    return bool(names) and all((one / n).read_bytes() == (other / n).read_bytes() for n in names)


def test_restore_export_and_push_fetch_what_they_need(
    clone: Cli, other: Callable[[str], Cli], tree: Path, tmp_path: Path
) -> None:
    clone("checkpoint", "restore", "t", str(tmp_path / "out"))
    assert same(tree, tmp_path / "out")
    clone("export", "t", "-o", str(tmp_path / "t.tar"))
    (tmp_path / "second").mkdir()
    clone("remote", "add", "second", (tmp_path / "second").as_uri())
    clone("push", "second", "t")
    clone("clone", (tmp_path / "second").as_uri(), str(tmp_path / "third"))
    other("third")("checkpoint", "restore", "t", str(tmp_path / "again"))
    assert same(tree, tmp_path / "again")


def test_fsck_counts_what_it_does_not_read(clone: Cli, tmp_path: Path) -> None:
    report = json.loads(clone("fsck", "--json").out)
    assert report["faults"] == []
    assert report["remote"] == len(FILES) + 1
    assert b"in a remote and were not read" in clone("fsck").out
    clone("checkpoint", "restore", "t", str(tmp_path / "out"))
    assert json.loads(clone("fsck", "--json").out)["remote"] == len(
        FILES
    )  # the large one is a file


def test_a_remote_that_blobs_are_in_is_not_removed(clone: Cli) -> None:
    assert "in origin only" in clone.refused("remote", "rm", "origin", code=4)


def test_gc_deletes_the_mirrors_of_what_it_deletes(clone: Cli, tmp_path: Path) -> None:
    for name in FILES:
        clone("cat", f"t:{name}")
    mirrors = tmp_path / "clone" / "remotes" / "origin" / "packs"
    assert list(mirrors.iterdir())
    clone("gc", "--grace", "0")
    assert list(mirrors.iterdir())
    clone("checkpoint", "rm", "t")
    for _ in range(2):  # first what was removed counts as that; times are in seconds
        time.sleep(1.1)
        clone("gc", "--grace", "0")
    assert list(mirrors.iterdir()) == []


def test_a_pull_that_is_not_lazy_brings_the_rest(
    clone: Cli, tree: Path, remote: Path, tmp_path: Path
) -> None:
    assert json.loads(clone("pull", "origin", "--json").out)["blobs"] == len(FILES) + 1
    assert json.loads(clone("fsck", "--json").out)["remote"] == 0
    clone("remote", "rm", "origin")
    shutil.rmtree(remote)
    clone("checkpoint", "restore", "t", str(tmp_path / "out"))
    assert same(tree, tmp_path / "out")


def test_an_image_leaves_the_content_in_the_remote(clone: Cli, tmp_path: Path) -> None:
    with Store.open(tmp_path / "clone") as store:
        ((_, head),) = store.heads.list("checkpoints/t/")
        ensure_image(store, store.node(head.hash).payload["root"])
        assert len(list(in_remote(store.blobs))) == len(FILES) + 1


BIG_SIZES = (1 << 20, (1 << 20) + 1, 3 << 20, 5 << 20, 11 << 20)  # the first is no file of its own
MAX_SHARE = 1.3  # of what was read, on the disk


def room(folder: Path) -> int:
    """The bytes that the files below a directory take of the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if not path.is_mount())


@pytest.fixture
def big(
    cli: Cli, other: Callable[[str], Cli], tmp_path: Path, remote: Path
) -> tuple[Cli, dict[str, bytes], int]:
    """The command line on a lazy clone of files that do not compress; the files; the room of the
    clone before any was read."""
    files = {f"f{n}": random.Random(n).randbytes(size) for n, size in enumerate(BIG_SIZES)}
    (tmp_path / "big").mkdir()
    for name, data in files.items():
        (tmp_path / "big" / name).write_bytes(data)
    cli("remote", "add", "origin", remote.as_uri())
    cli("checkpoint", "create", "t", str(tmp_path / "big"))
    cli("push", "origin", "t")
    cli("clone", remote.as_uri(), str(tmp_path / "clone"), "--lazy")
    return other("clone"), files, room(tmp_path / "clone")


def check_room(clone: Cli, before: int, again: Callable[[], object]) -> None:
    assert room(clone.root) - before <= MAX_SHARE * sum(BIG_SIZES)
    again()
    assert room(clone.root) - before <= MAX_SHARE * sum(BIG_SIZES)
    assert clone("fsck").code == 0


def test_what_is_printed_is_kept_once(big: tuple[Cli, dict[str, bytes], int]) -> None:
    clone, files, before = big

    def read() -> None:
        for name, data in files.items():
            assert clone("get", f"t:{name}").out == data

    read()
    check_room(clone, before, read)


def test_what_is_restored_is_kept_once(
    big: tuple[Cli, dict[str, bytes], int], tmp_path: Path
) -> None:
    clone, files, before = big

    def restore() -> None:
        clone("checkpoint", "restore", "t", str(tmp_path / "out"))
        for name, data in files.items():
            assert (tmp_path / "out" / name).read_bytes() == data
        shutil.rmtree(tmp_path / "out")

    restore()
    check_room(clone, before, restore)


@needs_device
def test_what_is_read_in_a_mount_is_kept_once(
    big: tuple[Cli, dict[str, bytes], int], tmp_path: Path
) -> None:
    clone, files, before = big
    point = tmp_path / "point"

    def read() -> None:
        trees = (point / "trees" / "t").iterdir()
        (tree,) = [one for one in trees if not one.is_symlink()]
        for name, data in files.items():
            assert (tree / name).read_bytes() == data

    try:
        clone("mount", point)
        read()
        check_room(clone, before, read)
        clone("umount", point)
    finally:
        subprocess.run(["fusermount3", "-u", "-z", point], capture_output=True)


def test_readers_at_once_keep_one_copy(big: tuple[Cli, dict[str, bytes], int]) -> None:
    clone, files, before = big
    name = f"f{len(BIG_SIZES) - 1}"
    command = [sys.executable, "-m", "casfs", "--store", clone.root, "get", f"t:{name}"]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda reader: reader.communicate()[0], readers))
    assert found == [files[name]] * 4
    assert room(clone.root) - before <= MAX_SHARE * len(files[name])
