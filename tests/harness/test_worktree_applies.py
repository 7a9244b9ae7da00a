"""A few sets of the harness, the same ones each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import worktree_applies


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_all_is_as_git_has_it(tmp_path: Path, seed: int) -> None:
    assert worktree_applies.run_set(tmp_path / "set", seed) >= 2
