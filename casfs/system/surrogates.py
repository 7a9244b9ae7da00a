"""Surrogate pairs that JSON escapes in two parts (`\\ud83d`, `\\ude00`), and lone surrogates.

UTF-8 cannot encode a lone surrogate, so neither a node nor a file can hold it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

LONE = re.compile("[\ud800-\udfff]")
CODEC = "utf-16-le"
ERRORS = "surrogatepass"


def join(text: str) -> str:
    """Returns a text with surrogate pairs joined; lone surrogates stay."""
    if text.isascii() or not LONE.search(text):
        return text
    return text.encode(CODEC, ERRORS).decode(CODEC, ERRORS)


def replace_lone(text: str) -> str:
    """Returns a text with surrogate pairs joined, and U+FFFD for each lone surrogate."""
    joined = join(text)
    return joined if joined is text else LONE.sub("\ufffd", joined)


def replace_in_json(value: Any, max_depth: float = math.inf) -> Any:
    """Returns a JSON value without lone surrogates, keys included. Raises ValueError where objects
    and lists are nested deeper than `max_depth`."""
    if isinstance(value, str):
        return replace_lone(value)
    if not isinstance(value, Mapping | list):
        return value
    if max_depth == 0:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [replace_in_json(item, max_depth - 1) for item in value]
    return {
        replace_lone(name): replace_in_json(member, max_depth - 1) for name, member in value.items()
    }
