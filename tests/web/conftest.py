"""A served store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from casfs.store import Store
from tests.support.web import Web, serving


@pytest.fixture
def web(disk_store: Store) -> Iterator[Web]:
    """A `casfs web` of `disk_store`."""
    assert disk_store.root is not None
    with serving(disk_store.root) as web:
        yield web
