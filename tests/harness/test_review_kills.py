"""A short run of the harness of kills of reviewed agents; and that it can fail."""

from __future__ import annotations

import pytest

from tests.harness import review_kills


def test_nothing_is_lost_or_delivered_twice() -> None:
    kills, messages, faults = review_kills.run(5, 11)
    assert faults == []
    assert sum(kills.values()) >= 5
    assert messages >= 3


def test_the_harness_sees_what_is_delivered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(run: review_kills.Run, kills: int) -> None:
        played(run, 1)
        run.transcript.write_text(run.transcript.read_text() * 2)

    played = review_kills.Run.play
    monkeypatch.setattr(review_kills.Run, "play", again)
    assert any("delivered 2 times" in fault for fault in review_kills.run(1, 1)[2])
