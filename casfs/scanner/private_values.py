"""The values in a private file: of `KEY=VALUE`, several on a line too, `key: value`, lists in JSON,
`.netrc` and `.pgpass`, passwords in URLs, and lines of one word.

A transcript that shows one of them is redacted, although by its form it may be no secret. A value
whose name says that it is one counts from 4 characters on; any other from 6 on, unless it is an
ordinary word, the name of a host or a path.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from casfs.system import foreign_json

MIN_SECRET_CHARS = 4
MIN_CHARS = 6
MIN_LINE_CHARS = 16  # of a value of several lines, as a key is: each counts
MAX_VALUES = 1000  # of one file
BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
ASSIGNED = re.compile(
    r"""(?mx)
    (?: ^[ \t]*(?:-[ ]+)?(?:export[ ]+)?(?P<name>[\w.-]+)[ \t]*[=:][ \t]*
      | "(?P<quoted>[^"\n]+)"\s*:\s* | \b(?P<netrc>password)[ \t]+ )
    (?: "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>[^']*)' | (?P<plain>[^\s"'][^\n]*) )
    """
)
PAIR = re.compile(r"""[ \t]([A-Za-z_][\w.-]*)=("[^"]*"|'[^']*'|\S+)""")  # behind another one
QUOTED_PAIR = re.compile(r"""(?:^|[\s"'])([A-Za-z_][\w.-]*)=([^\s"']+)""")  # as in a command
URL_PASSWORD = re.compile(r"://[^\s/@:]*:([^\s/@]+)@")
BARE = re.compile(r"(?m)^[ \t]*(?P<line>[^\s=:#\"'{}\[\],-][^\s=:#\"'{}\[\]]{7,}={0,2})[ \t]*$")
PGPASS = re.compile(r"(?m)^[^#:\n]+(?::[^:\n]*){3}:(?P<password>.+)$")
SECRET_NAME = re.compile(r"(?i)pass|pwd|secret|token|key|cred|auth|salt|private|pin\b")
NO_SECRET = re.compile(r"(?i)true|false|yes|no|on|off|null|none|undefined")
COMMENT = re.compile(r"[ \t]+#.*|[,;][ \t]*$")  # behind a value without quotes
ORDINARY = re.compile(  # numbers, words, names of hosts and files, URLs without a password
    r"[\d.,:_-]+|[a-z]+|[A-Z]+|[A-Z][a-z]+|[\w.-]+\.[a-z]{2,6}|[./~][\w./~-]*"
    r"|[a-z][\w+.-]*://[^\s@]*"
)


def decoded(data: bytes) -> str:
    """Returns the text of a file, in UTF-16 where its first bytes say so."""
    for bom, codec in BOMS.items():
        if data.startswith(bom):
            return data.decode(codec, "replace")
    return data.decode("utf-8", "replace")


class PrivateValue(NamedTuple):
    """`is_secret`: its name says so; else a word of the work may be equal to it by chance."""

    text: str
    is_secret: bool


def private_values(text: str) -> list[PrivateValue]:
    """Returns the values in a private file that may be secrets, each once."""
    values: dict[str, bool] = {}
    named = [*_in_json(text)] or _assigned(text)
    for name, whole in _with_parts(named):
        is_secret = SECRET_NAME.search(name) is not None
        for value in (whole, *_lines(whole)):
            if _counts(value, is_secret):
                values[value] = values.get(value, False) or is_secret
        if len(values) >= MAX_VALUES:
            break
    return [PrivateValue(value, is_secret) for value, is_secret in values.items()][:MAX_VALUES]


def values_in_command(text: str) -> list[str]:
    """Returns the values in a text that writes a private file, whose names say that they are
    secrets, each once."""
    named = ((match[1], match[2]) for match in QUOTED_PAIR.finditer(text))
    quoted = [value for name, value in named if SECRET_NAME.search(name) and _counts(value, True)]
    stated = [value.text for value in private_values(text) if value.is_secret]
    return list(dict.fromkeys([*stated, *quoted]))


def _counts(value: str, is_secret: bool) -> bool:
    if is_secret:
        return len(value) >= MIN_SECRET_CHARS and not NO_SECRET.fullmatch(value)
    return len(value) >= MIN_CHARS and not ORDINARY.fullmatch(value)


def _lines(value: str) -> list[str]:
    lines = value.replace("\\n", "\n").split("\n")
    return [line for line in lines if len(line) >= MIN_LINE_CHARS] if len(lines) > 1 else []


def _in_json(text: str) -> Iterator[tuple[str, str]]:
    try:
        value = foreign_json.parse(text) if text.lstrip()[:1] in ("{", "[") else None
    except ValueError:
        return
    yield from named_strings(value)


def named_strings(value: Any) -> Iterator[tuple[str, str]]:
    """Yields the strings in a JSON value, with the name of the member that each is in, also those
    of lists."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        name, value = stack.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, list):
            stack += ((name, item) for item in value)
        elif isinstance(value, dict):
            stack += value.items()


def _with_parts(named: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yields names and values, and the passwords of URLs in these."""
    for name, value in named:
        yield name, value
        for match in URL_PASSWORD.finditer(value):
            yield "password", match[1]
            yield "password", unquote(match[1])


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    """Yields names and values."""
    for match in ASSIGNED.finditer(text):
        name = match["name"] or match["quoted"] or match["netrc"]
        plain = match["plain"]
        if plain is not None:
            yield name, COMMENT.sub("", plain).strip().strip("{}[]\"'")
            pairs = [*PAIR.finditer(plain)]
            if pairs:
                yield name, plain[: pairs[0].start()].strip().strip("\"'")
            yield from ((pair[1], pair[2].strip("\"'")) for pair in pairs)
        else:
            yield name, (match["double"] or match["single"] or "").strip()
    for match in BARE.finditer(text):  # as in `.vault-token`, and in keys
        yield "", match["line"]
    for match in PGPASS.finditer(text):
        yield "password", match["password"].replace("\\:", ":").strip()
