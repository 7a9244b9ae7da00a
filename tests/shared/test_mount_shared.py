"""Mounts of a second machine of a shared store, by both transports."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.checkpoints.checkpoint import head_name
from casfs.checkpoints.create import create
from casfs.mount.registry import wait_until
from tests.support.lasting import ROOT_ONLY, drop_caches
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import S3Server
from tests.support.served import BY_EACH, serving
from tests.support.teams import Team, read_files, team, write_files

LARGE = random.Random(3).randbytes(3 << 20)
FILES = {f"d{n // 10}/e{n // 5}/f{n:03}": f"line {n}\n".encode() * (n * 9) for n in range(100)}
FILES |= {"large.bin": LARGE, "short": b"short", "empty": b""}
READ_LIMIT_S = 20.0  # no read may hang


@pytest.fixture
def pair(tmp_path: Path, database_url: str, s3: S3Server) -> Iterator[Team]:
    with team(tmp_path, database_url, s3) as made:
        yield made


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tree", FILES)


def failure(path: Path) -> int:
    """The errno of reading a file, or 0; in time."""
    start = time.monotonic()
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno or -1
    finally:
        assert time.monotonic() - start < READ_LIMIT_S
    return 0


@pytest.mark.parametrize("transport", BY_EACH)
def test_a_tree_of_another_machine(pair: Team, tree: Path, tmp_path: Path, transport: str) -> None:
    root = pair.checkpoint(tree)
    with serving(pair.second, tmp_path / "mnt", transport=transport) as mount:
        assert read_files(mount.path / "trees" / root) == FILES
        assert read_files(mount.path / "trees/t/latest/") == FILES
        assert (mount.path / "blobs" / root).read_bytes() == pair.first.get(root)
        with pytest.raises(FileNotFoundError):
            (mount.path / "blobs" / ("0" * 64)).stat()


@pytest.mark.parametrize("transport", BY_EACH)
def test_names_follow_another_machine(
    pair: Team, tree: Path, tmp_path: Path, transport: str
) -> None:
    with serving(pair.second, tmp_path / "mnt", transport=transport) as mount:
        trees = mount.path / "trees"
        assert os.listdir(trees) == []
        made = create(pair.first, "later", tree).checkpoint
        wait_until(lambda: os.listdir(trees) == ["later"], "the name does not come")
        shown = trees / "later" / made.id
        assert read_files(shown) == FILES
        name = head_name("later", made.id)
        with pair.first.batch() as batch:
            batch.swap(name, pair.first.heads.get(name), None)
        wait_until(lambda: not shown.exists(), "the name does not go")


@ROOT_ONLY
@pytest.mark.parametrize("transport", BY_EACH)
@pytest.mark.parametrize("how", ["stopped", "silent"])
def test_without_the_database(
    pair: Team,
    tree: Path,
    tmp_path: Path,
    postgres: PostgresServer,
    transport: str,
    how: str,
) -> None:
    """What was read before can be read; the rest is EHOSTUNREACH, in time; then all is back."""
    root = pair.checkpoint(tree)
    other = pair.checkpoint(write_files(tmp_path / "other", {"a/b": b"other" * 9000}), "u")
    with serving(pair.second, tmp_path / "mnt", transport=transport) as mount:
        shown, missing = mount.path / "trees" / root, mount.path / "trees" / other / "a/b"
        assert read_files(shown) == read_files(mount.path / "trees/t/latest/") == FILES
        if how == "stopped":
            postgres.stop()
        else:
            pair.database.cut()
        try:
            drop_caches()
            assert read_files(shown) == FILES
            assert read_files(mount.path / "trees/t/latest/") == FILES
            assert failure(missing) == errno.EHOSTUNREACH
            assert failure(mount.path / "blobs" / ("0" * 64)) == errno.EHOSTUNREACH
            assert sorted(os.listdir(mount.path / "trees")) == ["t", "u"]
        finally:
            postgres.start()
            pair.database.heal()
        wait_until(lambda: failure(missing) == 0, "the database is not found again")
        assert missing.read_bytes() == b"other" * 9000


@ROOT_ONLY
@pytest.mark.parametrize("transport", BY_EACH)
def test_without_object_storage(pair: Team, tree: Path, tmp_path: Path, transport: str) -> None:
    root = pair.checkpoint(tree)
    with serving(pair.second, tmp_path / "mnt", transport=transport) as mount:
        shown = mount.path / "trees" / root
        pair.objects.down()
        assert (shown / "short").read_bytes() == FILES["short"]
        assert failure(shown / "large.bin") == errno.EHOSTUNREACH
        pair.objects.up()
        wait_until(lambda: failure(shown / "large.bin") == 0, "the objects are not found again")
        assert read_files(shown) == FILES
        pair.objects.down()
        drop_caches()
        assert read_files(shown) == FILES


def test_a_mount_starts_without_the_database(pair: Team, tree: Path, tmp_path: Path) -> None:
    """Where a replica is there; on a machine that has none it is refused."""
    pair.checkpoint(tree)
    with serving(pair.second, tmp_path / "mnt") as mount:
        assert read_files(mount.path / "trees/t/latest/") == FILES
    pair.database.cut()
    with serving(pair.second, tmp_path / "mnt") as mount:
        assert read_files(mount.path / "trees/t/latest/") == FILES
        pair.database.heal()
        pair.checkpoint(tree, "later")
        wait_until(lambda: "later" in os.listdir(mount.path / "trees"), "it does not follow")


def test_two_mounts_follow_when_one_ends(pair: Team, tree: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    with serving(pair.second, first) as one, serving(pair.second, second) as two:
        one.kill()
        pair.checkpoint(tree)
        wait_until(lambda: os.listdir(two.path / "trees") == ["t"], "none follows")
