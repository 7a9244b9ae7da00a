"""The wall clock, in the unit of every timestamp that casfs writes, and its text."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = 253_402_300_799_999  # of the year 9999
AGES = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def now_ms() -> int:
    """Returns milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def rfc3339(ms: int) -> str:
    """Returns a time in ms since 1970 UTC as RFC 3339 with milliseconds, in UTC."""
    time = EPOCH + timedelta(milliseconds=min(max(ms, 0), LAST_MS))
    return time.isoformat(timespec="milliseconds")[:-6] + "Z"


def local_time(text: str) -> str:
    """Returns a time of `rfc3339` to the second in the local zone, with its offset: what people are
    shown. Programs get UTC."""
    try:
        local = datetime.fromisoformat(text).astimezone()
    except OverflowError:  # the end of the year 9999, in a zone that has the next year
        return text
    return local.isoformat(timespec="seconds").replace("+00:00", "Z")


def local_moment(ms: int) -> str:
    """Returns a time in ms since 1970 UTC as `local_time`."""
    return local_time(rfc3339(ms))


def moment(ms: int | None) -> str | None:
    """Returns a time in ms since 1970 UTC; None for one that is unknown."""
    return rfc3339(ms) if ms else None


def times(value: Any) -> Any:
    """Returns a thread's fields, a payload's among them, with their times as text. What an agent
    said (`meta`) is its own."""
    if isinstance(value, list):
        return [times(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: field if name == "meta" else _timed(name, field) for name, field in value.items()}


def _timed(name: str, value: Any) -> Any:
    is_time = isinstance(value, int) and (name.endswith("At") or name == "since")
    return moment(value) if is_time else times(value)


def age(ms: int) -> str:
    """Returns how long ago a time was, in its largest unit."""
    past = max(now_ms() - ms, 0)
    return next((f"{past // unit}{name}" for unit, name in AGES if past >= unit), "now")


def moment_id(ms: int, hash: str) -> str:
    """Returns an id that sorts by time: `ms` since 1970 UTC, and the beginning of a hash."""
    moment = EPOCH + timedelta(milliseconds=ms)
    return f"{moment:%Y%m%dT%H%M%S}.{ms % 1000:03d}Z-{hash[:8]}"


def moment_of_id(id: str) -> int:
    """Returns the time of an id, in ms since 1970 UTC; 0 where it is not one."""
    try:
        moment = datetime.strptime(id.partition("Z")[0], "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC)
    except ValueError:
        return 0
    return (moment - EPOCH) // timedelta(milliseconds=1)
