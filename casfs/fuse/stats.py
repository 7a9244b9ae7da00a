"""What a mount has done so far: `.casfs/stats.json`.

Requests are counted by kind as they reach us; what the kernel answers from its caches is
not among them, and that is what the numbers are for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from .nodes import pretty


class Stats:
    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.bytes_served = 0
        self.cache: Callable[[], Mapping[str, int]] = dict

    def report(self) -> bytes:
        return pretty(
            {
                "requests": dict(sorted(self.requests.items())),
                "cache": dict(self.cache()),
                "bytes_served": self.bytes_served,
            }
        )
