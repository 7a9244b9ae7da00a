"""Points in time as a person writes them, in the local time zone.

now, today, yesterday          a day by itself is meant to its end
N UNITS ago                    seconds, minutes, hours, days, weeks
2026-11-22, 2026-11-22 14:30, 2026-11-22T14:30:05Z       ISO 8601
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from casfs.errors import Invalid

AGO = re.compile(r"(\d{1,6}) (second|minute|hour|day|week)s? ago")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
DAYS_AGO = {"today": 0, "yesterday": 1}


def parse(text: str, current_time: datetime) -> datetime:
    """Returns the last instant that `text` covers; `current_time` gives the time zone. Raises
    Invalid."""
    words = " ".join(text.lower().split())
    try:
        if words == "now":
            return current_time
        if words in DAYS_AGO:
            return _end_of_day(current_time, DAYS_AGO[words])
        if ago := AGO.fullmatch(words):
            return current_time - timedelta(**{f"{ago[2]}s": int(ago[1])})
        moment = datetime.fromisoformat(text.strip())
        if DATE.fullmatch(words):
            return _end_of_day(moment, 0)
        return moment.astimezone()
    except (ValueError, OverflowError):
        raise Invalid(
            f"invalid time {text!r}: use 'yesterday', '2 hours ago' (seconds, minutes, hours, days,"
            " weeks), a date, or a date and time as in 2026-11-22 14:30"
        ) from None


def _end_of_day(moment: datetime, days_ago: int) -> datetime:
    """Midnight is found by the calendar: a day may have 23 or 25 hours."""
    after = datetime(moment.year, moment.month, moment.day) + timedelta(days=1 - days_ago)
    return after.astimezone() - timedelta(microseconds=1)
