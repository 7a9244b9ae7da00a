"""The values in a private file: of `KEY=VALUE`, `key: value`, JSON, `.netrc` and `.pgpass`, and
lines of one word.

A transcript that shows one of them is redacted, although by its form it may be no secret. A value
whose name says that it is one counts from 4 characters on; any other from 6 on, unless it is an
ordinary word, the name of a host or a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MIN_SECRET_CHARS = 4
MIN_CHARS = 6
MIN_LINE_CHARS = 16  # of a value of several lines, as a key is: each counts
MAX_VALUES = 1000  # of one file
ASSIGNED = re.compile(
    r"""(?mx)
    (?: ^[ \t]*(?:export[ ]+)?(?P<name>[\w.-]+)[ \t]*[=:][ \t]* | "(?P<quoted>[^"\n]+)"\s*:\s*
      | \b(?P<netrc>password)[ \t]+ )
    (?: "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>[^']*)' | (?P<plain>[^\s"'][^\n]*) )
    """
)
BARE = re.compile(r"(?m)^[ \t]*(?P<line>[^\s=:#\"'{}\[\],-][^\s=:#\"'{}\[\]]{7,}={0,2})[ \t]*$")
PGPASS = re.compile(r"(?m)^[^#:\n]+(?::[^:\n]*){3}:(?P<password>.+)$")
SECRET_NAME = re.compile(r"(?i)pass|pwd|secret|token|key|cred|auth|salt|private|pin\b")
NO_SECRET = re.compile(r"(?i)true|false|yes|no|on|off|null|none|undefined")
COMMENT = re.compile(r"[ \t]+#.*|[,;][ \t]*$")  # behind a value without quotes
ORDINARY = re.compile(  # numbers, words, names of hosts and files, URLs without a password
    r"[\d.,:_-]+|[a-z]+|[A-Z]+|[A-Z][a-z]+|[\w.-]+\.[a-z]{2,6}|[./~][\w./~-]*"
    r"|[a-z][\w+.-]*://[^\s@]*"
)


class PrivateValue(NamedTuple):
    """`is_secret`: its name says so; else a word of the work may be equal to it by chance."""

    text: str
    is_secret: bool


def private_values(text: str) -> list[PrivateValue]:
    """Returns the values in a private file that may be secrets, each once."""
    values: dict[str, bool] = {}
    for name, whole in _assigned(text):
        is_secret = SECRET_NAME.search(name) is not None
        for value in (whole, *_lines(whole)):
            if _counts(value, is_secret):
                values[value] = values.get(value, False) or is_secret
        if len(values) >= MAX_VALUES:
            break
    return [PrivateValue(value, is_secret) for value, is_secret in values.items()][:MAX_VALUES]


def _counts(value: str, is_secret: bool) -> bool:
    if is_secret:
        return len(value) >= MIN_SECRET_CHARS and not NO_SECRET.fullmatch(value)
    return len(value) >= MIN_CHARS and not ORDINARY.fullmatch(value)


def _lines(value: str) -> list[str]:
    lines = value.replace("\\n", "\n").split("\n")
    return [line for line in lines if len(line) >= MIN_LINE_CHARS] if len(lines) > 1 else []


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    """Yields names and values."""
    for match in ASSIGNED.finditer(text):
        name = match["name"] or match["quoted"] or match["netrc"]
        plain = match["plain"]
        if plain is not None:
            yield name, COMMENT.sub("", plain).strip().strip("{}[]\"'")
        else:
            yield name, (match["double"] or match["single"] or "").strip()
    for match in BARE.finditer(text):  # as in `.vault-token`, and in keys
        yield "", match["line"]
    for match in PGPASS.finditer(text):
        yield "password", match["password"].replace("\\:", ":").strip()
