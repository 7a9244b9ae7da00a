"""The units of time that tally knows, in seconds."""

from __future__ import annotations

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR

SECONDS_IN = {"d": DAY, "h": HOUR, "m": MINUTE, "s": 1}
