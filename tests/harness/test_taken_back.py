"""A short run of the harness of what is taken back; and that it can fail."""

from __future__ import annotations

from collections import Counter

import pytest

from casfs.digest import TreeHash
from casfs.trees.restore.restore import _Restore
from tests.harness import taken_back

EVERYTHING = {"restore", "apply", "rewind_last", "rewind_to", "undo", "redo", "killed", "moved"}
SEQUENCES = 100
TOGETHER = 20


@pytest.mark.parametrize("first", range(1, SEQUENCES, TOGETHER))
def test_what_is_taken_back_is_as_it_was(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + TOGETHER):
        counts += taken_back.play(seed)
    assert counts.keys() >= EVERYTHING


def test_the_harness_sees_what_is_deleted_though_no_checkpoint_looked_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def as_it_is(task: _Restore, root: TreeHash) -> TreeHash:
        return root

    monkeypatch.setattr(_Restore, "_without_unseen", as_it_is)
    with pytest.raises(taken_back.Wrong, match="node_modules"):
        taken_back.play(108)
