"""Text to seconds."""

from __future__ import annotations

import re

from tally.units import SECONDS_IN

PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([dhms])\s*")


def parse_duration(text: str) -> float:
    """Return the seconds in a text like `1h 30m`; raise ValueError where it is not one."""
    total = 0.0
    position = 0
    while position < len(text) or position == 0:
        part = PART.match(text, position)
        if part is None:
            raise ValueError(f"not a duration: {text!r} at {text[position:]!r}")
        number, unit = part.groups()
        total += float(number) * SECONDS_IN[unit]
        position = part.end()
    return total
