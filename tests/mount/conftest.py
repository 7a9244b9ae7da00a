"""Fixtures: an empty store on disk, mounted; by each transport in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import TRANSPORTS, Mount, serving

from casfs.store import Store


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def mount(disk_store: Store, tmp_path: Path, transport: str) -> Iterator[Mount]:
    with serving(disk_store, tmp_path / "mnt", transport=transport) as mount:
        yield mount


@pytest.fixture
def xattr_mount(disk_store: Store, tmp_path: Path, transport: str) -> Iterator[Mount]:
    """Mounted with `--xattr`."""
    with serving(disk_store, tmp_path / "mnt", xattr=True, transport=transport) as mount:
        yield mount
