"""Fixtures of the tests of views."""

from __future__ import annotations

import pytest

from casfs.store.store import Store
from tests.support.thread_example import Example, make_thread


@pytest.fixture
def thread(store: Store) -> Example:
    return make_thread(store)
