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
