"""What a session writes into its log."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from casfs.errors import CorruptBlob
from casfs.fuse.session import Session
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.store.store import Store


def test_a_failure_is_logged_once_an_interval(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    def log(event: str, **fields: Any) -> None:
        lines.append(fields["message"])

    view = root(StoreReader(store), stats := Stats())
    session = Session(view, stats, log, store=None, xattr=False, handles=False)
    for _ in range(100):
        assert session.errno_for("read", CorruptBlob("a")) == errno.EIO
    session.errno_for("read", CorruptBlob("b"))
    monkeypatch.setattr("casfs.fuse.session.LOG_INTERVAL_S", 0)
    session.errno_for("read", CorruptBlob("a"))
    assert lines == ["a", "b", "a"]
