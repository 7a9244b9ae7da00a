"""A short run of the harness of repositories and remotes; and that it can fail."""

from __future__ import annotations

import pytest

from casfs.remotes import log
from tests.harness import from_repositories
from tests.harness.from_repositories import Wrong


def test_repositories() -> None:
    counts = from_repositories.play_repositories(15, seed=3)
    assert counts["recorded, taken back"] > 10


def test_rows_of_remotes() -> None:
    counts = from_repositories.play_rows(100, seed=4)
    assert {"pulled", "Corrupt"} <= counts.keys()


def test_the_harness_sees_a_row_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unchecked:
        def check(self, entry: object) -> None: ...

    monkeypatch.setattr(log, "ENTRY", Unchecked())
    with pytest.raises(Wrong, match="Error"):
        from_repositories.play_rows(100, seed=4)
