"""Where a text is found, in which spelling, and what is left of what stands around it."""

from __future__ import annotations

import base64
import io
import json
import textwrap
import time
from urllib.parse import quote

import pytest

from casfs.digest import CHUNK
from casfs.maintenance.needle import Needle
from casfs.store.tombstones import MARK

WORD = 'hunter2-"quoted"/ünï😀code\\4711'
KEY = "-----BEGIN X KEY-----\nMIIEvQ+abc/defghijklm\n\nnopqrstuvwxyz0123\n}\n-----END X KEY-----"
OTHER = "-----BEGIN X KEY-----\nother\n}\n-----END X KEY-----\n"
M = MARK.encode()


def redacted(text: str, data: bytes) -> bytes:
    return b"".join(Needle(text).redacted(io.BytesIO(data)))


def coloured(text: str) -> str:
    return "".join(f"\x1b[01;31m{char}\x1b[m" for char in text)


def every(escape: str, text: str) -> str:
    return "".join(escape % ord(char) for char in text)


SPELLINGS = {
    "plain": WORD,
    "JSON": json.dumps(WORD)[1:-1],
    "JSON in JSON": json.dumps(json.dumps(WORD, ensure_ascii=False)[1:-1])[1:-1],
    "coloured": coloured(WORD),
    "coloured in JSON": json.dumps(coloured(WORD))[1:-1],
    "percent": quote(WORD, safe=""),
    "percent twice": quote(quote(WORD, safe=""), safe=""),
    "PHP": WORD.replace("/", "\\/"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_word_in_each_spelling(spelling: str) -> None:
    data = f"before {SPELLINGS[spelling]} behind\n".encode()
    assert Needle(WORD).is_in(data)
    left = redacted(WORD, data)
    assert left.startswith(b"before ")
    assert left.endswith(b" behind\n")
    assert left.count(M) == 1
    assert b"4711" not in left
    assert b"quoted" not in left
    assert not Needle(WORD).is_in(left)
    blanked = Needle(WORD).blanked(data)
    assert len(blanked) == len(data)
    assert not Needle(WORD).is_in(blanked)


@pytest.mark.parametrize("escape", ["\\u%04x", "\\x%02X", "%%%02x", "\\\\u%04X"])
def test_a_word_with_all_characters_escaped(escape: str) -> None:
    assert redacted("hunter2", f"a {every(escape, 'hunter2')} b".encode()) == b"a " + M + b" b"


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", [WORD, KEY])
def test_in_utf16(text: str, codec: str) -> None:
    data = f"before {text} behind".encode(codec)
    left = redacted(text, data)
    assert "4711".encode("utf-16-le") not in left
    assert "nopq".encode("utf-16-le") not in left
    assert M in left
    assert Needle(text).lines(data) == [1]


@pytest.mark.parametrize("before", ["", "x", "xy"])
@pytest.mark.parametrize("text", [WORD, KEY, KEY.replace("\n", "\r\n")])
def test_in_base64(text: str, before: str) -> None:
    whole = base64.b64encode(f"{before}{text} and the rest".encode())
    for data in (whole, base64.encodebytes(whole and base64.b64decode(whole)),
                 whole.translate(bytes.maketrans(b"+/", b"-_"))):  # fmt: skip
        left = redacted(text, b"key: " + data)
        assert left.startswith(b"key: ")
        assert left.count(M) == 1
        assert len(left) < 60, "the text is gone, the rest is there"


LAYOUTS = {
    "plain": KEY,
    "CRLF": KEY.replace("\n", "\r\n"),
    "diff": textwrap.indent(KEY, "+", lambda line: True),
    "indented": textwrap.indent(KEY, "    "),
    "quoted": textwrap.indent(KEY, "> ", lambda line: True),
    "JSON": json.dumps(KEY)[1:-1],
    "CRLF in JSON in JSON": json.dumps(json.dumps(KEY.replace("\n", "\r\n")))[1:-1],
    "diff in JSON": json.dumps(textwrap.indent(KEY, "+", lambda line: True))[1:-1],
    "coloured diff": "\n".join(f"\x1b[32m+{line}\x1b[m" for line in KEY.split("\n")),
    "source code": "\n".join(f'    "{line}\\n"' for line in KEY.split("\n")),
    "numbered": "\n".join(f"{at:6}\t{line}" for at, line in enumerate(KEY.split("\n"))),
    "percent": quote(KEY),
    "no blank line": KEY.replace("\n\n", "\n"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_text_of_several_lines(layout: str) -> None:
    data = f"{OTHER}before\n{LAYOUTS[layout]}\nbehind {{}}\n{OTHER}".encode()
    assert Needle(KEY).is_in(data)
    left = redacted(KEY, data)
    assert b"MIIE" not in left
    assert b"nopq" not in left
    assert left.count(OTHER.encode()) == 2
    assert left.count(M) == 5
    assert b"behind {}\n" in left
    if layout == "diff":
        assert left.count(b"\n+") == 6, "the signs of a diff are not the text's"
    assert not Needle(KEY).is_in(left)


def test_lines_count_with_the_others_in_order_only() -> None:
    lines = KEY.split("\n")
    for data in ("}\n", OTHER, "\n".join(lines[::-1]), "\n".join([*lines[:3], "x", *lines[3:]])):
        assert not Needle(KEY).is_in(data.encode()), data


def test_it_crosses_pieces_of_a_stream() -> None:
    for spelled in (textwrap.indent(KEY, "+"), json.dumps(KEY)[1:-1]):
        for at in (1, 10, len(spelled) - 1):
            data = bytes(CHUNK - at) + spelled.encode() + bytes(CHUNK)
            assert Needle(KEY).is_in_stream(io.BytesIO(data))
            left = redacted(KEY, data)
            assert left.count(M) == 5
            assert left.startswith(bytes(CHUNK - at))
            assert left.endswith(bytes(CHUNK))


@pytest.mark.parametrize("text", [WORD, KEY])
def test_the_time_for_what_is_much_like_it(text: str) -> None:
    begin = text.split("\n")[0]
    data = (f"{begin}\n" * 20_000 + "\\u0041%41\x1b[m " * 20_000).encode()
    start = time.process_time()
    assert not Needle(text + "!").is_in(data)
    assert time.process_time() - start < 5
