"""A served store, and a browser to look at it with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from casfs.store.store import Store
from tests.support import programs
from tests.support.browser import AXE, Browser, browser
from tests.support.web import Web, serving


@pytest.fixture
def web(disk_store: Store) -> Iterator[Web]:
    """A `casfs web` of `disk_store`."""
    with serving(disk_store.root) as web:
        yield web


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The one browser of all tests; skips where it is not installed."""
    programs.require("chromium", "chromedriver", "npm")
    if not AXE.exists():
        pytest.skip(f"{programs.MISSING}axe-core (tests/run.sh)")
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found
