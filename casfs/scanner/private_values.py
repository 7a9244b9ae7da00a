"""The secret values in a private file: of `KEY=VALUE`, `key: value`, JSON, and `.netrc`.

A transcript that shows one of them is redacted, although by its form it may be no secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MIN_CHARS = 8  # shorter values occur in ordinary text
MAX_VALUES = 1000  # of one file
ASSIGNED = re.compile(
    r"""(?mx)
    (?: ^\s*(?:export\s+)?[\w.-]+\s*[=:]\s* | "[^"\n]+"\s*:\s* | \bpassword\s+ )
    (?: "(?P<double>[^"\n]*)" | '(?P<single>[^'\n]*)' | (?P<plain>[^\s"',;{}\[\]]+) )
    """
)
ORDINARY = re.compile(  # numbers, words, names of hosts and files, URLs without a password
    r"[\d.,:_-]+|[a-z]+|[A-Z]+|[A-Z][a-z]+|true|false|[\w.-]+\.[a-z]{2,6}|[./~][\w./~-]*"
    r"|[a-z][\w+.-]*://[^\s@]*"
)


def private_values(text: str) -> list[str]:
    """Returns the values in a private file that may be secrets: not ordinary words."""
    values: dict[str, None] = {}
    for value in _assigned(text):
        if len(value) >= MIN_CHARS and not ORDINARY.fullmatch(value):
            values[value] = None
        if len(values) == MAX_VALUES:
            break
    return list(values)


def _assigned(text: str) -> Iterator[str]:
    for match in ASSIGNED.finditer(text):
        yield (match["double"] or match["single"] or match["plain"] or "").strip()
