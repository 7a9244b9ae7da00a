"""Read, add up and write lengths of time."""

from __future__ import annotations

from tally.formatting import format_duration
from tally.parsing import parse_duration

__all__ = ["format_duration", "parse_duration"]
