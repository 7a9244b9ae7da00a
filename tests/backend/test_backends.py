"""Every backend passes the conformance suites; then what is true of the disk alone."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from casfs.backend.derived import version_of
from casfs.backend.disk import DiskBackend
from casfs.backend.protocols import (
    FILE_MIN_BYTES,
    INLINE_MAX_BYTES,
    Backend,
    Head,
    Publication,
    Staged,
    Swap,
)
from casfs.backend.sqlite_statements import TOUCH_RESOLUTION_S
from casfs.digest import Digest
from casfs.errors import CasfsError, Conflict, Corrupt, Failed, NotFound
from tests.contracts import blobs_contract, heads_contract, journal_contract, purge_contract
from tests.contracts.contract import ABSENT, Check, create, put
from tests.support.helpers import LARGE, private_files


def disk(root: Path) -> Backend:
    root.mkdir()
    DiskBackend.create(root)
    return DiskBackend(root)


FACTORIES: dict[str, Callable[[Path], Backend]] = {
    "disk": disk,
}


@pytest.fixture(params=FACTORIES)
def make_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Backend]]:
    made: list[Backend] = []

    def make() -> Backend:
        made.append(FACTORIES[request.param](tmp_path / f"backend-{len(made)}"))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


SUITES = [blobs_contract, heads_contract, journal_contract, purge_contract]
CHECKS = [check for suite in SUITES for check in suite.CONTRACT]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, make_backend: Callable[[], Backend]) -> None:
    check(make_backend)


@pytest.mark.parametrize("module", SUITES)
def test_a_suite_collects_all_its_functions(module: object) -> None:
    named = [f for f in vars(module).values() if getattr(f, "__annotations__", None)]
    checks = [f for f in named if "make_backend" in f.__annotations__]
    assert checks == vars(module)["CONTRACT"]


# -- the disk alone ----------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    DiskBackend.create(tmp_path)
    return tmp_path


@pytest.fixture
def backend(root: Path) -> Iterator[DiskBackend]:
    opened = DiskBackend(root)
    yield opened
    opened.close()


def ages(root: Path) -> dict[str, int]:
    with sqlite3.connect(root / "store.db") as db:
        rows = db.execute("SELECT hash, touched FROM blobs").fetchall()
    db.close()
    return {hash.hex(): touched for hash, touched in rows}


def make_old(root: Path) -> None:
    with sqlite3.connect(root / "store.db") as db:
        db.execute("UPDATE blobs SET touched = touched - ?", (10 * TOUCH_RESOLUTION_S + 10,))
    db.close()


def test_a_reopened_store_has_what_was_published(root: Path) -> None:
    first = DiskBackend(root)
    hashes = [put(first, blobs_contract.content(n)) for n in blobs_contract.SIZES]
    head = create(first, "name", hashes[0], n=1)
    before = list(first.blobs.iterate())
    first.close()
    second = DiskBackend(root)
    assert list(second.blobs.iterate()) == before
    for hash, size in zip(hashes, blobs_contract.SIZES, strict=True):
        assert second.blobs.get(hash).data == blobs_contract.content(size)
    assert second.heads.get("name") == head
    second.close()


def test_two_writers_see_each_other(root: Path, backend: DiskBackend) -> None:
    other = DiskBackend(root)
    one = put(other, LARGE)
    assert backend.blobs.get(one).data == LARGE
    version = version_of(backend)()
    head = create(other, "name", one)
    assert version_of(backend)() != version
    assert backend.heads.get("name") == head
    with pytest.raises(Conflict):
        backend.publish([], [Swap("name", None, head)])
    other.close()


def test_large_blobs_are_plain_read_only_files(root: Path, backend: DiskBackend) -> None:
    small = put(backend, blobs_contract.content(INLINE_MAX_BYTES))
    large = put(backend, LARGE)
    path = root / "objects" / large[:2] / large[2:]
    assert path.read_bytes() == LARGE
    assert path.stat().st_mode & 0o7777 == 0o444
    assert not (root / "objects" / small[:2] / small[2:]).exists()
    assert private_files(root) == []


def test_a_hole_stays_a_hole(root: Path, backend: DiskBackend) -> None:
    hash = put(backend, bytes(8 << 20) + b"end")
    stat = (root / "objects" / hash[:2] / hash[2:]).stat()
    assert stat.st_size == (8 << 20) + 3
    assert stat.st_blocks * 512 < 1 << 20


def test_nodes_are_rows_whatever_their_size(root: Path, backend: DiskBackend) -> None:
    meta = put(backend, b"meta", "schema")
    digest = Digest.of(LARGE)
    backend.publish([Staged(digest, LARGE, type=meta)])
    assert backend.blobs.get(digest.hash).data == LARGE
    assert not (root / "objects" / digest.hash[:2] / digest.hash[2:]).exists()


def test_a_dedup_hit_a_requirement_and_a_head_make_young(root: Path, backend: DiskBackend) -> None:
    hashes = [put(backend, b"%d" % n) for n in range(4)]
    make_old(root)
    old = ages(root)
    put(backend, b"0")
    backend.publish([], require=[hashes[1]])
    backend.publish([], [Swap("name", None, Head(hashes[2]))])
    new = ages(root)
    assert [new[hash] > old[hash] for hash in hashes] == [True, True, True, False]


def test_a_refused_requirement_makes_nothing_young(root: Path, backend: DiskBackend) -> None:
    hash = put(backend, b"here")
    make_old(root)
    old = ages(root)
    with pytest.raises(NotFound):
        backend.publish([], require=[hash, ABSENT])
    assert ages(root) == old


def test_a_missing_or_broken_database_is_told(root: Path) -> None:
    (root / "store.db").rename(root / "moved")
    with pytest.raises(Failed, match=r"store\.db"):
        DiskBackend(root)
    (root / "store.db").write_bytes(b"this is no database, and it is long enough" * 30)
    with pytest.raises(Corrupt, match="fsck"):
        DiskBackend(root)


def test_a_full_or_locked_tmp_is_a_clear_failure(root: Path, backend: DiskBackend) -> None:
    (root / "tmp").rmdir()
    (root / "tmp").write_bytes(b"in the way")
    with pytest.raises(CasfsError, match="tmp"):
        put(backend, LARGE)


def test_each_of_a_group_that_fails_has_an_error_of_its_own(backend: DiskBackend) -> None:
    """Else threads that raise it at once write into one traceback."""
    lost = backend.blobs.stage(io.BytesIO(bytes(FILE_MIN_BYTES)))
    assert lost.temp is not None
    Path(lost.temp).unlink()
    whole = backend.blobs.stage_bytes(Digest.of(b"1"), b"1")
    group = [Publication([blob], [], require=(), local=()) for blob in (lost, whole)]
    one, other = backend.publish_group(group)
    assert isinstance(one, Failed)
    assert isinstance(other, Failed)
    assert str(one) == str(other)
    assert one is not other


def test_a_store_of_an_older_casfs_says_what_to_do(tmp_path: Path) -> None:
    root = tmp_path / "old"
    disk(root).close()
    with sqlite3.connect(root / "store.db") as db:
        db.execute("DROP TABLE moves")
    db.close()
    backend = DiskBackend(root)
    try:
        staged = backend.blobs.stage_bytes(Digest.of(b"1"), b"1")
        swap = Swap("name", None, Head(staged.digest.hash))
        with pytest.raises(Failed, match="casfs init"):
            backend.publish([staged], [swap])
        DiskBackend.create(root)
        backend.publish([staged], [swap])
        assert [move.name for move in backend.heads.moves()] == ["name"]
    finally:
        backend.close()


def test_the_journal_goes_on_after_a_restart(tmp_path: Path) -> None:
    root = tmp_path / "root"
    backend = disk(root)
    staged = backend.blobs.stage_bytes(Digest.of(b"1"), b"1")
    backend.publish([staged], [Swap("a", None, Head(staged.digest.hash))])
    backend.close()
    backend = DiskBackend(root)
    try:
        backend.publish([], [Swap("b", None, Head(staged.digest.hash))])
        assert [(move.seq, move.name) for move in backend.heads.moves()] == [(1, "a"), (2, "b")]
    finally:
        backend.close()
