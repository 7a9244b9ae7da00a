"""A project and a store for each test of actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.store.store import Store
from tests.support.actions import PROJECT, Bench
from tests.support.helpers import write_tree


@pytest.fixture
def bench(disk_store: Store, tmp_path: Path) -> Bench:
    return Bench(disk_store, write_tree(tmp_path / "project", PROJECT))
