"""Reads the JSON of other programs, such as agents and their transcripts, of which nothing is
promised."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from casfs.system.surrogates import replace_lone

# Python's parser and what handles a value call themselves for each level: at some depth one of them
# meets the limit, so what is deeper is read by none.
MAX_DEPTH = 100


def parse(data: bytes | str) -> Any:
    """Returns the value of a text of JSON, without lone surrogates, which no node can hold. Raises
    ValueError for what is none, or is nested deeper than MAX_DEPTH."""
    try:
        return _clean(json.loads(data), MAX_DEPTH)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return replace_lone(value)
    if depth == 0 and isinstance(value, dict | list):
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        return {replace_lone(name): _clean(member, depth - 1) for name, member in value.items()}
    if isinstance(value, list):
        return [_clean(item, depth - 1) for item in value]
    return value
