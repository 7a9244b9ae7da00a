"""Reads the JSON of other programs, such as agents and their transcripts, of which nothing is
promised."""

from __future__ import annotations

import json
from typing import Any

from casfs.system.surrogates import replace_in_json

# Python's parser and what handles a value call themselves for each level: at some depth one of them
# meets the limit, so what is deeper is read by none.
MAX_DEPTH = 100


def parse(data: bytes | str) -> Any:
    """Returns the value of a text of JSON, without lone surrogates, which no node can hold. Raises
    ValueError for what is none, or is nested deeper than MAX_DEPTH."""
    try:
        return replace_in_json(json.loads(data), MAX_DEPTH)
    except RecursionError:
        raise ValueError("nested too deep") from None
