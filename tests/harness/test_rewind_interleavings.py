"""A short run of the harness of rewinds; and that it can fail."""

from __future__ import annotations

import pytest

from casfs.rewind import undo_calls
from tests.harness import rewind_interleavings


def test_what_a_person_did_stays() -> None:
    results = [rewind_interleavings.interleaving(seed) for seed in range(900, 908)]
    assert {"named", "whole"} == set(results)


def test_the_harness_sees_a_line_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the reasons why a change is not the agent's, those of a person would be undone."""
    monkeypatch.setattr(undo_calls, "foreign_reason", lambda call, path: None)
    with pytest.raises(AssertionError, match="lost"):
        play_all()


def play_all() -> None:
    for seed in range(900, 940):
        rewind_interleavings.interleaving(seed)
