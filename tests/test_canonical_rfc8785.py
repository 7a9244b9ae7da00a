"""The vectors of RFC 8785: the samples of sections 3.2.2 to 3.2.4, the numbers of appendix B."""

from __future__ import annotations

import struct

import pytest

from casfs import canonical
from casfs.errors import Invalid

SAMPLE = rb"""{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}"""
SAMPLE_BYTES = bytes.fromhex(
    "7b226c69746572616c73223a5b6e756c6c2c747275652c66616c73655d2c226e"
    "756d62657273223a5b3333333333333333332e333333333333332c31652b3330"
    "2c342e352c302e3030322c31652d32375d2c22737472696e67223a22e282ac24"
    "5c75303030665c6e4127425c225c5c5c5c5c222f227d"
)
KEYS = rb"""{
  "\u20ac": "Euro Sign",
  "\r": "Carriage Return",
  "\ufb33": "Hebrew Letter Dalet With Dagesh",
  "1": "One",
  "\ud83d\ude00": "Emoji: Grinning Face",
  "\u0080": "Control",
  "\u00f6": "Latin Small Letter O With Diaeresis"
}"""
KEY_ORDER = [
    "Carriage Return",
    "One",
    "Control",
    "Latin Small Letter O With Diaeresis",
    "Euro Sign",
    "Emoji: Grinning Face",
    "Hebrew Letter Dalet With Dagesh",
]
NUMBERS = """
0000000000000000 0
8000000000000000 0
0000000000000001 5e-324
8000000000000001 -5e-324
7fefffffffffffff 1.7976931348623157e+308
ffefffffffffffff -1.7976931348623157e+308
44b52d02c7e14af5 9.999999999999997e+22
44b52d02c7e14af6 1e+23
44b52d02c7e14af7 1.0000000000000001e+23
444b1ae4d6e2ef50 1e+21
3eb0c6f7a0b5ed8c 9.999999999999997e-7
3eb0c6f7a0b5ed8d 0.000001
41b3de4355555553 333333333.3333332
41b3de4355555554 333333333.33333325
41b3de4355555555 333333333.3333333
41b3de4355555556 333333333.3333334
41b3de4355555557 333333333.33333343
becbf647612f3696 -0.0000033333333333333333
43143ff3c1cb0959 1424953923781206.2
"""
REFUSED = """
4340000000000000 9007199254740992
c340000000000000 -9007199254740992
4430000000000000 295147905179352830000
444b1ae4d6e2ef4e 999999999999999700000
444b1ae4d6e2ef4f 999999999999999900000
7fffffffffffffff NaN
7ff0000000000000 Infinity
"""  # by design: integers lose digits beyond 2^53-1, and the RFC refuses the last two itself


def vectors(table: str) -> list[tuple[str, str]]:
    return [(bits, text) for bits, text in map(str.split, table.strip().splitlines())]


def double(bits: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(bits))[0])


def test_sample() -> None:
    assert canonical.encode(canonical.parse(SAMPLE)) == SAMPLE_BYTES


def test_order_of_keys() -> None:
    text = canonical.encode(canonical.parse(KEYS))
    assert list(canonical.parse(text).values()) == KEY_ORDER


@pytest.mark.parametrize(("bits", "text"), vectors(NUMBERS))
def test_numbers(bits: str, text: str) -> None:
    assert canonical.encode([double(bits)]) == f"[{text}]".encode()


@pytest.mark.parametrize(("bits", "text"), vectors(REFUSED))
def test_refused_numbers(bits: str, text: str) -> None:
    with pytest.raises(Invalid):
        canonical.encode(double(bits))
