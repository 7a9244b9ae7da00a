"""A short run of the harness of kills of attached agents; and that it can fail."""

from __future__ import annotations

import pytest

from casfs.attach import spool
from tests.harness import session_kills


def test_nothing_is_lost_or_doubled() -> None:
    kills, events, faults = session_kills.run(6, 11)
    assert faults == []
    assert sum(kills.values()) >= 6
    assert events > 10


def test_the_harness_sees_a_lost_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(run: session_kills.Run, kills: int) -> None:
        agent = run.start_agent()
        session_kills.until(lambda: len(spool.names(run.root)) > 4, "events")
        agent.kill()
        agent.wait()
        (run.root / "spool" / spool.names(run.root)[3]).unlink()
        daemon = run.start_daemon()
        session_kills.until(lambda: spool.names(run.root) == [], "an empty spool")
        session_kills.kill(daemon)

    monkeypatch.setattr(session_kills.Run, "play", lose)
    assert any("lost" in fault for fault in session_kills.run(1, 1)[2])
