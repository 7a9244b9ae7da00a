"""A damaged blob under a live mount: never a wrong byte, an error on just that file, and the
mount goes on. What the kernel has in its cache already, right, it may still show."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint
from casfs.digest import Digest
from casfs.store.store import Store
from tests.support.lasting import ROOT_ONLY, drop_caches, fill, object_of, record
from tests.support.served import Mount


@pytest.fixture(scope="module")
def mount(lasting_mount: Mount) -> Mount:
    return lasting_mount


@pytest.fixture(autouse=True)
def goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does to the shared mount, it is served by the same process afterwards."""
    mount: Mount | None = None
    if "mount" in request.fixturenames:
        mount = request.getfixturevalue("mount")
    yield
    if mount is not None:
        assert mount.state().starts == 1
        assert (mount.path / "README.txt").read_text()


def failing(read: Callable[[], object]) -> bool:
    """True for EIO; any other error is none that may be."""
    try:
        read()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return True
    return False


# -- single blobs -------------------------------------------------------------------------


def flip(data: bytes) -> bytes | None:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "flipped": flip,
    "truncated": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "empty": lambda data: b"",
    "missing": lambda data: None,
    "flipped in place": flip,
    "truncated in place": lambda data: data[:-1],
}


def slug(how: str) -> str:
    return how.replace(" ", "-")


def damage(store: Store, data: bytes, how: str) -> None:
    """Give a blob another content, or none; `in place`: in the same file."""
    hash, now = Digest.of(data).hash, DAMAGE[how](data)
    held = object_of(store, hash)
    if held.exists():
        if not how.endswith("in place"):
            held.unlink()
        if now is not None:
            held.write_bytes(now)
        return
    with closing(sqlite3.connect(store.root / "store.db")) as rows, rows:
        if now is None:
            done = rows.execute("DELETE FROM blobs WHERE hash = ?", [bytes.fromhex(hash)])
        else:
            change = "UPDATE blobs SET data = ? WHERE hash = ?"
            done = rows.execute(change, [now, bytes.fromhex(hash)])
        assert done.rowcount == 1


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_an_error_on_that_file(mount: Mount, tmp_path: Path, how: str) -> None:
    contents = fill(tmp_path / "work")
    tree = record(mount, tmp_path / "work", f"bad-{slug(how)}")
    bad = [name for name in contents if name.endswith("1")]
    for name in bad:
        damage(mount.store, contents[name], how)
    for _ in range(2):
        for name, data in contents.items():
            if name in bad:
                assert failing((tree / name).read_bytes), name
            else:
                assert (tree / name).read_bytes() == data, name
            assert (tree / name).stat().st_size == len(data)
    assert sorted(os.listdir(tree)) == sorted(contents)
    program = "import mmap,os,sys;print(mmap.mmap(os.open(sys.argv[1],0),0,prot=1)[:])"
    mapped = subprocess.run([sys.executable, "-c", program, tree / bad[1]], capture_output=True)
    assert mapped.returncode < 0, "SIGBUS"


@ROOT_ONLY
@pytest.mark.parametrize("how", DAMAGE)
def test_what_was_read_before_the_damage(mount: Mount, tmp_path: Path, how: str) -> None:
    contents = fill(tmp_path / "work")
    tree = record(mount, tmp_path / "work", f"read-{slug(how)}")
    with ExitStack() as stack:
        held = {name: stack.enter_context((tree / name).open("rb")) for name in contents}
        for name, data in contents.items():
            assert os.pread(held[name].fileno(), 1000, 0) == data[:1000]
            assert name.startswith("long") or (tree / name).read_bytes() == data
        for data in contents.values():
            damage(mount.store, data, how)
        for forget in (drop_caches, bool):
            for name, data in contents.items():
                with suppress(OSError):
                    found = os.pread(held[name].fileno(), len(data), 0)
                    assert data.startswith(found or b"?"), name
                    assert (tree / name).read_bytes() == data, name
            forget()


def test_a_blob_that_is_mended_is_read_at_once(mount: Mount, tmp_path: Path) -> None:
    contents = fill(tmp_path / "work")
    tree = record(mount, tmp_path / "work", "mended")
    for data in contents.values():
        damage(mount.store, data, "flipped")
    assert all(failing((tree / name).read_bytes) for name in contents)
    for data in contents.values():
        hash = Digest.of(data).hash
        if object_of(mount.store, hash).exists():
            object_of(mount.store, hash).write_bytes(data)
            continue
        with closing(sqlite3.connect(mount.store.root / "store.db")) as rows, rows:
            change = "UPDATE blobs SET data = ? WHERE hash = ?"
            rows.execute(change, [data, bytes.fromhex(hash)])
    for name, data in contents.items():
        assert (tree / name).read_bytes() == data, name


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_directory_is_an_error_on_that_directory(
    mount: Mount, tmp_path: Path, how: str
) -> None:
    for name in ("good", "bad"):
        (tmp_path / "work" / name).mkdir(parents=True)
        (tmp_path / "work" / name / "file").write_bytes(os.urandom(100))
    tree = record(mount, tmp_path / "work", f"folder-{slug(how)}")
    made = checkpoint.latest(mount.store, f"folder-{slug(how)}")
    assert made is not None
    listed = mount.store.node(made.root).payload["directories"]
    (inner,) = (one["digest"] for one in listed if one["name"] == "bad")
    damage(mount.store, mount.store.blobs.get(inner["hash"]).data, how)
    for _ in range(2):
        assert failing(lambda: os.listdir(tree / "bad"))
        assert failing(lambda: os.stat(tree / "bad/file"))
        assert sorted(os.listdir(tree)) == ["bad", "good"]
        assert (tree / "bad").is_dir()
        assert len((tree / "good/file").read_bytes()) == 100
