"""The accepted dialect of JSON Schema: its keywords, and how a document may use them.

A keyword that is not in these lists could apply a subschema and hide a reference from gc;
a `$ref` out of the document, or in a cycle, could not be followed. Both are refused here,
before anything is compiled. `casfs.store.nodes.schema` applies a schema to a payload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from casfs.canonical import member
from casfs.errors import Invalid

DIALECT = "https://json-schema.org/draft/2020-12/schema"
HASH_PATTERN = "^[0-9a-f]{64}$"
MAX_MESSAGE_CHARS = 200  # of a validator, which may quote the whole payload

ONE = {"additionalProperties", "items", "contains", "if", "then", "else", "not", "propertyNames"}
LIST = {"allOf", "anyOf", "oneOf", "prefixItems"}
MAP = {"properties", "patternProperties", "$defs", "dependentSchemas"}
IN_PLACE = {"allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas"}
ASSERTIONS = set(
    "$schema $comment title description default examples deprecated readOnly writeOnly "
    "contentEncoding contentMediaType type enum const multipleOf maximum exclusiveMaximum "
    "minimum exclusiveMinimum maxLength minLength pattern maxItems minItems uniqueItems "
    "maxContains minContains maxProperties minProperties required dependentRequired "
    "format cas_type cas_local cas_weak $ref".split()
)

Document = Any  # a schema: an object or a boolean
Place = tuple[str, ...]  # the keys on the way from a document's root to a subschema


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Place, Document]]:
    """Yields the direct subschemas, each with its place below `schema`."""
    for key, value in schema.items():
        if key in ONE:
            yield (key,), value
        elif key in LIST:
            yield from (((key, str(index)), sub) for index, sub in enumerate(value))
        elif key in MAP:
            yield from (((key, name), sub) for name, sub in value.items())


def walk(schema: Document, location: Place) -> Iterator[tuple[Place, Document]]:
    """Yields `schema` and all subschemas with their places. Raises Invalid."""
    yield location, schema
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise Invalid(f"{spot(location)}: a schema must be an object or a boolean")
    _refuse_unknown(schema, spot(location))
    try:
        below = list(subschemas(schema))
    except (TypeError, AttributeError):
        raise Invalid(f"{spot(location)}: a keyword's value is not a schema") from None
    for step, sub in below:
        yield from walk(sub, location + step)


def _refuse_unknown(schema: dict[str, Any], path: str) -> None:
    for key, value in schema.items():
        boolean = key in ("unevaluatedItems", "unevaluatedProperties") and isinstance(value, bool)
        if not (boolean or key in ASSERTIONS or key in ONE or key in LIST or key in MAP):
            raise Invalid(
                f"{path}: the keyword {key!r} is not understood, it could hide a reference"
            )
    if schema.get("$schema", DIALECT) != DIALECT:
        raise Invalid(f'{path}["$schema"]: only {DIALECT} is understood')
    target = schema.get("$ref", "#")
    if not isinstance(target, str) or not re.match(r"#(/|\Z)", target):
        raise Invalid(f"{path}: $ref {target!r} leads out of the schema")
    if "cas_type" in schema and schema.get("format") != "cas_ref":
        raise Invalid(f'{path}: cas_type stands only beside "format": "cas_ref"')
    if not isinstance(schema.get("cas_type", ""), str):
        raise Invalid(f"{path}.cas_type: must be the name of a type")
    for key in ("cas_local", "cas_weak"):
        if key in schema and schema.get("format") != "cas_ref":
            raise Invalid(f'{path}: {key} stands only beside "format": "cas_ref"')
        if not isinstance(schema.get(key, False), bool):
            raise Invalid(f"{path}.{key}: must be true or false")
    for key in ("not", "propertyNames"):
        if isinstance(schema.get(key), dict) and has_refs(schema[key]):
            raise Invalid(f"{path}.{key}: a cas_ref there could never be followed")


def has_refs(schema: dict[str, Any]) -> bool:
    """Returns False only when no value can have a ref under `schema` (a `$ref` counts as one)."""
    if schema.get("format") == "cas_ref" or "$ref" in schema:
        return True
    return any(isinstance(sub, dict) and has_refs(sub) for _, sub in subschemas(schema))


def map_subschemas(
    schema: dict[str, Any], convert: Callable[[Document], Document]
) -> dict[str, Any]:
    """Returns a copy of `schema` with each direct subschema converted."""
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ONE:
            copy[key] = convert(value)
        elif key in LIST:
            copy[key] = [convert(sub) for sub in value]
        elif key in MAP:
            copy[key] = {name: convert(sub) for name, sub in value.items()}
        else:
            copy[key] = value
    return copy


def assert_refs(schema: Document) -> Document:
    """Returns the schema with the 64 hex characters of each cas_ref as an assertion."""
    if not isinstance(schema, dict):
        return schema
    copy = map_subschemas(schema, assert_refs)
    if copy.get("format") == "cas_ref":
        if "pattern" in copy:
            copy["allOf"] = [*copy.get("allOf", []), {"pattern": HASH_PATTERN}]
        else:
            copy["pattern"] = HASH_PATTERN
    return copy


def ref_target(target: str) -> Place:
    """Returns the place that a `$ref` leads to: a JSON pointer inside a URI fragment."""
    parts = unquote(target[2:]).split("/") if target != "#" else []
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def spot(location: Place) -> str:
    """Returns a place in a schema as a JSON path."""
    return path(int(part) if part.isdecimal() else part for part in location)


def path(parts: Iterable[str | int]) -> str:
    path = "$"
    for part in parts:
        path = f"{path}[{part}]" if isinstance(part, int) else member(path, part)
    return path


def line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
