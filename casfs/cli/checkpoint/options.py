"""The options of `checkpoint create`."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_MAX_BYTES = 20 << 30


class RecordOptions(NamedTuple):
    defaults: bool
    patterns: tuple[str, ...]
    dry_run: bool
    preserve: str
    max_size: int
    skip_if_unchanged: bool
    with_derived: bool
    allow_secret: bool
    allowed: tuple[str, ...]
    force: bool

    def is_plain(self) -> bool:
        """Returns whether a daemon records what it watches in the same way."""
        is_more = self.patterns or self.preserve or self.with_derived or self.allow_secret
        is_other = self.dry_run or self.allowed or self.max_size != DEFAULT_MAX_BYTES
        return self.defaults and not is_more and not is_other
