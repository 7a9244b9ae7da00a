"""A short run of the harness of what is taken back; and that it can fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.trees.restore import unseen
from casfs.trees.snapshot.tracked import Unseen
from tests.harness import taken_back

EVERYTHING = {"restore", "apply", "rewind_last", "rewind_to", "undo", "redo", "killed", "moved"}
SEQUENCES = 100
TOGETHER = 20


@pytest.mark.timeout(400)  # a minute, on a machine with nothing else to do
@pytest.mark.parametrize("first", range(1, SEQUENCES, TOGETHER))
def test_what_is_taken_back_is_as_it_was(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + TOGETHER):
        counts += taken_back.play(seed)
    assert counts.keys() >= EVERYTHING


def test_the_harness_sees_what_is_deleted_though_no_checkpoint_looked_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(store: Store, root: TreeHash, directory: Path) -> Unseen:
        return Unseen(root, [])

    monkeypatch.setattr(unseen, "of_restore", nothing)

    def play() -> None:
        for seed in range(SEQUENCES):
            taken_back.play(seed)

    with pytest.raises(taken_back.Wrong, match="which its tree"):
        play()
