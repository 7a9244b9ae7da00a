"""Stores for the tests of maintenance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.store.store import Store
from tests.support.archives import ID
from tests.support.damage import (
    TREE,
    Victim,
)
from tests.support.maintenance import (
    ended,
    export,
    fill,
    put_checkpoint,
)
from tests.support.new_store import init_store


@pytest.fixture
def victim(disk_store: Store) -> Victim:
    thread = ended(disk_store, "first", "second", "third")
    return Victim(disk_store, thread, put_checkpoint(disk_store, TREE))


@pytest.fixture
def source() -> Iterator[Store]:
    """A store with a thread of three steps, a checkpoint and a type of its own."""
    with Store.memory() as store:
        fill(store)
        yield store


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Store]:
    with init_store(tmp_path / "target") as store:
        yield store


@pytest.fixture
def exported(source: Store, tmp_path: Path) -> Path:
    path = tmp_path / "exported.tar"
    export(source, path, ID, "work")
    return path
