"""Objects that nobody may write to while they are a layer."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

import pytest

from casfs.errors import CorruptBlob, Failed, NotFound
from casfs.native import object_protection
from casfs.store.store import Store
from tests.support.helpers import ABSENT, LARGE, put_tree
from tests.support.native import ensure_image


def objects(store: Store) -> Path:
    return store.root / "objects"


def put(store: Store) -> tuple[str, Path]:
    hash = store.put(LARGE).hash
    return hash, objects(store) / hash[:2] / hash[2:]


def test_a_store_as_it_is_made_will_do(disk_store: Store) -> None:
    hash, path = put(disk_store)
    object_protection.check_owner(objects(disk_store))
    protector = object_protection.ObjectProtector(objects(disk_store))
    protector.protect(hash, len(LARGE))
    protector.protect(hash, len(LARGE))
    assert path.stat().st_mode & 0o777 == 0o444
    assert path.read_bytes() == LARGE


@pytest.mark.parametrize("place", ["", "../", "ab"])
def test_directories_that_others_may_write_to(disk_store: Store, place: str) -> None:
    folder = objects(disk_store) / place
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    with pytest.raises(Failed, match="alone to write"):
        object_protection.check_owner(objects(disk_store))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_what_belongs_to_others(disk_store: Store) -> None:
    hash, path = put(disk_store)
    os.chown(path, 65534, 65534)
    with pytest.raises(Failed, match="not a file of this user"):
        object_protection.ObjectProtector(objects(disk_store)).protect(hash, len(LARGE))
    os.chown(path.parent, 65534, 65534)
    with pytest.raises(Failed, match="alone to write"):
        object_protection.check_owner(objects(disk_store))


def test_a_write_permission_is_taken_away(disk_store: Store) -> None:
    hash, path = put(disk_store)
    path.chmod(0o666)
    object_protection.ObjectProtector(objects(disk_store)).protect(hash, len(LARGE))
    assert path.stat().st_mode & 0o777 == 0o444


def test_what_is_no_plain_file_or_not_there(disk_store: Store) -> None:
    hash, path = put(disk_store)
    protector = object_protection.ObjectProtector(objects(disk_store))
    with pytest.raises(NotFound, match="fsck"):
        protector.protect(ABSENT, 1)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(Failed, match="not a file of this user"):
        protector.protect(hash, len(LARGE))


def test_verity_is_given_up_where_there_is_none(disk_store: Store) -> None:
    """Where there is, nobody can write any more, not even root."""
    hash, path = put(disk_store)
    protector = object_protection.ObjectProtector(objects(disk_store))
    protector.protect(hash, len(LARGE))
    path.chmod(0o644)
    if protector.verity:
        with pytest.raises(PermissionError):
            path.open("r+b")
    else:
        path.open("r+b").close()


@pytest.mark.parametrize("code", [None, errno.EEXIST, errno.ENOTTY, errno.EOPNOTSUPP])
def test_verity_is_switched_on_for_every_object(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    """A stand-in answers for kernels that have it: well, that it was on already, or that this
    file system has none; in which case it is not asked again."""
    hashes = [disk_store.put(LARGE + bytes(number)).hash for number in range(1, 4)]
    asked = []

    def ioctl(fd: int, request: int, argument: bytes) -> int:
        asked.append((os.readlink(f"/proc/self/fd/{fd}"), request, len(argument), argument[:16]))
        if code is not None:
            raise OSError(code, os.strerror(code))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    protector = object_protection.ObjectProtector(objects(disk_store))
    for number, hash in enumerate(hashes, 1):
        protector.protect(hash, len(LARGE) + number)
    is_there = code in (None, errno.EEXIST)
    assert protector.verity == is_there
    paths = [str(objects(disk_store) / hash[:2] / hash[2:]) for hash in hashes]
    assert [path for path, *_ in asked] == (paths if is_there else paths[:1])
    # _IOW('f', 133, struct fsverity_enable_arg): version 1, SHA-256, blocks of 4096, no salt
    request = 1 << 30 | 128 << 16 | ord("f") << 8 | 133
    assert all(rest == [request, 128, struct.pack("<4I", 1, 1, 4096, 0)] for _, *rest in asked)


@pytest.mark.parametrize("size", [0, 1000, len(LARGE) + 1])
def test_an_object_of_another_size_is_refused(disk_store: Store, size: int) -> None:
    hash, path = put(disk_store)
    path.chmod(0o644)
    os.truncate(path, size)
    with pytest.raises(CorruptBlob, match="bytes long; run `casfs fsck`"):
        object_protection.ObjectProtector(objects(disk_store)).protect(hash, len(LARGE))
    with pytest.raises(CorruptBlob, match="bytes long"):
        ensure_image(disk_store, put_tree(disk_store, {"large": LARGE}))
