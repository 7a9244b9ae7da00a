"""JSON Schemas as a model's server takes them: what it forces an answer to fit.

A role-schema has keywords of ours (`name`, `cas_type`, the format `cas_ref`), which a server
may refuse or pass over; `portable` says the same without them. `action_schema` is the schema of
one step of a reactor: one variant for each tool, and one for the report.

`longest` bounds what the schema leaves unbounded. A server that forces a small model to write
JSON cannot force it to end a string, and such a model repeats itself until its answer is cut
off, in the middle of the object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HASH_PATTERN = "^[0-9a-f]{64}$"
CASFS_ROOT_KEYWORDS = ("name", "$id", "$schema")  # at the root
MAX_THOUGHT_CHARS = 500  # characters
MAX_ITEMS = 20  # items of an array that is bounded here
DATA_KEYWORDS = ("const", "enum", "default", "examples", "required", "dependentRequired")
MAP_KEYWORDS = (
    "properties",
    "patternProperties",
    "$defs",
    "dependentSchemas",
)  # their keys are names


def portable(
    schema: Mapping[str, Any], root: str = "#", longest: int | None = None
) -> dict[str, Any]:
    """A role-schema in plain JSON Schema. `root`: where it stands in a larger document;
    `longest`: characters of a string for which it has no limit."""
    document = {key: value for key, value in schema.items() if key not in CASFS_ROOT_KEYWORDS}
    plain: dict[str, Any] = _plain(document, root, longest)
    return plain


def _plain(schema: Any, root: str, longest: int | None) -> Any:
    if isinstance(schema, list):
        return [_plain(one, root, longest) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in DATA_KEYWORDS:
            found[key] = value
        elif key in MAP_KEYWORDS:
            found[key] = {name: _plain(one, root, longest) for name, one in value.items()}
        elif key == "$ref":
            found[key] = root + value[1:]
        elif key == "format" and value == "cas_ref":
            found["pattern"] = HASH_PATTERN
        elif key != "cas_type":
            found[key] = _plain(value, root, longest)
    return found if longest is None else {**_bounds(found, longest), **found}


def _bounds(schema: Mapping[str, Any], longest: int) -> dict[str, int]:
    """The keywords that bound what a schema allows by its type; its own come first."""
    types = schema.get("type", ())
    named = [types] if isinstance(types, str) else types
    if schema.keys() & {"enum", "const", "pattern", "format"}:
        return {}
    bounds = {"string": {"maxLength": longest}, "array": {"maxItems": MAX_ITEMS}}
    return {key: limit for name in named for key, limit in bounds.get(name, {}).items()}


def action_schema(
    tools: Sequence[Mapping[str, Any]],
    finish: str,
    meta: Mapping[str, Any],
    longest: int | None = None,
) -> dict[str, Any]:
    """{thought, action: {tool, arguments}}; `finish` is the tool that takes the report."""
    report = {
        "type": "object",
        "properties": {"report": {"type": "string"}, "meta": {"$ref": "#/$defs/meta"}},
        "required": ["report", "meta"],
        "additionalProperties": False,
    }
    given = [*((tool["name"], tool["parameters"]) for tool in tools), (finish, report)]
    variants = [_variant(name, portable(form, longest=longest)) for name, form in given]
    return {
        "type": "object",
        "properties": {
            "thought": {
                "type": "string",
                "maxLength": min(MAX_THOUGHT_CHARS, longest or MAX_THOUGHT_CHARS),
            },
            "action": {"anyOf": variants},
        },
        "required": ["thought", "action"],
        "additionalProperties": False,
        "$defs": {"meta": portable(meta, "#/$defs/meta", longest)},
    }


def _variant(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"tool": {"const": name}, "arguments": dict(arguments)},
        "required": ["tool", "arguments"],
        "additionalProperties": False,
    }
