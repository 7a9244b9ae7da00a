"""Points in time, in the zone of Berlin: summer time began on 2026-03-29 at 2:00."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from casfs.errors import Invalid
from casfs.system import moments


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str, now: str = "2026-03-29T14:30:00+02:00") -> str:
    found = moments.parse(text, datetime.fromisoformat(now).astimezone())
    return found.isoformat(timespec="milliseconds")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("now", "2026-03-29T14:30:00.000+02:00"),
        ("today", "2026-03-29T23:59:59.999+02:00"),
        ("Yesterday", "2026-03-28T23:59:59.999+01:00"),
        ("2 hours ago", "2026-03-29T12:30:00.000+02:00"),
        ("1  hour ago", "2026-03-29T13:30:00.000+02:00"),
        ("90 seconds ago", "2026-03-29T14:28:30.000+02:00"),
        ("3 weeks ago", "2026-03-08T14:30:00.000+02:00"),
        ("2026-03-28", "2026-03-28T23:59:59.999+01:00"),
        ("2026-03-29", "2026-03-29T23:59:59.999+02:00"),
        ("2026-03-28 10:00", "2026-03-28T10:00:00.000+01:00"),
        ("2026-03-29T10:00:05Z", "2026-03-29T12:00:05.000+02:00"),
    ],
)
def test_what_is_understood(text: str, found: str) -> None:
    assert at(text) == found


def test_a_day_ago_is_24_hours() -> None:
    now = datetime.fromisoformat("2026-03-29T14:30:00+02:00").astimezone()
    assert now - moments.parse("1 day ago", now) == timedelta(hours=24)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "1 month ago", "2026-13-01", "-1 days ago", "999999 weeks ago"],
)
def test_what_is_not(text: str) -> None:
    with pytest.raises(Invalid, match="use 'yesterday', '2 hours ago'"):
        at(text)
