"""Whether a record of a head has the form that its kind says, as far as plain Python sees it.

The documents of `casfs.nodes.head_kinds` use a small part of JSON Schema. A command that prints one
screen reads a few records, and importing jsonschema-rs for them takes longer than all the rest of
it: so it is asked only where this module sees a fault.
"""

from __future__ import annotations

import re
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


def fits(document: dict[str, Any], value: Any) -> bool:
    """Returns whether `value` is surely valid under `document`; False also where that is not known:
    it has a keyword that is not in KNOWN."""
    if not document.keys() <= KNOWN or not _has_type(document.get("type"), value):
        return False
    if "enum" in document:
        return isinstance(value, str) and value in document["enum"]
    if isinstance(value, str):
        return _fits_text(document, value)
    if isinstance(value, int):
        return bool(document.get("minimum", value) <= value <= document.get("maximum", value))
    if isinstance(value, list):
        return all(fits(document.get("items", {}), item) for item in value)
    if isinstance(value, dict):
        members = document.get("properties", {})
        return value.keys() >= {*document.get("required", ())} and all(
            fits(members[name], value[name]) for name in members.keys() & value.keys()
        )
    return value is None


def _has_type(names: str | list[str] | None, value: Any) -> bool:
    if names is None:
        return True
    return type(value) in [TYPES[name] for name in ([names] if isinstance(names, str) else names)]


def _fits_text(document: dict[str, Any], text: str) -> bool:
    if document.get("format") == "cas_ref" and not is_hash(text):
        return False
    pattern = document.get("pattern")
    is_matched = pattern is None or (re.search(pattern, text) is not None and "\n" not in text)
    return is_matched and len(text) >= document.get("minLength", 0)
