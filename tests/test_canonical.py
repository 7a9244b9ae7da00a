from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from casfs import canonical
from casfs.canonical import MAX_DEPTH, MAX_INT
from casfs.errors import Invalid

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(-MAX_INT, MAX_INT) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


def accepted(value: Any) -> bytes | None:
    try:
        return canonical.encode(value)
    except Invalid:
        return None


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    order.shuffle(keys)
    return {key: shuffled(value[key], order) for key in keys}


def nested(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@given(VALUES, st.randoms())
def test_insertion_order_does_not_matter(value: Any, order: random.Random) -> None:
    assert accepted(shuffled(value, order)) == accepted(value)


@given(ANYTHING)
def test_what_is_accepted_comes_back_equal(value: Any) -> None:
    data = accepted(value)
    if data is not None:
        assert canonical.parse(data) == value
        assert canonical.decode(data) == value
        assert canonical.encode(canonical.parse(data)) == data


@given(ANYTHING)
def test_bytes_are_those_of_rfc_8785(value: Any) -> None:
    data = accepted(value)
    if data is not None:
        assert data == rfc8785.dumps(value)


@given(VALUES)
def test_only_numbers_that_lose_digits_are_refused_of_sound_json(value: Any) -> None:
    numbers = [value]
    refused = False
    while numbers:
        item = numbers.pop()
        numbers += item.values() if isinstance(item, dict) else item if type(item) is list else []
        refused |= isinstance(item, float) and MAX_INT < abs(item) < 1e21
    assert (accepted(value) is None) == refused


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e21, b"1e+21"),
        (-1e21, b"-1e+21"),
        (1.5, b"1.5"),
        (1.0, b"1"),
        (-0.0, b"0"),
        (1e-7, b"1e-7"),
        (MAX_INT, b"9007199254740991"),
        (float(MAX_INT), b"9007199254740991"),
        (5e-324, b"5e-324"),
        ('é\u2028\x00"\\/\n', b'"\xc3\xa9\xe2\x80\xa8\\u0000\\"\\\\/\\n"'),
        ({"\ue000": 1, "😀": 2, "é": 3}, '{"é":3,"😀":2,"\ue000":1}'.encode()),
        ((1, [2]), b"[1,[2]]"),
    ],
)
def test_texts(value: Any, text: bytes) -> None:
    assert canonical.encode(value) == text


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, math.nan]}, "$.a[1]: nan"),
        ({"a": {"b c": math.inf}}, '$.a["b c"]: inf'),
        ([-math.inf], "$[0]: -inf"),
        ({"a": ["x\ud800"]}, "$.a[0]: lone surrogate at character 1"),
        ({"a": {"\udfff": 1}}, "$.a key '\\udfff': lone surrogate"),
        ([0, 2**53], "$[1]: 9007199254740992"),
        ([-(2**53)], "$[0]: -9007199254740992"),
        (1e20, "$: 1e+20"),
        ({"x": float(2**53)}, "$.x: 9007199254740992.0"),
        ({"x": 10**5000}, "$.x: an integer is beyond"),
        ({"x": {1: 2}}, "$.x: the key 1 is not a string"),
        ({"x": [{1}]}, "$.x[0]: a set has no JSON form"),
        ([b"x"], "$[0]: a bytes has no JSON form"),
        ({"big": 1.5, "x": object}, "$.x: a type has no JSON form"),
    ],
)
def test_what_has_no_text_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(Invalid) as caught:
        canonical.encode(value)
    assert str(caught.value).startswith(path)


def test_nesting_is_bounded_and_what_fits_is_read_again() -> None:
    deepest = nested(MAX_DEPTH)
    assert canonical.parse(canonical.encode(deepest)) == deepest
    for value in (nested(MAX_DEPTH + 1), nested(5000), [1.5, nested(5000)]):
        with pytest.raises(Invalid, match=f"nested deeper than {MAX_DEPTH}"):
            canonical.encode(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{'a': 1}", "line 1 column 2"),
        ('{"a": 1,\n "b": }', "line 2 column 7"),
        ("[1] 2", "not JSON"),
        ("NaN", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        (b"[\xff]", "byte 1 is not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "duplicate key 'c'"),
        ('{"a": 1, "\\u0061": 2}', "duplicate key 'a'"),
        ("9" * 5000, "not accepted"),
        ("[" * 100_000 + "]" * 100_000, "nested deeper"),
    ],
)
def test_text_that_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(Invalid) as caught:
        canonical.parse(text)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@given(ANYTHING)
def test_parse_reads_what_python_writes(value: Any) -> None:
    text = json.dumps(value)
    if "NaN" not in text and "Infinity" not in text:
        assert canonical.parse(text) == value


@pytest.mark.parametrize(
    ("key", "path"),
    [("a", "$.a"), ("äb", "$.äb"), ("", '$[""]'), ("a b", '$["a b"]'), ('"', '$["\\""]')],
)
def test_member_paths(key: str, path: str) -> None:
    assert canonical.member("$", key) == path
