"""Regular expressions that find a text in the spellings that it has in files.

As it stands, and escaped for JSON any number of times; coloured, with `\\u` and `\\x` and percent
escapes; in UTF-16; in base64, at any of its three alignments. A text of several lines is all its
lines in order, each behind any prefix: indented, in a diff, quoted, with CRLF. Its blank lines may
be absent. Each line is a group of its own, as what is before it belongs to others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from casfs.scanner import spellings

UTF8 = "utf-8"
CODECS = (UTF8, "utf-16-le", "utf-16-be")
MAX_PREFIX_CHARS = 200  # of a line of a text of several
MAX_SUFFIX_CHARS = 8  # as of a line in quotes, with a comma
MAX_BLANK_CHARS = 32  # in a blank line of such a text, as signs and a number
MAX_COLOURS = 2  # between two characters
MAX_COLOUR_BYTES = 24
MAX_ESCAPE_BYTES = spellings.MAX_BACKSLASHES + 5  # of a byte of the text
BASE64_FRAGMENT_BYTES = 8
BACKSLASHES = spellings.BACKSLASHES.encode()
BASE64_BREAK = f"(?:{spellings.BREAK}[+-]?)?".encode("latin-1")
COLOUR = rb"(?:\x1b\[|%b)[0-?]{0,16}[@-~]" % spellings.ESCAPED_COLOUR.encode()
COLOURS = rb"(?:%s){0,%d}" % (COLOUR, MAX_COLOURS)
COLOURED = re.compile(COLOUR)
COLOUR_SIGNS = (b"\x1b[", b"\\033[", b"\\e[")
# Each begins with a literal byte: the search is ten times faster then.
BACKSLASHED = re.compile(rb"\\\\{0,6}(?:u00|x)([0-9A-Fa-f]{2})")
PLAIN = re.compile("[A-Za-z0-9]+")
MIN_FRAGMENT_CHARS = 3  # of a part that is searched for first
MAX_FRAGMENT_CHARS = 32
LINE_BREAK = re.compile(r"\r?\n|\r")
Pattern = re.Pattern[bytes]


@dataclass(frozen=True, slots=True)
class Spelling:
    """`fragments`: one of them is in whatever has a match; empty where that is not known. It is
    found many times faster than the pattern. `is_escaped`: in it as it reads without escapes."""

    pattern: Pattern
    fragments: tuple[bytes, ...]
    is_escaped: bool = False

    def search(self, data: bytes) -> bool:
        return self._may_be_in(data) and self.pattern.search(data) is not None

    def matches(self, data: bytes) -> Iterator[re.Match[bytes]]:
        return self.pattern.finditer(data) if self._may_be_in(data) else iter(())

    def _may_be_in(self, data: bytes) -> bool:
        if self.is_escaped:
            plain = _without_escapes(data)
            if plain is data:
                return False
            data = plain
        return not self.fragments or any(fragment in data for fragment in self.fragments)


def spellings_of(text: str) -> list[Spelling]:
    plain = _fragment(text)
    forms = []
    for codec in CODECS:
        try:
            pattern = _lines(text, codec, is_escaped=False)
        except UnicodeEncodeError:  # bytes that are not UTF-8
            continue
        forms.append(Spelling(pattern, (plain.encode(codec),) if plain else ()))
    fragments = (plain.encode(),) if plain else ()
    forms.append(Spelling(_lines(text, UTF8, is_escaped=True), fragments, is_escaped=True))
    return forms + _in_base64(text)


def _fragment(text: str) -> str:
    """Returns characters of the text that nothing but an escape spells in another way."""
    longest = max(PLAIN.findall(text), key=len, default="")
    return longest[:MAX_FRAGMENT_CHARS] if len(longest) >= MIN_FRAGMENT_CHARS else ""


def _without_escapes(data: bytes) -> bytes:
    """Returns `data` itself where it has none."""
    plain = data
    for pattern in (BACKSLASHED, spellings.PERCENT):
        plain = pattern.sub(lambda match: bytes.fromhex(match[1].decode()), plain)
    if any(sign in plain for sign in COLOUR_SIGNS):
        plain = COLOURED.sub(b"", plain)
    return data if plain == data else plain


def split_lines(text: str) -> list[str]:
    return LINE_BREAK.split(text)


def base64_forms(text: str) -> Iterator[bytes]:
    """Yields what base64 makes of the text whatever is before and behind it."""
    lines = split_lines(text)
    for line_break in ("\n", "\r\n", "\n+", "\n-", "\n "):
        for joined in {line_break.join(lines), json.dumps(line_break.join(lines))[1:-1]}:
            yield from spellings.base64_forms(_bytes(joined))


def longest(text: str) -> int:
    """Returns how many bytes a match may have."""
    size = len(_bytes(text)) * (MAX_ESCAPE_BYTES + MAX_COLOURS * MAX_COLOUR_BYTES)
    return size + len(split_lines(text)) * (MAX_PREFIX_CHARS + MAX_SUFFIX_CHARS) * 4


def _lines(text: str, codec: str, *, is_escaped: bool) -> Pattern:
    between = COLOURS if is_escaped else b""
    pattern = b""
    blank = 0
    for line in split_lines(text):
        if not line.strip():
            blank += 1
            continue
        if pattern:
            pattern += _line_break(codec, blank, is_escaped=is_escaped)
        chars = (_char(char, codec, is_escaped=is_escaped) for char in line)
        pattern += b"(%s)" % between.join(chars)
        blank = 0
    return re.compile(pattern or b"(%s)" % re.escape(text.encode(codec)), re.DOTALL)


def _char(char: str, codec: str, *, is_escaped: bool) -> bytes:
    """Returns the pattern of a character. Its alternatives begin with a literal byte, so that the
    search skips what cannot be the beginning."""
    data = char.encode(codec, "surrogateescape" if codec == UTF8 else "strict")
    if codec != UTF8:
        return re.escape(data)
    literal = rb"\\{1,%d}" % (spellings.MAX_BACKSLASHES + 1) if char == "\\" else re.escape(data)
    forms = [literal]
    if char.isascii() and not char.isalnum() and char not in "\\ \t":
        forms.append(BACKSLASHES + literal)
    if char == "\t":
        forms.append(BACKSLASHES + b"t")
    if is_escaped or not char.isascii() or not char.isprintable():
        forms += [_unicode_escape(char), _of_bytes(BACKSLASHES + b"x", data)]
    if is_escaped:
        forms.append(_of_bytes(b"%(?:25)?", data))
    return forms[0] if len(forms) == 1 else b"(?:%s)" % b"|".join(forms)


def _unicode_escape(char: str) -> bytes:
    units = char.encode("utf-16-be", "surrogatepass")
    codes = (units[offset : offset + 2] for offset in range(0, len(units), 2))
    return b"".join(BACKSLASHES + b"u" + _hex(code) for code in codes)


def _of_bytes(mark: bytes, data: bytes) -> bytes:
    return b"".join(mark + _hex(bytes([byte])) for byte in data)


def _hex(data: bytes) -> bytes:
    """Returns the pattern of the digits, in either case."""
    digits = data.hex()
    return "".join(
        f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits
    ).encode()


def _line_break(codec: str, blank: int, *, is_escaped: bool) -> bytes:
    """Returns the pattern of what is between two lines, of which `blank` ones are left out."""
    if codec != UTF8:
        newline = re.escape("\n".encode(codec))
        any_char = b"(?:(?!%s)..)" % newline
        suffix = b"%s{0,%d}?" % (any_char, MAX_SUFFIX_CHARS)
        prefix = b"%s{0,%d}?" % (any_char, MAX_PREFIX_CHARS)
        return suffix + newline + b"(?:%s%s){0,%d}" % (suffix, newline, blank) + prefix
    breaks = [rb"\n"], [BACKSLASHES + b"n"]
    if is_escaped:
        breaks[1].extend([BACKSLASHES + b"(?:u00|x)0[aA]", b"%(?:25)?0[aA]"])
    return b"(?:%s)" % b"|".join(
        _between(b"(?:%s)" % b"|".join(alternatives), blank) for alternatives in breaks
    )


def _between(newline: bytes, blank: int) -> bytes:
    char = rb"(?:(?!%s)[^\n])" % newline
    suffix = rb"(?:(?!%s)(?:[^\nA-Za-z0-9]|\\[rn]|%%0[dD]|\\u000[dD]|%s)){0,%d}?" % (
        newline, COLOUR, MAX_SUFFIX_CHARS
    )  # fmt: skip
    prefix = b"%s{0,%d}?" % (char, MAX_PREFIX_CHARS)
    short = b"%s{0,%d}?" % (char, MAX_BLANK_CHARS)
    return suffix + newline + b"(?:%s%s){0,%d}" % (short, newline, blank) + prefix


def _in_base64(text: str) -> list[Spelling]:
    forms = sorted({*base64_forms(text)})
    if not forms:
        return []
    pieces = [_pieces(form) for form in forms]
    fragments = {piece for pair in pieces for piece in pair} if all(pieces) else ()
    patterns = (BASE64_BREAK.join(map(_base64_char, form.decode())) for form in forms)
    pattern = re.compile(b"|".join(b"(%s)" % alternative for alternative in patterns))
    return [Spelling(pattern, tuple(sorted(fragments)))]


def _pieces(form: bytes) -> tuple[bytes, ...]:
    """Returns two pieces of the form, of which only one may have the end of a line within, and that
    have one spelling; empty where the form has no such pieces."""
    size = min(len(form) // 2, BASE64_FRAGMENT_BYTES)
    match = re.search(b"[A-Za-z0-9]{%d}" % (2 * size), form)
    return (match[0][:size], match[0][size:]) if match else ()


def _base64_char(char: str) -> bytes:
    if char == "+":
        return rb"(?:[+-]|%2[bB])"
    if char == "/":
        return rb"(?:[/_]|\\{1,7}/|%2[fF])"
    return char.encode()


def _bytes(text: str) -> bytes:
    return text.encode(UTF8, "surrogateescape")
