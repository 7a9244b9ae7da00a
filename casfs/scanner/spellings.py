"""The spellings of a text: what a program wrapped it in, taken off.

`grep --color` puts escapes into a word, JSON and source code backslashes, a URL percent signs, a
manifest base64; a Windows program writes UTF-16. A secret is one in each of them.
`without_spellings` gives a text as it reads without each, with the places in the text as it stands,
so that what is found in a reading can be named by its line, and replaced. What looks for a known
text, to purge it, makes patterns of these forms, too (`casfs.maintenance.text_patterns`): it must
find each, also where nothing tells that there is a secret.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

Span = tuple[int, int]
Decode = Callable[["re.Match[bytes]"], bytes]

MAX_BACKSLASHES = 7  # before a quote: JSON within JSON within JSON
BACKSLASHES = rf"\\{{1,{MAX_BACKSLASHES}}}"
ESCAPED_COLOUR = rf"{BACKSLASHES}(?:u001[bB]|x1[bB]|033|e)\["  # its beginning in JSON or source
COLOUR = re.compile(  # of ECMA-48: control sequences, and strings such as the title of a window
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[()][0-9A-Za-z])"
    rb"|%b[0-?]{0,16}[@-~]" % ESCAPED_COLOUR.encode()
)
BACKSLASH = re.compile(rb"\\(?:u00([0-7][0-9a-fA-F])|x([0-7][0-9a-fA-F])|(.))", re.DOTALL)
PERCENT = re.compile(rb"%(?:25)*([0-9a-fA-F]{2})")  # once, or again
# Four characters of base64 for three bytes of ASCII text: the high bits are zero. Of four random
# ones few are such, so names and paths are none, and a beginning in the wrong place is none.
GROUP = "[CDI-Za-f][AC-HQS-Xgi-nwyz0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/_-]"
# What stands before each line: its number, the sign of a quotation, up to three of them.
LINE_PREFIX = r"(?:[ \t]*(?:\d{1,7}(?:\\t|\\u2192|[\t:)|]|\xe2\x86\x92))?[ \t>|*#]{0,8}){0,3}"
BREAK = rf"(?=[\r\n\\%])(?:[\r\n]|{BACKSLASHES}[rn]|%0[aAdD])+{LINE_PREFIX}"
SIGNED_BREAK = rf"{BREAK}[+-]"  # of a diff; in base64 the signs are characters, too
SIX_GROUPS = f"(?:{GROUP}){{6}}"
BASE64 = re.compile(SIX_GROUPS.encode())
# The groups behind the first six, as far as they are base64 of ASCII.
BASE64_TEXT = re.compile(rf"(?:{GROUP}|{BREAK}[+-]?(?={GROUP}))*".encode("latin-1"))
# Base64 before and behind that of other bytes: a colour code, the arrow behind a line number.
BASE64_CHAR = rf"(?:[A-Za-z0-9+/_-]|%2[bBfF]|{BACKSLASHES}/)"
BASE64_BEHIND = re.compile(
    rf"(?:{BASE64_CHAR}{{4}}(?:{BREAK}(?={BASE64_CHAR}{{4}}|{BASE64_CHAR}{{2,3}}=))?){{0,128}}"
    rf"{BASE64_CHAR}{{0,3}}".encode("latin-1")
)
MIN_BASE64_CHARS = 10  # of a known text; fewer are in any random bytes
BASE64_BEFORE = re.compile(rb"[A-Za-z0-9+/_-]{0,64}\Z")
BREAKS = re.compile(BREAK.encode("latin-1"))
SIGNED_BREAKS = re.compile(SIGNED_BREAK.encode("latin-1"))
SLASH_OR_PLUS = re.compile(rf"(%2[bB])|%2[fF]|{BACKSLASHES}/".encode())
NAMED = r"(?i:passw|passphrase|pwd|secret|token|cred|auth|key|://)[^\n]{0,80}"
# What the library looks for, once in a text, by the name of a spelling. An escape within a secret
# comes behind the name of one, or many stand together; code has others in each file.
SIGNS = {
    "colour": rf"\x1b[\[\]()]|{ESCAPED_COLOUR}",
    "backslash": rf"{NAMED}\\[\"'/]|(?:{BACKSLASHES}u00[0-7].){{4}}|(?:{BACKSLASHES}x[0-7].){{4}}",
    "percent": (
        rf"(?:{NAMED}|\d{{8}})%[0-9a-fA-F]{{2}}|(?:%(?:25)*[0-9a-fA-F]{{2}}){{4}}"
        r"|%1[bB]%5[bB]|%5[cC](?:u00|x[0-7]|033%5[bB]|e%5[bB])"
    ),
    "base64": SIX_GROUPS,
    "UTF-16": r"(?:[\t\n\r\x1b -~]\x00){12}",
}
TELLING = {name: re.compile(SIGNS[name].encode()) for name in ("backslash", "percent")}
NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]+")
URL_SAFE = bytes.maketrans(b"-_", b"+/")
CONTROLS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"0": b"\0"}
UTF16_PROBE_BYTES = 256
UTF16 = re.compile(rb"(?:[\t\n\r\x1b -~]\0){12,}|(?:\0[\t\n\r\x1b -~]){12,}")
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


def without_spellings(data: bytes, signs: Collection[str]) -> Iterator[Reading]:
    """Yields the text without each of the spellings that it has signs of."""
    if "colour" in signs:
        yield _replaced(data, COLOUR, decode=lambda match: b"", places=[(0, len(data))])
    if "backslash" in signs and (lines := _lines(data, b"\\", TELLING["backslash"])):
        yield _replaced(data, BACKSLASH, decode=_without_backslash, places=lines)
    if "percent" in signs and (lines := _lines(data, b"%", TELLING["percent"])):
        yield _replaced(data, PERCENT, decode=_without_percent, places=lines)
    end = 0
    while "base64" in signs and (match := BASE64.search(data, end)):
        start, end = _whole_base64(data, match, after=end)
        writer = _Writer()
        writer.add(_without_base64(data[start:end]), start, end, width=0)
        yield writer.reading()
    for match in UTF16.finditer(data) if "UTF-16" in signs else ():
        writer = _Writer()
        writer.add(match[0].replace(b"\0", b""), *match.span(), width=2)
        yield writer.reading()


def base64_forms(data: bytes) -> Iterator[bytes]:
    """Yields what base64 makes of a text whatever is before and behind it."""
    for before in range(3):
        whole = base64.b64encode(bytes(before) + data)
        start = -(-before * 8 // 6)
        form = whole[start : (before + len(data)) * 8 // 6]
        if len(form) >= MIN_BASE64_CHARS:
            yield form


def is_utf16(data: bytes) -> bool:
    """Returns whether data begins as a text in UTF-16 does."""
    if data[:2] in BOMS:
        return True
    # Nearly no text has a zero byte, and to look for one takes a hundredth of the pattern's time.
    has_zero = data.find(b"\0", 0, UTF16_PROBE_BYTES) >= 0
    return has_zero and UTF16.search(data, 0, UTF16_PROBE_BYTES) is not None


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


def _whole_base64(data: bytes, match: re.Match[bytes], after: int) -> Span:
    """Returns where the base64 is of which a part is ASCII text; it begins in whole groups before
    that part, behind `after`."""
    before = BASE64_BEFORE.search(data, max(after, match.start() - 64), match.start())
    start = match.start() - (len(before[0]) // 4 * 4 if before else 0)
    end = match.end()
    for pattern in (BASE64_TEXT, BASE64_BEHIND):
        if behind := pattern.match(data, end):
            end = behind.end()
    return start, end


def _without_base64(text: bytes) -> bytes:
    if NOT_BASE64.search(text):
        is_diff = len(SIGNED_BREAKS.findall(text)) == len(BREAKS.findall(text))
        text = (SIGNED_BREAKS if is_diff else BREAKS).sub(b"", text)
        text = SLASH_OR_PLUS.sub(lambda match: b"+" if match[1] else b"/", text)
    text = NOT_BASE64.sub(b"", text.translate(URL_SAFE))
    whole = text[:-1] if len(text) % 4 == 1 else text
    return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))
