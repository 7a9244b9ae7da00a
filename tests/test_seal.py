"""Objects that nobody may write to while they are a layer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import ABSENT, LARGE

from casfs.backend import seal
from casfs.errors import Failed, NotFound
from casfs.store import Store


def objects(store: Store) -> Path:
    assert store.root is not None
    return store.root / "objects"


def put(store: Store) -> tuple[str, Path]:
    hash = store.put(LARGE).hash
    return hash, objects(store) / hash[:2] / hash[2:]


def test_a_store_as_it_is_made_will_do(disk_store: Store) -> None:
    hash, path = put(disk_store)
    seal.check(objects(disk_store))
    sealed = seal.Seal(objects(disk_store))
    sealed(hash)
    sealed(hash)
    assert path.stat().st_mode & 0o777 == 0o444
    assert path.read_bytes() == LARGE


@pytest.mark.parametrize("place", ["", "../", "ab"])
def test_directories_that_others_may_write_to(disk_store: Store, place: str) -> None:
    folder = objects(disk_store) / place
    folder.chmod(0o777)
    with pytest.raises(Failed, match="alone to write"):
        seal.check(objects(disk_store))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_what_belongs_to_others(disk_store: Store) -> None:
    hash, path = put(disk_store)
    os.chown(path, 65534, 65534)
    with pytest.raises(Failed, match="not a file of this user"):
        seal.Seal(objects(disk_store))(hash)
    os.chown(objects(disk_store) / "ab", 65534, 65534)
    with pytest.raises(Failed, match="alone to write"):
        seal.check(objects(disk_store))


def test_a_write_permission_is_taken_away(disk_store: Store) -> None:
    hash, path = put(disk_store)
    path.chmod(0o666)
    seal.Seal(objects(disk_store))(hash)
    assert path.stat().st_mode & 0o777 == 0o444


def test_what_is_no_plain_file_or_not_there(disk_store: Store) -> None:
    hash, path = put(disk_store)
    sealed = seal.Seal(objects(disk_store))
    with pytest.raises(NotFound, match="fsck"):
        sealed(ABSENT)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(Failed, match="not a file of this user"):
        sealed(hash)


def test_verity_is_given_up_where_there_is_none(disk_store: Store) -> None:
    """Where there is, nobody can write any more, not even root."""
    hash, path = put(disk_store)
    sealed = seal.Seal(objects(disk_store))
    sealed(hash)
    path.chmod(0o644)
    if sealed.verity:
        with pytest.raises(PermissionError):
            path.open("r+b")
    else:
        path.open("r+b").close()
