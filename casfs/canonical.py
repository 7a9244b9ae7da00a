"""Canonical JSON: RFC 8785, so that equal values have one digest.

Two encoders behind one function. orjson with sorted keys writes the same bytes as
RFC 8785 (and is some sixty times faster) as long as a value has no float, no integer
beyond 2^53-1 and no key outside the Basic Multilingual Plane; `_orjson_safe` proves that for
a value, and anything else goes to the `rfc8785` package. Values without an unambiguous
text are refused with their JSON path: NaN and infinities, lone surrogates, keys that are not
strings, duplicate keys (`parse`), nesting deeper than MAX_DEPTH, and every number whose
canonical text is an integer beyond 2^53-1 (1e20 is refused, 1e21 and 1.5 are not). That
makes `parse(encode(x)) == x` hold for all that is accepted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import orjson

from casfs.errors import Invalid

MAX_INT = 2**53 - 1
MAX_DEPTH = 200  # below the recursion limit of every parser that reads it


def encode(value: Any) -> bytes:
    """Returns the canonical bytes of `value`. Raises Invalid naming the JSON path."""
    if not _orjson_safe(value):
        _check(value, "$", 0)
        import rfc8785  # only floats and rare keys come here: not worth its import time

        return rfc8785.dumps(value)
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        _check(value, "$", 0)
        raise


def decode(data: bytes) -> Any:
    """Parses bytes that this module wrote (no check for duplicate keys)."""
    return orjson.loads(data)


def indented(value: Any) -> str:
    """Returns the text of a decoded value for a reader: members in their order, two spaces a
    level. Not canonical."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def parse(text: bytes | str) -> Any:
    """Parses JSON from outside. Raises Invalid where it is not JSON, or has duplicate keys."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise Invalid(f"not JSON: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise Invalid(f"not JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise Invalid(f"not accepted: nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise Invalid(f"not accepted: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise Invalid(f"not accepted: duplicate key {twice!r} in one object")
    return members


def _no_constant(name: str) -> Any:
    raise Invalid(f"not JSON: {name} is not a JSON number")


def _orjson_safe(value: Any) -> bool:
    """Returns True when orjson provably writes the RFC 8785 bytes of `value`."""
    level = [value]  # all that is nested equally deep: a call for each part takes longer
    depth = 0
    while level:
        below: list[Any] = []
        for part in level:
            kind = type(part)
            if kind is str or kind is bool or part is None:
                continue
            if kind is int:
                if not -MAX_INT <= part <= MAX_INT:
                    return False
            elif kind is list:
                below += part
            elif kind is dict:
                for key in part:
                    if type(key) is not str or not (key.isascii() or max(key) <= "\ud7ff"):
                        return False
                below += part.values()
            else:
                return False
        depth += 1
        if below and depth > MAX_DEPTH:
            return False
        level = below
    return True


def _check(value: Any, path: str, depth: int) -> None:
    """Raises Invalid for the first part of `value` that has no canonical text."""
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, bool) or value is None:
        pass
    elif isinstance(value, int | float):
        _check_number(value, path)
    elif depth >= MAX_DEPTH:
        raise Invalid(f"{path}: nested deeper than {MAX_DEPTH}")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise Invalid(f"{path}: the key {key!r} is not a string")
            _check_text(key, f"{path} key {key!a}")
            _check(item, member(path, key), depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
    else:
        raise Invalid(f"{path}: a {type(value).__name__} has no JSON form")


def member(path: str, key: str) -> str:
    """Returns `path` extended by an object's key, in JSONPath's notation."""
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{json.dumps(key)}]"


def _check_text(text: str, path: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid(f"{path}: lone surrogate at character {error.start}") from None


def _check_number(number: int | float, path: str) -> None:
    if isinstance(number, float):
        if not math.isfinite(number):
            raise Invalid(f"{path}: {number} has no JSON form")
        if abs(number) >= 1e21:  # written with an exponent, so it stays a float
            return
    if abs(number) > MAX_INT and number == int(number):
        shown = f"{number}" if abs(number) < 1e21 else "an integer"
        raise Invalid(f"{path}: {shown} is beyond 2^53-1, where integers lose digits")
