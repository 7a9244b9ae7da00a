from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend.objects import Objects
from casfs.backend.protocols import INLINE_MAX_BYTES, Staged, discard
from casfs.backend.staging import CLAIM_GRACE_S
from casfs.digest import Digest
from casfs.errors import CorruptBlob, Failed, NotFound
from casfs.store.store import Store
from tests.support.helpers import LARGE, private_files


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Objects]:
    Objects.create(tmp_path / "objects")
    opened = Objects(tmp_path / "objects")
    yield opened
    opened.staging.close()


def place(objects: Objects, data: bytes) -> str:
    staged = objects.stage(io.BytesIO(data))
    objects.sync([staged])
    objects.place([staged])
    return staged.digest.hash


def rewrite(objects: Objects, hash: str, data: bytes) -> None:
    objects.path(hash).chmod(0o644)
    objects.path(hash).write_bytes(data)


def test_small_is_held_and_large_is_a_private_file(objects: Objects, tmp_path: Path) -> None:
    small = objects.stage(io.BytesIO(b"x" * INLINE_MAX_BYTES))
    assert small == Staged(Digest.of(b"x" * INLINE_MAX_BYTES), b"x" * INLINE_MAX_BYTES)
    assert private_files(tmp_path) == []
    large = objects.stage(io.BytesIO(b"x" * (INLINE_MAX_BYTES + 1)))
    assert large.data is None
    assert large.temp is not None
    assert private_files(tmp_path) == [Path(large.temp)]
    discard([small, large, large])
    assert private_files(tmp_path) == []


def test_a_placed_file_is_read_back(objects: Objects, tmp_path: Path) -> None:
    hash = place(objects, LARGE)
    assert objects.path(hash) == tmp_path / "objects" / hash[:2] / hash[2:]
    for _ in range(2):
        with objects.open(hash) as source:
            assert source.read() == LARGE
    assert private_files(tmp_path) == []


def test_many_files_are_placed_at_once(objects: Objects, tmp_path: Path) -> None:
    staged = [objects.stage(io.BytesIO(LARGE + b"%d" % n)) for n in range(30)]
    objects.sync(staged)
    objects.place(staged)
    for one in staged:
        with objects.open(one.digest.hash) as source:
            assert Digest.of(source.read()) == one.digest
    assert private_files(tmp_path) == []


def test_what_a_crash_left_in_place_is_replaced(objects: Objects) -> None:
    hash = place(objects, LARGE)
    rewrite(objects, hash, b"cut")
    assert place(objects, LARGE) == hash
    with objects.open(hash) as source:
        assert source.read() == LARGE


def test_a_missing_file_is_not_found(objects: Objects) -> None:
    with pytest.raises(NotFound):
        objects.open(Digest.of(LARGE).hash)


@pytest.mark.parametrize("seen_before", [False, True])
@pytest.mark.parametrize("change", ["flipped", "shorter", "longer", "empty"])
def test_a_changed_file_is_never_served(objects: Objects, seen_before: bool, change: str) -> None:
    hash = place(objects, LARGE)
    if seen_before:
        objects.open(hash).close()
    flipped = bytes([LARGE[0] ^ 1]) + LARGE[1:]
    changed = {"flipped": flipped, "shorter": LARGE[:-1], "longer": LARGE + b"x", "empty": b""}
    rewrite(objects, hash, changed[change])
    for _ in range(2):
        with pytest.raises(CorruptBlob, match=hash):
            objects.open(hash)
    rewrite(objects, hash, LARGE)
    with objects.open(hash) as source:
        assert source.read() == LARGE


def test_a_file_that_cannot_be_read_is_a_failure(objects: Objects) -> None:
    hash = Digest.of(LARGE).hash
    objects.path(hash).mkdir(parents=True)
    with pytest.raises(Failed, match=hash):
        objects.open(hash)


