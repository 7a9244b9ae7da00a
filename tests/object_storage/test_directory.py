"""A directory as object storage: what lies in it, and what does not belong there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from casfs.errors import AccessDenied, CasfsError, Corrupt, Failed, NotFound, Unreachable
from casfs.object_storage import directory
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a remote" / "deep"


@pytest.fixture
def storage(root: Path) -> ObjectStorage:
    return open_storage(root.as_uri())


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_nothing_is_made_before_the_first_put(storage: ObjectStorage, root: Path) -> None:
    assert storage.head("a") is None
    assert list(storage.list("")) == []
    assert not root.exists()


def test_modes_and_no_temporary_files(storage: ObjectStorage, root: Path) -> None:
    storage.put("packs/a", b"1")
    storage.put("packs/a", b"2")
    assert storage.put_if_absent("log/1", b"1")
    assert not storage.put_if_absent("log/1", b"2")
    storage.now()
    assert files(root) == ["log/1", "packs/a"]
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_dir()} == {0o700}
    assert root.stat().st_mode & 0o777 == 0o700
    assert {(root / name).stat().st_mode & 0o777 for name in files(root)} == {0o600}


def test_what_a_killed_writer_left_is_not_listed(storage: ObjectStorage, root: Path) -> None:
    storage.put("a", b"1")
    (root / directory.TEMP / "left").write_bytes(b"half")
    (root / "not a key").write_bytes(b"")
    assert [key for key, _ in storage.list("")] == ["a"]


def test_only_regular_files_are_read(storage: ObjectStorage, root: Path, tmp_path: Path) -> None:
    storage.put("a", b"1")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (root / "link").symlink_to(secret)
    os.mkfifo(root / "fifo")
    (root / "dir").mkdir()
    for key in ("link", "fifo", "dir"):
        with pytest.raises(CasfsError, match=f"/{key}: "):
            storage.get(key)
        with pytest.raises(CasfsError):
            storage.head(key)
    assert [key for key, _ in storage.list("")] == ["a"]


def test_a_file_in_place_of_a_directory(storage: ObjectStorage) -> None:
    storage.put("a", b"1")
    with pytest.raises(Failed, match=r"/a/b: "):
        storage.put("a/b", b"2")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ESTALE, Unreachable),
        (errno.EIO, Unreachable),
        (errno.EACCES, AccessDenied),
        (errno.ENOSPC, Failed),
        (errno.ENOENT, NotFound),
    ],
)
def test_errors_of_the_file_system(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[CasfsError]
) -> None:
    storage.put("a", b"1")

    def broken(*args: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(directory.os, "open", broken)
    for use in (lambda: storage.get("a"), lambda: storage.put("b", b"1")):
        with pytest.raises(kind, match=r"a%20remote/deep/[ab]: "):
            use()


def test_a_put_that_fails_leaves_nothing(
    storage: ObjectStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("a", b"1")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("fsync", "link"):
        with monkeypatch.context() as patch:
            patch.setattr(directory.os, name, full)
            with pytest.raises(Failed, match="No space left"):
                storage.put_if_absent("b", b"2")
    assert files(root) == ["a"]


def test_a_put_is_durable_before_its_key_exists(
    storage: ObjectStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file first, then its name, then the directory: in this order."""
    calls: list[str] = []

    def noted(name: str, module: object) -> None:
        real = getattr(module, name)

        def call(*args: object, **keywords: object) -> object:
            at = args[0]
            kind = os.readlink(f"/proc/self/fd/{at}") if isinstance(at, int) else str(at)
            calls.append(f"{name} {'file' if f'/{directory.TEMP}/' in kind else 'directory'}")
            return real(*args, **keywords)

        monkeypatch.setattr(module, name, call)

    storage.put("log/0", b"0")
    noted("fsync", directory.os)
    noted("link", directory.os)
    assert storage.put_if_absent("log/1", b"1")
    assert calls == ["fsync file", "link file", "fsync directory"]


def test_an_object_that_is_shorter_than_its_size(
    storage: ObjectStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process cuts it between the look at its size and the read."""
    storage.put("a", b"12345")
    monkeypatch.setattr(directory.os, "pread", lambda fd, size, offset: b"12")
    for read in (lambda: storage.get_range("a", 0, 5), lambda: storage.get_tail("a", 5)):
        with pytest.raises(Corrupt, match="/a ends early"):
            read()
