"""A short run of the harness of what programs outside say; and that it can fail."""

from __future__ import annotations

import json

import pytest

from casfs.attach import settings
from casfs.transcripts import json_lines
from tests.harness import from_outside
from tests.harness.from_outside import Wrong


def test_events_end_no_daemon() -> None:
    counts = from_outside.play_events(300, seed=21)
    assert counts["sessions"] > counts["events"] / from_outside.BATCH
    assert 0 < counts["set aside"] < counts["events"]


def test_transcripts() -> None:
    counts = from_outside.play_transcripts(150, seed=22)
    assert counts["imported"] > 100


def test_settings_files() -> None:
    counts = from_outside.play_settings(300, seed=23)
    assert {"attached", "Invalid", "Refused"} <= counts.keys()


def test_the_harness_sees_a_transcript_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(data: bytes) -> json_lines.Lines:
        raw = data.splitlines(keepends=True)
        return json_lines.Lines(raw, [json.loads(line) for line in raw])

    monkeypatch.setattr(json_lines, "parsed", parsed)
    with pytest.raises(Wrong, match="Error"):
        from_outside.play_transcripts(20, seed=22)


def test_the_harness_sees_hooks_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "without_hooks", lambda text, *_: text)
    with pytest.raises(Wrong, match="its hooks are there"):
        from_outside.play_settings(100, seed=23)
