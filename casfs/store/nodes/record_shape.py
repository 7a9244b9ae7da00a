"""Whether a record of a head has the form that its kind says, as far as plain Python sees it.

The documents of `casfs.store.nodes.head_kinds` use a small part of JSON Schema. A command that
prints one screen reads a few records, and importing jsonschema-rs for them takes longer than all
the rest of it: so it is asked only where this module sees a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf
from typing import Any

from casfs.digest import is_hash

TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
KNOWN = {
    "type", "enum", "minimum", "maximum", "pattern", "minLength", "format", "cas_type", "items",
    "required", "properties",
}  # fmt: skip


Shape = Callable[[Any], bool]


def shape_of(document: dict[str, Any]) -> Shape:
    """Returns a function that says whether a value is surely valid under `document`; it says no
    also where that is not known: the document has a keyword that is not in KNOWN. Made once for
    all records of a kind, since lists check a hundred thousand of them."""
    if not document.keys() <= KNOWN:
        return lambda value: False
    names = document.get("type")
    types = None if names is None else {TYPES[name] for name in _listed(names)}
    if "enum" in document:
        words = frozenset(document["enum"])
        return lambda value: isinstance(value, str) and value in words
    by_type: dict[type, Shape] = {
        str: _text_shape(document),
        int: _number_shape(document),
        bool: lambda value: True,
        list: _list_shape(document),
        dict: _object_shape(document),
        type(None): lambda value: True,
    }
    if types is not None:
        by_type = {type: shape for type, shape in by_type.items() if type in types}
    return lambda value: (shape := by_type.get(type(value))) is not None and shape(value)


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _text_shape(document: dict[str, Any]) -> Shape:
    shortest = document.get("minLength", 0)
    is_reference = document.get("format") == "cas_ref"
    pattern = document.get("pattern")
    search = None if pattern is None else re.compile(pattern).search

    def fits(text: str) -> bool:
        if is_reference and not is_hash(text):
            return False
        is_matched = search is None or (search(text) is not None and "\n" not in text)
        return is_matched and len(text) >= shortest

    return fits


def _number_shape(document: dict[str, Any]) -> Shape:
    least = document.get("minimum", -inf)
    most = document.get("maximum", inf)
    return lambda number: least <= number <= most


def _list_shape(document: dict[str, Any]) -> Shape:
    fits = shape_of(document["items"]) if "items" in document else None
    return lambda items: fits is None or all(map(fits, items))


def _object_shape(document: dict[str, Any]) -> Shape:
    required = {*document.get("required", ())}
    members = {
        name: shape_of(subschema) for name, subschema in document.get("properties", {}).items()
    }

    def fits(value: dict[str, Any]) -> bool:
        for name, member in value.items():
            shape = members.get(name)
            if shape is not None and not shape(member):
                return False
        return value.keys() >= required

    return fits