def test_a_source_that_fails_leaves_no_private_file(objects: Objects, tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > INLINE_MAX_BYTES:
                raise OSError(5, "Input/output error")
            return super().read(size)

    with pytest.raises(OSError, match="Input/output error"):
        objects.stage(Broken(LARGE))
    assert private_files(tmp_path) == []


# -- private directories ------------------------------------------------------------------


def test_close_leaves_nothing_in_tmp(objects: Objects, tmp_path: Path) -> None:
    objects.stage(io.BytesIO(LARGE))
    objects.staging.close()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_threads_of_a_process_share_one_private_directory(objects: Objects, tmp_path: Path) -> None:
    start = threading.Barrier(8)
    staged: list[Staged] = []

    def work(n: int) -> None:
        start.wait()
        staged.append(objects.stage(io.BytesIO(LARGE + b"%d" % n)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.temp for one in staged}) == 8
    assert len(list((tmp_path / "tmp").iterdir())) == 1


WRITER = """
import io, os, sys
from pathlib import Path
from casfs.backend.objects import Objects
objects = Objects(Path(sys.argv[1]))
print(objects.stage(io.BytesIO(b"x" * 9000)).temp, flush=True)
sys.stdin.read()
os._exit(1)
"""


def test_only_what_dead_writers_left_is_swept(objects: Objects, tmp_path: Path) -> None:
    own = Path(objects.stage(io.BytesIO(LARGE)).temp or "")
    command = [sys.executable, "-c", WRITER, str(tmp_path / "objects")]
    project = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=project
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        theirs = Path(writer.stdout.readline().strip())
        assert objects.staging.sweep() == 0
        assert theirs.exists()
        writer.stdin.close()
        writer.wait()
    assert theirs.exists()
    assert objects.staging.sweep() == 1
    assert not theirs.parent.exists()
    assert own.exists()


def test_a_directory_that_is_being_claimed_is_not_swept(objects: Objects, tmp_path: Path) -> None:
    hidden = tmp_path / "tmp" / ".0123"
    hidden.mkdir()
    assert objects.staging.sweep() == 0
    past = hidden.stat().st_mtime - 2 * CLAIM_GRACE_S
    os.utime(hidden, (past, past))
    assert objects.staging.sweep() == 1
    assert not hidden.exists()


def test_other_things_in_tmp_are_left_alone(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "tmp" / "file").write_bytes(b"")
    assert objects.staging.sweep() == 0
    assert (tmp_path / "tmp" / "file").exists()


def test_tmp_is_made_when_it_is_missing(objects: Objects, tmp_path: Path) -> None:
    """Empty directories get lost in some kinds of copies."""
    (tmp_path / "tmp").rmdir()
    assert objects.staging.sweep() == 0
    assert place(objects, LARGE) == Digest.of(LARGE).hash


# -- very large files -----------------------------------------------------------------------


@pytest.fixture
def bulk(monkeypatch: pytest.MonkeyPatch) -> int:
    """From how many bytes on the kernel copies; small enough for a test."""
    monkeypatch.setattr("casfs.backend.objects.KERNEL_COPY_MIN_BYTES", 1 << 20)
    return 1 << 20


def test_a_very_large_file_is_copied_with_its_holes(
    disk_store: Store, tmp_path: Path, bulk: int
) -> None:
    origin = tmp_path / "large"
    with origin.open("wb") as out:
        out.write(b"begin")
        out.seek(3 * bulk)
        out.write(b"middle")
        out.truncate(8 * bulk)
    with origin.open("rb") as source:
        digest = disk_store.put_stream(source)
    assert digest == Digest.of(origin.read_bytes())
    stored = disk_store.root / "objects" / digest.hash[:2] / digest.hash[2:]
    assert stored.read_bytes() == origin.read_bytes()
    assert stored.stat().st_mode & 0o777 == 0o444
    assert stored.stat().st_blocks <= origin.stat().st_blocks + 16


def test_a_very_large_file_is_taken_from_where_its_reader_stands(
    disk_store: Store, tmp_path: Path, bulk: int
) -> None:
    origin = tmp_path / "large"
    origin.write_bytes(b"left out" + b"x" * (2 * bulk))
    with origin.open("rb", buffering=0) as source:
        source.seek(8)
        digest = disk_store.put_stream(source)
    assert digest == Digest.of(b"x" * (2 * bulk))


def test_where_the_kernel_cannot_copy_the_file_is_read(
    disk_store: Store, tmp_path: Path, bulk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(errno.EXDEV, "not across these")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    origin = tmp_path / "large"
    origin.write_bytes(bytes(range(256)) * (bulk // 64))
    with origin.open("rb") as source:
        assert disk_store.put_stream(source) == Digest.of(origin.read_bytes())


def test_a_full_disk_while_the_kernel_copies_is_told(
    disk_store: Store, tmp_path: Path, bulk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    origin = tmp_path / "large"
    origin.write_bytes(b"y" * (2 * bulk))
    with origin.open("rb") as source, pytest.raises(Failed, match="No space left on device"):
        disk_store.put_stream(source)
    assert not [path for path in (disk_store.root / "tmp").rglob("*") if path.name.isdigit()]


def test_a_decompressor_is_read_and_not_the_file_below_it(
    disk_store: Store, tmp_path: Path, bulk: int
) -> None:
    content = os.urandom(2 * bulk)
    with gzip.open(tmp_path / "large.gz", "wb", compresslevel=1) as out:
        out.write(content)
    with gzip.open(tmp_path / "large.gz") as source:
        assert disk_store.put_stream(source) == Digest.of(content)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "link"])
def test_what_stands_in_place_of_an_object_is_damage(
    disk_store: Store, tmp_path: Path, kind: str
) -> None:
    """Nothing waits for it: neither a read, nor fsck."""
    hash = disk_store.put(LARGE).hash
    path = disk_store.root / "objects" / hash[:2] / hash[2:]
    path.rename(tmp_path / "moved")
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            os.chdir(path.parent)  # the path is longer than a socket's address may be
            bound.bind(path.name)
        elif kind == "device":
            if os.geteuid() != 0:
                pytest.skip("only root makes devices")
            os.mknod(path, stat.S_IFCHR | 0o444, os.makedev(5, 0))
        else:
            path.symlink_to(tmp_path / "moved")
        for read in (disk_store.get, disk_store.blobs.open, disk_store.blobs.verify):
            with pytest.raises(CorruptBlob, match="not a regular file"):
                read(hash)


def test_a_file_that_gc_removes_while_faults_are_listed_has_none(objects: Objects) -> None:
    hash = place(objects, LARGE)
    (objects.root / "!").touch()  # sorts first: what it yields is a moment inside the listing
    faults = objects.faults()
    assert next(faults).startswith("!: not the name of a blob")
    objects.remove(hash)
    assert [*faults] == []


def test_a_removed_staging_directory_is_made_again(objects: Objects, tmp_path: Path) -> None:
    """As by `rm -rf tmp/*` under a writer: the write under way fails whole, the next ones work."""
    lost = objects.stage(io.BytesIO(LARGE))
    shutil.rmtree(Path(lost.temp or "").parent)
    with pytest.raises(Failed, match="cannot sync"):
        objects.sync([lost])
    assert not objects.path(lost.digest.hash).exists()
    assert objects.path(place(objects, LARGE)).read_bytes() == LARGE
    assert objects.staging.sweep() == 0  # it is locked again


def test_shards_are_made_when_they_are_needed(objects: Objects) -> None:
    assert list(objects.root.iterdir()) == []
    assert list(objects.shards()) == []
    hash = place(objects, LARGE)
    assert [path.name for path in objects.root.iterdir()] == [hash[:2]]
    assert [name for shard in objects.shards() for name, _ in shard] == [hash]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_staged_file_that_is_gone_is_named(objects: Objects, is_new: bool) -> None:
    staged = objects.stage(io.BytesIO(LARGE))
    assert staged.temp is not None
    if not is_new:
        (objects.root / staged.digest.hash[:2]).mkdir()
    os.unlink(staged.temp)
    with pytest.raises(Failed, match="cannot write"):
        objects.place([staged])
