"""A few sets of the harness, the same ones each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.trees.diff import three_way
from casfs.trees.diff.three_way import MergedText
from tests.harness import worktree_applies


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_all_is_as_git_has_it(tmp_path: Path, seed: int) -> None:
    assert worktree_applies.run_set(tmp_path / "set", seed) >= 2


def test_the_harness_sees_a_lost_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ours_alone(base: bytes, ours: bytes, theirs: bytes, labels: object) -> MergedText:
        return MergedText(ours, 0)

    monkeypatch.setattr(three_way, "merge", ours_alone)
    with pytest.raises(worktree_applies.Different):
        worktree_applies.run_set(tmp_path / "set", 1000)
