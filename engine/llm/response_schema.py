"""JSON Schemas for a model server's structured output.

A role-schema has keywords of ours (`name`, `cas_type`, the format `cas_ref`), which a server
may refuse or ignore; `portable` replaces them by standard ones. `action_schema` is the schema of
one step of a reactor: a variant for each tool, and one for the report.

`longest` bounds strings and arrays that the schema leaves unbounded. A server that forces a small
model to write JSON cannot force it to end a string, and such a model repeats itself until its
answer is cut off in the middle of the object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from casfs.store.nodes.schema_dialect import HASH_PATTERN, map_subschemas

CASFS_ROOT_KEYWORDS = ("name", "$id", "$schema")
MAX_THOUGHT_CHARS = 500
MAX_ITEMS = 20  # of an array that is bounded here


def portable(
    schema: Mapping[str, Any], root: str = "#", longest: int | None = None
) -> dict[str, Any]:
    """Returns a role-schema in standard JSON Schema. `root`: its pointer in a larger document;
    `longest`: characters of a string without a limit of its own."""
    document = {key: value for key, value in schema.items() if key not in CASFS_ROOT_KEYWORDS}
    plain: dict[str, Any] = _plain(root, longest, document)
    return plain


def _plain(root: str, longest: int | None, schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    plain = map_subschemas(schema, partial(_plain, root, longest))
    plain.pop("cas_type", None)
    if "$ref" in plain:
        plain["$ref"] = root + plain["$ref"][1:]
    if plain.get("format") == "cas_ref":
        del plain["format"]
        plain["pattern"] = HASH_PATTERN
    return plain if longest is None else {**_bounds(plain, longest), **plain}


def _bounds(schema: Mapping[str, Any], longest: int) -> dict[str, int]:
    """Returns bounds for the types of a schema; its own keywords override them."""
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
    """Returns the schema of {thought, action: {tool, arguments}}; `finish`: the name of the tool
    that takes the report."""
    report = {
        "type": "object",
        "properties": {"report": {"type": "string"}, "meta": {"$ref": "#/$defs/meta"}},
        "required": ["report", "meta"],
        "additionalProperties": False,
    }
    actions = [*((tool["name"], tool["parameters"]) for tool in tools), (finish, report)]
    variants = [_variant(name, portable(form, longest=longest)) for name, form in actions]
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
