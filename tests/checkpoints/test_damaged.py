"""A checkpoint whose head is damaged is listed as broken; the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint
from casfs.errors import Corrupt
from tests.support.maintenance import put_checkpoint, sql
from tests.support.new_store import init_store


@pytest.mark.parametrize("record", ["no json", "{}", '{"bad":1}'])
def test_a_damaged_checkpoint(tmp_path: Path, record: str) -> None:
    """Fails before: a traceback of every listing."""
    with init_store(tmp_path / "store") as store:
        put_checkpoint(store, {"f": b"one"}, "work")
        put_checkpoint(store, {"f": b"two"}, "other")
        sql(store, "UPDATE heads SET record = ? WHERE name LIKE 'checkpoints/work/%'", record)
        other, work = checkpoint.listing(store)
        assert (other.name, other.message) == ("other", "")
        assert work.message.startswith("broken: its r")
        assert checkpoint.find(store, "other") == other
        for text in ("work", f"work@{work.id}"):
            with pytest.raises(Corrupt, match="is broken: its r"):
                checkpoint.find(store, text)


def test_the_older_ones_of_a_damaged_checkpoint_are_found(tmp_path: Path) -> None:
    with init_store(tmp_path / "store") as store:
        old, damaged = (put_checkpoint(store, {"f": b"%d" % n}, at=n) for n in range(2))
        sql(store, "UPDATE heads SET record = '{}' WHERE name = ?", damaged)
        id = old.rpartition("/")[2]
        for find in (checkpoint.find, checkpoint.find_if_named):
            found = find(store, f"work@{id}")
            assert found is not None
            assert (found.id, found.message) == (id, "")
            with pytest.raises(Corrupt, match="is broken: its r"):
                find(store, "work")
