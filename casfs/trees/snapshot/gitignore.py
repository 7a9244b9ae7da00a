"""Matches paths against patterns in gitignore's syntax, as git does, byte for byte.

A pattern decides only about the path that it matches: paths below an ignored directory are
never asked about, and those below any other are asked about one by one. (A matcher that also
answers for everything below a match cannot tell these apart, and `foo/**` with `!foo/keep`
would lose `foo`.) The last pattern that matches decides.

Compared with git itself in `tests/trees/snapshot/test_gitignore.py`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from casfs.system.paths import printable

GLOB_CHARACTERS = re.compile(rb"[*?\[\\]")
BOM = b"\xef\xbb\xbf"
CHARACTER_CLASSES = {
    b"alnum": rb"0-9A-Za-z", b"alpha": rb"A-Za-z", b"blank": rb" \t", b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9", b"graph": rb"\x21-\x7e", b"lower": rb"a-z", b"print": rb"\x20-\x7e",
    b"punct": rb"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e", b"space": rb"\x20\t\n\r\x0b\x0c",
    b"upper": rb"A-Z", b"xdigit": rb"0-9A-Fa-f",
}  # fmt: skip
MATCHES_NOTHING = rb"(?!)"


class Pattern(NamedTuple):
    """`negated`: it began with `!`; `anchored`: it matches the path, else the last name."""

    regex: re.Pattern[bytes]
    negated: bool
    anchored: bool
    directory: bool

    def matches(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        if self.directory and not directory:
            return False
        return self.regex.fullmatch(path if self.anchored else name) is not None


class Patterns:
    def __init__(self, text: bytes, *, strict: bool = True) -> None:
        """Raises ValueError for an invalid pattern; without `strict` it matches nothing, as in
        git."""
        lines = text.removeprefix(BOM).split(b"\n")
        patterns = [_pattern(line, strict) for line in lines]
        self._latest_first = [pattern for pattern in reversed(patterns) if pattern is not None]

    def decision(self, path: bytes, name: bytes, *, directory: bool) -> bool | None:
        """Returns whether the last pattern that matches ignores the path; None where none does.
        `name` is the last component of `path`."""
        for pattern in self._latest_first:
            if pattern.matches(path, name, directory=directory):
                return not pattern.negated
        return None


def _pattern(line: bytes, strict: bool) -> Pattern | None:
    text = _strip_spaces(line.removesuffix(b"\r"))
    if not text or text.startswith(b"#"):
        return None
    negated = text.startswith(b"!")
    body = text[negated:]
    directory = body.endswith(b"/")
    glob = body[: len(body) - directory]
    if not glob.strip(b"/") or _escapes_end(body):
        if not strict:
            return None
        raise ValueError(f"{printable(text)!r} is not a valid pattern")
    anchored = b"/" in glob
    glob = glob.removeprefix(b"/")
    return Pattern(
        re.compile(_translate(glob, anchored), re.DOTALL),
        negated,
        anchored=anchored,
        directory=directory,
    )


def _strip_spaces(line: bytes) -> bytes:
    """Strips trailing spaces, but for one that is escaped."""
    text = line.rstrip(b" ")
    return text + b" " if text != line and _escapes_end(text) else text


def _escapes_end(text: bytes) -> bool:
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1


def _translate(glob: bytes, anchored: bool) -> bytes:
    """Returns the regular expression of a glob. `*` and `?` do not match a slash."""
    special = GLOB_CHARACTERS.search(glob)
    first = special.start() if special else len(glob)  # git compares the text before it literally
    pieces = []
    index = 0
    while index < len(glob):
        byte = glob[index : index + 1]
        if byte == b"*":
            piece, index = _stars(glob, index, anchored=anchored, first=first)
        elif byte == b"?":
            piece = b"[^/]"
            index = index + 1
        elif byte == b"[":
            piece, index = _bracket(glob, index)
        else:
            index += byte == b"\\"
            piece = re.escape(glob[index : index + 1])
            index = index + 1
        pieces.append(piece)
    return b"".join(pieces)


def _stars(glob: bytes, index: int, anchored: bool, first: int) -> tuple[bytes, int]:
    """Two or more between slashes match any number of directories."""
    end = index
    while glob[end : end + 1] == b"*":
        end += 1
    begins = index == first or glob[index - 1 : index] == b"/"
    if not anchored or end - index < 2 or not begins or glob[end : end + 1] not in (b"", b"/"):
        return b"[^/]*", end
    if end == len(glob):
        return b".*", end
    return b"(?:.*/)?", end + 1


def _bracket(glob: bytes, index: int) -> tuple[bytes, int]:
    """A set of bytes, never with a slash in it; one that is not closed matches nothing."""
    negated = glob[index + 1 : index + 2] in (b"!", b"^")
    start = index = index + 1 + negated
    items: list[bytes] = []
    while index < len(glob) and (glob[index : index + 1] != b"]" or index == start):
        close = glob.find(b":]", index + 2)
        if glob[index : index + 2] == b"[:" and close > 0 and glob[index + 2 : close].isalpha():
            known = CHARACTER_CLASSES.get(glob[index + 2 : close])
            if known is None:
                return MATCHES_NOTHING, len(glob)
            items.append(known)
            index = close + 2
            continue
        low, index = _member(glob, index)
        if glob[index : index + 1] == b"-" and glob[index + 1 : index + 2] not in (b"", b"]"):
            high, index = _member(glob, index + 1)
            items += [b"%s-%s" % (_hex(low), _hex(high))] if low <= high else []
        else:
            items.append(_hex(low))
    if index >= len(glob):
        return MATCHES_NOTHING, len(glob)
    inside = b"".join(items)
    if negated:
        return b"[^/%s]" % inside, index + 1
    return b"(?!/)[%s]" % inside if inside else MATCHES_NOTHING, index + 1


def _member(glob: bytes, index: int) -> tuple[bytes, int]:
    index += glob[index : index + 1] == b"\\"
    return glob[index : index + 1], index + 1


def _hex(byte: bytes) -> bytes:
    return b"\\x%02x" % byte[0] if byte else b""
