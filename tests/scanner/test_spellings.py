"""A secret is found however a program has wrapped it, and where it stands in the text."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.scanner import Scanner, fingerprint, scan
from casfs.scanner.spellings import SIGNS, without_spellings
from tests.scanner import samples

Wrap = Callable[[str], bytes]


def encoded(text: str) -> bytes:
    return base64.b64encode(f"key: {text}\n".encode())


def coloured(text: str) -> bytes:
    """As `grep --color` prints a match in the middle of a word."""
    return f"a:\x1b[01;31m\x1b[K{text[:8]}\x1b[m\x1b[K{text[8:]}\n".encode()


def in_lines(text: str) -> bytes:
    lines = base64.encodebytes(f"a text before it\nkey: {text}\nand one after it".encode())
    return b"data:\n" + lines


WRAPPED: dict[str, Wrap] = {
    "alone": str.encode,
    "coloured": coloured,
    "in one colour": lambda text: f"\x1b[31m{text}\x1b[0m".encode(),
    "colour in source": lambda text: f"\\033[31m{text}\\033[0m".encode(),
    "JSON": lambda text: json.dumps({"content": f"a\n{text}"}).encode(),
    "JSON in JSON": lambda text: json.dumps(json.dumps({"content": f"a\n{text}"})).encode(),
    "JSON of characters": lambda text: "".join(f"\\u{ord(one):04x}" for one in text).encode(),
    "percent": lambda text: f"a?x%3D{quote(text, safe='')}&y".encode(),
    "percent of all": lambda text: "".join(f"%{ord(one):02X}" for one in text).encode(),
    "removed line": lambda text: f"@@ -1 +1 @@\n-{text}\n+x\n".encode(),
    "added line": lambda text: f"@@ -1 +1 @@\n-x\n+{text}\n".encode(),
    "base64": encoded,
    "base64 in lines": in_lines,
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).rstrip(b"="),
    "base64 of JSON": lambda text: base64.b64encode(json.dumps({"a": f"b\n{text}"}).encode()),
    "UTF-16": lambda text: f"key {text}\n".encode("utf-16"),
    "UTF-16 without a mark": lambda text: f"the key is {text}\n".encode("utf-16-le"),
    "UTF-16, the other": lambda text: f"the key is {text}\n".encode("utf-16-be"),
}
KINDS = [*samples.FORMATS, "github-token"]


def sample(kind: str) -> str:
    return samples.github_token() if kind == "github-token" else samples.build(kind)


@pytest.mark.parametrize("spelling", WRAPPED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_format_is_found_in_each_spelling(kind: str, spelling: str) -> None:
    secret = sample(kind)
    data = b"first line\n" + WRAPPED[spelling](secret)
    if spelling.startswith("UTF-16"):
        data = WRAPPED[spelling](secret)
    found = scan(data)
    assert secret.encode() in [one.secret for one in found]
    assert all(0 <= one.start < one.end <= len(data) for one in found)


@pytest.mark.parametrize("outer", WRAPPED)
def test_a_format_is_found_in_one_spelling_within_another(outer: str) -> None:
    missed = []
    # Not UTF-16, whose zero bytes JSON, percent signs and base64 of text do not have.
    for inner in (name for name in WRAPPED if not name.startswith("UTF-16")):
        for kind in KINDS:
            secret = sample(kind)
            data = WRAPPED[outer](WRAPPED[inner](secret).decode())
            if secret.encode() not in [finding.secret for finding in scan(data)]:
                missed.append((kind, inner))
    # Of 55 x 15: forms of which the end of what is around is a part.
    assert len(missed) <= (4 if outer == "percent" else 1), missed


PREFIXES = {
    "cat -n": lambda number, line: f"{number:6}\t{line}",
    "grep -n": lambda number, line: f"{number}:{line}",
    "Read": lambda number, line: f"{number:6}→{line}",
    "awk": lambda number, line: f"{number}: {line}",
    "a quotation": lambda number, line: f"> {line}",
    "a removed line": lambda number, line: f"-{line}",
    "an added line": lambda number, line: f"+{line}",
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_base64_with_something_before_each_line(prefix: str) -> None:
    for kind in KINDS:
        secret = sample(kind)
        lines = in_lines(secret).decode().splitlines()
        numbered = [PREFIXES[prefix](number, line) for number, line in enumerate(lines, 1)]
        data = "\n".join(numbered)
        for text in (data, json.dumps(data)):
            assert secret.encode() in [finding.secret for finding in scan(text.encode())], kind


@pytest.mark.parametrize("text", [
    'password = "{}"',
    "password: {}",
    'const PASSWORD: &str = "{}";',
    'const password: string = "{}";',
    'let password: Option<String> = "{}"',
    'os.environ.get("DB_PASSWORD", "{}")',
    'getenv("DB_PASSWORD", "{}")',
    "mysql --password {} db",
    "curl -H 'X-Api-Token: {}' https://example.org",
    "mysql --password={} db",
    '{{"cells": [{{"source": ["password = \\"{}\\"\\n"]}}]}}',
    "%22password%22%3A%22{}%22",
])  # fmt: skip
def test_a_password_in_each_notation(text: str) -> None:
    secret = "Sup3r-s4fe-xQ9!k"
    assert [one.secret.decode() for one in scan(text.format(secret).encode())] == [secret]


@pytest.mark.parametrize("text", [
    "password: string\n",
    "password: HashedPassword2\n",
    "password: models.Password2\n",
    "password: getPassword2(user)\n",
    "password: ${DB_PASSWORD_2}\n",
    "password: changeMe-123!\n",
    "password: a strong one, with 3 classes\n",
    "mysql --password $PASSWORD_2_X",
    "curl -H 'X-Api-Token: $API_TOKEN_2' https://example.org",
    "curl -H 'X-Api-Token: {{token2}}' https://example.org",
    "curl -H 'X-Api-Token: YOUR_TOKEN_123' https://example.org",
    "mysql --password-file /run/x/Password-2.txt",
    'getenv("API_KEY", "https://api.example.com/v1")',
    'os.environ["API_TOKEN_2"]',
    '"auth": "none-of-this"',
    "integrity sha512-" + base64.b64encode(bytes(range(64))).decode(),
    "data:image/png;base64," + base64.b64encode(bytes(range(256))).decode(),
    "a/path/with/many/parts/that/looks/like/base64/of/something",
])  # fmt: skip
def test_what_only_looks_like_a_secret_is_none(text: str) -> None:
    assert scan(text.encode()) == ()


def test_one_that_is_allowed_is_in_each_spelling() -> None:
    secret = samples.github_token()
    scanner = Scanner([fingerprint(secret.encode())])
    for wrap in WRAPPED.values():
        assert scanner.scan(wrap(secret)) == ()


def test_the_line_is_that_of_the_text_as_it_stands() -> None:
    token = samples.github_token()
    data = b"1\n2\n" + coloured(token) + b"4\n" + json.dumps({"a": f'"{token}"'}).encode()
    assert [one.line for one in scan(data)] == [3, 5]


@given(st.binary(max_size=400))
def test_a_reading_has_a_place_for_each_of_its_bytes(data: bytes) -> None:
    for reading in without_spellings(data, SIGNS):
        ends = [reading.span(at, at + 1) for at in range(len(reading.data))]
        assert all(0 <= start <= end <= len(data) + 1 for start, end in ends)
        assert ends == sorted(ends)


@pytest.mark.parametrize("text", [
    b"\x1b[" * 100_000, b"\x1b]" * 100_000, b'\\"' * 200_000, b"%41" * 200_000,
    b"QUJD" * 200_000, b"A" * 500_000, b'\\u0041\n' * 50_000,
], ids=range(7))  # fmt: skip
def test_hostile_text_ends(text: bytes) -> None:
    scan(text)
