"""Seconds to text."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """Write a length of time as days, hours, minutes and whole seconds: 5400 is `1h 30m`."""
    if seconds < 0:
        raise ValueError(f"a duration is never negative: {seconds}")
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = {"d": days, "h": hours, "m": minutes, "s": round(rest)}
    return " ".join(f"{number:.0f}{unit}" for unit, number in parts.items() if number) or "0s"
