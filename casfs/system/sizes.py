"""Numbers of bytes for a person to read."""

from __future__ import annotations

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def readable(size: int) -> str:
    """Returns a number of bytes in the largest unit of 1024 that fits: 870, 1.2K, 34M."""
    for unit, bytes in reversed(UNITS.items()):
        if size >= bytes > 1:
            number = size / bytes
            return f"{number:.1f}{unit}" if number < 10 else f"{number:.0f}{unit}"
    return str(size)
