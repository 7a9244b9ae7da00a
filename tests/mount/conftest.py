"""Fixtures: an empty store on disk, mounted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Mount, serving

from casfs.store import Store


@pytest.fixture
def mount(disk_store: Store, tmp_path: Path) -> Iterator[Mount]:
    with serving(disk_store, tmp_path / "mnt") as mount:
        yield mount


@pytest.fixture
def xattr_mount(disk_store: Store, tmp_path: Path) -> Iterator[Mount]:
    """Mounted with `--xattr`."""
    with serving(disk_store, tmp_path / "mnt", xattr=True) as mount:
        yield mount
