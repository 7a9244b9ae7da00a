"""Publications to a shared store: what goes where, what is left behind, and many at once."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from casfs.backend.postgres import publication
from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.postgres.uploads import MAX_ROWS, ROW_MAX_BYTES
from casfs.backend.protocols import (
    FILE_MIN_BYTES,
    INLINE_MAX_BYTES,
    Head,
    HeadName,
    Publication,
    Staged,
)
from casfs.checkpoints.create import create as create_checkpoint
from casfs.digest import Digest
from casfs.errors import CasfsError, Conflict, Invalid, NotFound
from tests.contracts.contract import ABSENT, create, get, put, stage, swap
from tests.support.helpers import private_files
from tests.support.restores import restore_tree
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import join, make_store

LARGE = bytes(range(256)) * 100  # goes to object storage
AGE = """
UPDATE casfs.blobs SET touched = 0 WHERE id IN (
  SELECT id FROM casfs.blobs WHERE id > 3 FOR UPDATE SKIP LOCKED)"""
PLACES = "SELECT data IS NOT NULL, pack IS NOT NULL FROM casfs.blobs WHERE hash = %b"


def in_row(backend: PostgresBackend, hash: str) -> bool:
    ((row, pack),) = backend.pool.run(PLACES, [bytes.fromhex(hash)])
    assert row != pack
    return bool(row)


def count(backend: PostgresBackend, table: str) -> int:
    ((found,),) = backend.pool.run(f"SELECT count(*) FROM casfs.{table}")
    return int(found)


# -- what goes where ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        INLINE_MAX_BYTES,
        INLINE_MAX_BYTES + 1,
        ROW_MAX_BYTES,
        ROW_MAX_BYTES + 1,
        FILE_MIN_BYTES - 1,
        FILE_MIN_BYTES,
        FILE_MIN_BYTES + 1,
    ],
)
def test_a_blob_of_any_size_comes_back_on_another_machine(
    backend: PostgresBackend, other: PostgresBackend, size: int
) -> None:
    data = random.Random(size).randbytes(size)
    hash = put(backend, data)
    assert in_row(backend, hash) == (size <= ROW_MAX_BYTES)
    assert count(backend, "strays") == 0
    for one in (other, backend):
        assert one.blobs.get(hash).data == data
        assert one.blobs.info([hash])[hash].size == size
        with one.blobs.open(hash) as file:
            assert file.read() == data
    assert private_files(backend.root) == []


def test_many_blobs_are_rows_only_where_they_are_short(backend: PostgresBackend) -> None:
    staged = [stage(backend, b"%d" % n + bytes(INLINE_MAX_BYTES)) for n in range(MAX_ROWS + 1)]
    short = stage(backend, bytes(INLINE_MAX_BYTES))
    backend.publish([*staged, short])
    assert not any(in_row(backend, one.digest.hash) for one in staged)
    assert in_row(backend, short.digest.hash)
    assert count(backend, "packs") == 1


def test_a_short_blob_in_a_private_file_is_a_row(backend: PostgresBackend) -> None:
    path = backend.blobs.staging_directory() / "private"
    path.write_bytes(b"short")
    staged = Staged(Digest.of(b"short"), None, str(path))
    backend.publish([staged])
    assert in_row(backend, staged.digest.hash)
    assert count(backend, "packs") == 0
    assert private_files(backend.root) == []


def test_a_node_that_is_staged_as_plain_bytes_too_is_a_row(backend: PostgresBackend) -> None:
    meta = put(backend, b"meta", "schema")
    plain = stage(backend, LARGE)
    backend.publish([plain, plain._replace(type=meta)])
    assert in_row(backend, plain.digest.hash)
    assert backend.blobs.get(plain.digest.hash).type == meta


def test_the_same_large_blob_twice_in_a_group_is_in_one_pack(backend: PostgresBackend) -> None:
    large = bytes(FILE_MIN_BYTES)
    group = [Publication([stage(backend, large)]) for _ in range(3)]
    results = backend.publish_group(group)
    hash = Digest.of(large).hash
    assert all(isinstance(one, set) for one in results)
    assert (count(backend, "packs"), count(backend, "strays")) == (1, 2)
    assert backend.publish([stage(backend, large)]) == {hash}
    assert (count(backend, "packs"), count(backend, "strays")) == (1, 2)
    assert private_files(backend.root) == []


def test_a_stored_blob_that_goes_before_the_transaction_is_no_row_without_content(
    backend: PostgresBackend, tmp_path: Path
) -> None:
    staged = stage(backend, bytes(FILE_MIN_BYTES))
    backend.publish([staged])
    again = Publication([stage(backend, bytes(FILE_MIN_BYTES))])
    placed, packs = backend.uploads.place(again, tmp_path / "private")
    assert packs == []
    backend.pool.run("DELETE FROM casfs.blobs")  # as gc does
    with pytest.raises(Conflict):
        publication.publish(backend.pool, [publication.arguments(placed)])
    assert count(backend, "blobs") == 0


def test_a_checkpoint_of_many_files_reads_back_elsewhere(
    database_url: str, s3: S3Server, tmp_path: Path
) -> None:
    rng, source = random.Random(1), tmp_path / "source"
    source.mkdir()
    content = {f"{n}": rng.randbytes(rng.choice([0, 700, 3000, 9000])) for n in range(1500)}
    for name, data in content.items():
        (source / name).write_bytes(data)
    (source / "large").write_bytes(bytes(FILE_MIN_BYTES + 1))
    with make_store(tmp_path / "one", database_url, s3) as store:
        root = create_checkpoint(store, "app", source).checkpoint.root
        assert private_files(tmp_path / "one") == []
    with join(tmp_path / "two", database_url) as store:
        restore_tree(store, root, tmp_path / "restored")
    for name, data in content.items():
        assert (tmp_path / "restored" / name).read_bytes() == data
    assert (tmp_path / "restored" / "large").read_bytes() == bytes(FILE_MIN_BYTES + 1)


# -- failures -----------------------------------------------------------------------------


def test_what_fails_after_the_transaction_is_no_failure_of_it(backend: PostgresBackend) -> None:
    one = put(backend, b"1")
    (backend.root / "remotes").write_text("in the way of the cache")
    staged = stage(backend, LARGE)
    backend.publish([staged], [swap("name", None, Head(one))])
    assert get(backend, "name") == Head(one)
    (backend.root / "remotes").unlink()
    assert backend.blobs.get(staged.digest.hash).data == LARGE
    backend.pool.run("DROP FUNCTION casfs.prune_moves")
    backend.publish([], [swap(f"{n:04}", None, Head(one)) for n in range(2000)])


def test_what_cannot_be_uploaded_leaves_no_file_and_moves_no_head(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = put(backend, b"1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    staged = [stage(backend, bytes([n]) * FILE_MIN_BYTES) for n in range(6)]
    files = private_files(backend.root)
    with pytest.raises(CasfsError):
        backend.publish(staged, [swap("name", None, Head(one))])
    assert get(backend, "name") is None
    assert private_files(backend.root) == files  # which the batch drops


def test_one_of_a_group_conflicts_alone(backend: PostgresBackend, other: PostgresBackend) -> None:
    one, two = put(backend, b"1"), put(backend, b"2")
    head = create(backend, "head", one)
    staged = [stage(backend, LARGE), stage(backend, LARGE[1:])]
    first, conflict, absent, invalid, last = backend.publish_group(
        [
            Publication([staged[0]], [swap("head", head, Head(two))]),
            Publication([staged[1]], [swap("head", head, Head(one))]),
            Publication([], [swap("x", None, Head(one))], [ABSENT]),
            Publication([], [swap("\0", None, Head(one))]),
            Publication([], [swap("head", Head(two), Head(one))]),
        ]
    )
    assert isinstance(first, set)
    assert isinstance(last, set)
    assert isinstance(conflict, Conflict)
    assert isinstance(absent, NotFound)
    assert isinstance(invalid, Invalid)
    assert other.blobs.get(staged[0].digest.hash).data == LARGE
    assert backend.blobs.info([staged[1].digest.hash]) == {}
    assert count(backend, "strays") == 1, "of the one that was not published"
    assert [move.hash for move in other.heads.moves(1)] == [two, one]


def test_a_blob_that_became_a_node_while_it_was_published_as_plain_bytes(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    meta = put(backend, b"meta", "schema")
    for number in range(20):
        data = LARGE + b"%d" % number
        node = [stage(other, data, meta)]
        writers = [
            threading.Thread(target=backend.publish, args=([stage(backend, data)],)),
            threading.Thread(target=other.publish, args=(node,)),
        ]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join()
        assert in_row(backend, node[0].digest.hash)
        for one in (backend, other):
            assert one.blobs.get(node[0].digest.hash).type == meta
            assert one.blobs.get(node[0].digest.hash).data == data


# -- many at once ------------------------------------------------------------------------------


def test_publications_of_the_same_blobs_in_any_order_disturb_no_other(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    """All require and publish the same blobs, whose age is old each time."""
    meta = put(backend, b"meta", "schema")
    required = [put(backend, b"required %d" % n) for n in range(30)]
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        rng = random.Random(writer)
        by = backend if writer % 2 else other
        for turn in range(8):
            contents = [b"%d/%d" % (turn, n) for n in range(30)]
            group = []
            for _ in range(3):
                rng.shuffle(contents)
                staged = [stage(by, one, rng.choice([None, meta])) for one in contents]
                name = f"{writer}/{turn}/{rng.random()}"
                needs = rng.sample(required, 20)
                group.append(Publication(staged, [swap(name, None, Head(required[0]))], needs))
            results = by.publish_group(group)
            errors.extend(one for one in results if isinstance(one, BaseException))
            by.pool.run(AGE)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert count(backend, "heads") == count(backend, "moves") == 8 * 8 * 3


# -- names from outside -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["'; DROP TABLE casfs.heads; --", "%", "a_b%c", "\\", '"', "a\n\t\x01", "ü/𝄞", "$1", "{}"],
)
def test_a_name_is_a_name(backend: PostgresBackend, name: str) -> None:
    one = put(backend, b"1")
    create(backend, "aXbYc", one)
    head = create(backend, name, one, text="'\\\u0000%s %(x)s")
    assert get(backend, name) == head
    assert [found for found, _ in backend.heads.list(name)] == [name]
    assert [move.name for move in backend.heads.moves(-1)] == [name]
    backend.heads.note_use([HeadName(name)])
    assert backend.heads.last_use(HeadName(name)) > 0
    backend.publish([], [swap(name, head, None)])
    assert get(backend, name) is None
    assert backend.heads.last_use(HeadName(name)) == 0


@pytest.mark.parametrize("name", ["a\0b", "\ud800", os.fsdecode(b"\xff"), "x" * 3000])
def test_a_name_that_cannot_be_stored(backend: PostgresBackend, name: str) -> None:
    one = put(backend, b"1")
    good, bad = backend.publish_group(
        [Publication([], [swap(name_, None, Head(one))]) for name_ in ("good", name)]
    )
    assert (good, type(bad)) == (set(), Invalid)
    assert get(backend, name) is None
    assert list(backend.heads.list(name)) == []
    backend.heads.note_use([HeadName(name), HeadName("good")])
    assert backend.heads.last_use(HeadName(name)) == 0
    assert backend.heads.last_use(HeadName("good")) > 0


@pytest.mark.parametrize(
    "hash", ["", "zz", "AB" * 32, "ab" * 31, " " + "ab" * 32, "ab" * 32 + "\0"]
)
def test_a_hash_of_another_spelling_is_no_blob(backend: PostgresBackend, hash: str) -> None:
    one = put(backend, b"1")
    assert backend.blobs.info([hash, one]).keys() == {one}
    assert backend.blobs.missing([hash, one]) == [hash]
    for read in (backend.blobs.get, backend.blobs.open, backend.blobs.stream):
        with pytest.raises(NotFound):
            read(hash)
    with pytest.raises(NotFound):
        backend.publish([], [], [hash])


def test_what_arrives_late_is_not_passed_over(backend: PostgresBackend) -> None:
    """Ids come from a sequence: a blob with an earlier id may be committed after a later one."""
    late, soon = stage(backend, b"late"), stage(backend, b"soon")
    call = publication.arguments(publication.Placed(Publication([late]), {}, {}))
    found: list[str] = []
    with backend.pool.transaction() as db:
        db.execute(publication.ONE, call.values)
        backend.publish([soon])
        reader = threading.Thread(
            target=lambda: found.extend(hash for _, hash, _ in backend.blobs.iterate())
        )
        reader.start()
        reader.join(0.5)
    reader.join()
    assert found == [late.digest.hash, soon.digest.hash]
