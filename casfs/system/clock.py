"""The wall clock, in the unit of every timestamp that casfs writes."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Returns milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000
