"""The spellings of a text: what a program wrapped it in, taken off.

`grep --color` puts escapes into a word, JSON and source code backslashes, a URL percent signs, a
manifest base64; a Windows program writes UTF-16. A secret is one in each of them. `readings` gives
a text as it reads without each, with the places in the text as it stands, so that what is found in
a reading can be named by its line, and replaced.
"""

from __future__ import annotations

import binascii
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

Span = tuple[int, int]
Decode = Callable[["re.Match[bytes]"], bytes]

COLOUR = re.compile(  # of ECMA-48: control sequences, and strings such as the title of a window
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[()][0-9A-Za-z])"
)
BACKSLASH = re.compile(rb"\\(?:u00([0-7][0-9a-fA-F])|x([0-7][0-9a-fA-F])|(.))", re.DOTALL)
PERCENT = re.compile(rb"%([0-9a-fA-F]{2})")
# Four characters of base64 for three bytes of ASCII text: the high bits are zero. Of four random
# ones few are such, so names and paths are none, and a beginning in the wrong place is none.
GROUP = "[CDI-Za-f][AC-HQS-Xgi-nwyz0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/_-]"
BASE64 = re.compile(rf"(?:{GROUP}(?:\\?[\r\n]+[ \t]*)?){{6,}}[A-Za-z0-9+/_-]{{0,3}}".encode())
NAMED = r"(?i:passw|passphrase|pwd|secret|token|cred|auth|key|://)[^\n]{0,80}"
# What the library looks for, once in a text, by the name of a spelling. An escape within a secret
# comes behind the name of one, or many stand together; code has others in each file.
SIGNS = {
    "colour": r"\x1b[\[\]()]",
    "backslash": rf"{NAMED}\\[\"'/]|(?:\\u00[0-7].){{4}}|(?:\\x[0-7].){{4}}",
    "percent": rf"(?:{NAMED}|\d{{8}})%[0-9a-fA-F]{{2}}|(?:%[0-9a-fA-F]{{2}}){{4}}",
    "base64": f"(?:{GROUP}){{6}}",
    "UTF-16": r"(?:[\t\n\r -~]\x00){12}",
}
TELLING = {name: re.compile(SIGNS[name].encode()) for name in ("backslash", "percent")}
NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]+")
URL_SAFE = bytes.maketrans(b"-_", b"+/")
CONTROLS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"0": b"\0"}
UTF16_PROBE_BYTES = 256
UTF16 = re.compile(rb"(?:[\t\n\r -~]\0){12,}|(?:\0[\t\n\r -~]){12,}")  # of ASCII, as keys are
BOMS = (b"\xff\xfe", b"\xfe\xff")


class Reading(NamedTuple):
    """`data`: a text without one of its spellings. Piece by piece, in order: `starts`: where in
    `data` it begins; `sources`: where in the text as it stands that is, as (start, end, how many
    bytes stand for one; 0 where only the whole piece stands for the whole)."""

    data: bytes
    starts: list[int]
    sources: list[tuple[int, int, int]]

    def span(self, start: int, end: int) -> Span:
        """Returns where in the text as it stands a span of `data` is."""
        return self._place(start, at_end=False), self._place(end - 1, at_end=True)

    def _place(self, offset: int, *, at_end: bool) -> int:
        piece = bisect_right(self.starts, offset) - 1
        start, end, width = self.sources[piece]
        if width:
            return start + (offset - self.starts[piece] + at_end) * width
        return end if at_end else start


class _Writer:
    """Puts a reading together."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._starts: list[int] = []
        self._sources: list[tuple[int, int, int]] = []
        self._size = 0

    def add(self, piece: bytes, start: int, end: int, *, width: int) -> None:
        if piece:
            self._pieces.append(piece)
            self._starts.append(self._size)
            self._sources.append((start, end, width))
            self._size += len(piece)

    def reading(self) -> Reading:
        return Reading(b"".join(self._pieces), self._starts, self._sources)


def readings(data: bytes, signs: Collection[str]) -> Iterator[Reading]:
    """Yields the text without each of the spellings that it has signs of."""
    if "colour" in signs:
        yield _replaced(data, COLOUR, decode=lambda match: b"", places=[(0, len(data))])
    if "backslash" in signs and (lines := _lines(data, b"\\", TELLING["backslash"])):
        yield _replaced(data, BACKSLASH, decode=_without_backslash, places=lines)
    if "percent" in signs and (lines := _lines(data, b"%", TELLING["percent"])):
        yield _replaced(data, PERCENT, decode=_without_percent, places=lines)
    for match in BASE64.finditer(data) if "base64" in signs else ():
        writer = _Writer()
        text = NOT_BASE64.sub(b"", match[0].translate(URL_SAFE))
        writer.add(_decoded(text), *match.span(), width=0)
        yield writer.reading()
    for match in UTF16.finditer(data) if "UTF-16" in signs else ():
        writer = _Writer()
        writer.add(match[0].replace(b"\0", b""), *match.span(), width=2)
        yield writer.reading()


def is_utf16(data: bytes) -> bool:
    """Returns whether data begins as a text in UTF-16 does."""
    return data[:2] in BOMS or UTF16.search(data, 0, UTF16_PROBE_BYTES) is not None


def _replaced(
    data: bytes, pattern: re.Pattern[bytes], decode: Decode, places: list[Span]
) -> Reading:
    """Returns what of `data` is in `places`, decoded; each place ends a line."""
    writer = _Writer()
    for start, end in places:
        offset = start
        for match in pattern.finditer(data, start, end):
            writer.add(data[offset : match.start()], offset, match.start(), width=1)
            writer.add(decode(match), *match.span(), width=0)
            offset = match.end()
        writer.add(data[offset:end], offset, end, width=1)
        writer.add(b"\n", end, min(end + 1, len(data)), width=0)
    return writer.reading()


def _lines(data: bytes, mark: bytes, telling: re.Pattern[bytes]) -> list[Span]:
    """Returns the lines that have `mark`, where a secret may be."""
    spans = []
    offset = data.find(mark)
    while offset >= 0:
        start = data.rfind(b"\n", 0, offset) + 1
        end = data.find(b"\n", offset)
        end = len(data) if end < 0 else end
        if telling.search(data, start, end):
            spans.append((start, end))
        offset = data.find(mark, end)
    return spans


def _without_backslash(match: re.Match[bytes]) -> bytes:
    code = match[1] or match[2]
    return bytes([int(code, 16)]) if code else CONTROLS.get(match[3], match[3])


def _without_percent(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 16)])


def _decoded(text: bytes) -> bytes:
    whole = text[:-1] if len(text) % 4 == 1 else text
    return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))
