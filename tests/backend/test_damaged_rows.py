"""A damaged row is one finding of fsck; reading the others, and removing it, go on. Each of these
ended fsck, gc, heads and stats in a traceback before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend.derived import count_by_type, total_stored
from casfs.backend.protocols import DamagedHead, Head, Swap
from casfs.errors import Conflict, Corrupt
from casfs.maintenance import fsck, gc
from casfs.store.store import Store
from tests.support.helpers import set_head
from tests.support.maintenance import reopened, sql
from tests.support.new_store import init_store

HEAD_DAMAGE = [
    "record = replace(record, ':', ';')",
    "record = '[1]'",
    "record = 7",
    "record = x'7bff7d'",
    "record = CAST(x'7b2261223aff7d' AS TEXT)",
    "hash = 'text'",
    "hash = 17",
    "hash = x'0011'",
    "hash = 2.5",
]
BLOB_DAMAGE = ["hash = 'text'", "hash = 5", "hash = x'00'", "size = 'many'", "type = 'text'"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with init_store(tmp_path / "store") as store:
        for name in ("kept/a", "kept/b", "kept/c"):
            set_head(store, name, store.put(name.encode()).hash, n=1)
        yield store


@pytest.mark.parametrize("change", HEAD_DAMAGE)
def test_a_damaged_head_is_one_finding_and_can_be_removed(store: Store, change: str) -> None:
    sql(store, f"UPDATE heads SET {change} WHERE name = 'kept/b'")
    with reopened(store) as other:
        found = dict(other.heads.list("kept/"))
        assert list(found) == ["kept/a", "kept/b", "kept/c"]
        damaged = other.heads.get("kept/b")
        assert isinstance(damaged, DamagedHead)
        assert not damaged.record
        assert isinstance(found["kept/a"], Head)
        (fault,) = fsck.check(other).faults
        assert (fault.kind, fault.takes) == ("damaged head", ["kept/b"])
        with pytest.raises(Corrupt, match=r"head 'kept/b' is damaged; run `casfs fsck` first"):
            gc.collect(other, grace=0)
        with pytest.raises(Conflict):
            other.backend.publish([], [Swap("kept/b", found["kept/a"], None)])
        other.backend.publish([], [Swap("kept/b", damaged, None)])
        assert other.heads.get("kept/b") is None
        assert not fsck.check(other).faults
        gc.collect(other, grace=0)


def test_a_damaged_head_can_be_written_anew(store: Store) -> None:
    sql(store, "UPDATE heads SET record = '{' WHERE name = 'kept/b'")
    damaged = store.heads.get("kept/b")
    assert damaged is not None
    store.backend.publish([], [Swap("kept/b", damaged, Head(damaged.hash, {"n": 2}))])
    assert store.heads.get("kept/b") == Head(damaged.hash, {"n": 2})


def test_a_record_in_another_spelling_can_be_moved(store: Store) -> None:
    """As a person writes it into the database by hand."""
    sql(store, """UPDATE heads SET record = '{ "n" : 5 }' WHERE name = 'kept/b'""")
    found = store.heads.get("kept/b")
    assert found is not None
    assert found.record == {"n": 5}
    set_head(store, "kept/b", found.hash, n=6)


def test_a_name_that_is_not_utf8(store: Store) -> None:
    statement = "UPDATE heads SET name = CAST(x'6b6570742f62ff' AS TEXT) WHERE name = 'kept/b'"
    sql(store, statement)
    with reopened(store) as other:
        assert [name for name, _ in other.heads.list("kept/")] == [
            "kept/a",
            "kept/b\udcff",
            "kept/c",
        ]
        assert other.heads.get("kept/b") is None
        assert list(other.heads.moves())


@pytest.mark.parametrize("change", BLOB_DAMAGE)
def test_a_damaged_blob_row_is_found(store: Store, change: str) -> None:
    hash = store.put(b"lonely").hash
    sql(store, f"UPDATE blobs SET {change} WHERE hash = ?", bytes.fromhex(hash))
    with reopened(store) as other:
        report = fsck.check(other, quarantine=False)
        assert [fault.message for fault in report.faults if fault.kind == "store"] == [
            "store.db: 1 rows of the table blobs are damaged"
        ]
        assert total_stored(other.blobs).blobs
        assert count_by_type(other.blobs)
        gc.collect(other, grace=0)


@pytest.mark.parametrize(
    ("table", "change"),
    [("types", "hash = 'text' WHERE id = 2"), ("moves", "hash = 5"), ("moves", "at = 'noon'")],
)
def test_damage_in_other_tables_is_found(store: Store, table: str, change: str) -> None:
    sql(store, f"UPDATE {table} SET {change}")
    with reopened(store) as other:
        messages = [fault.message for fault in fsck.check(other, quarantine=False).faults]
        assert any(f"rows of the table {table} are damaged" in line for line in messages)
        assert other.heads.moves()
        assert count_by_type(other.blobs)


def test_the_kind_mode_and_owner_of_objects(store: Store, tmp_path: Path) -> None:
    """Content is right in each; so nothing but this check finds them."""
    digest = store.put(b"x" * 5000)
    file = store.root / "objects" / digest.hash[:2] / digest.hash[2:]
    file.chmod(0o644)
    assert _faults(store) == [
        f"objects/{digest.hash[:2]}/{digest.hash[2:]}: its mode is 644, must be 444"
    ]
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert any(line.endswith(": not a regular file") for line in _faults(store))


def _faults(store: Store) -> list[str]:
    return [fault.message for fault in fsck.check(store, quarantine=False).faults]
