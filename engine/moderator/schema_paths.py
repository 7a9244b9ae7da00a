"""What a schema says about the value at a path of property names.

Lenient: keywords that this module does not understand (`$ref`, `pattern`, `not`, …) allow all. A
path goes through arrays, as a JSONata path does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BRANCHES = ("oneOf", "anyOf", "allOf")
_CONDITIONAL = ("if", "then", "else")
_UNKNOWN = ("$ref", "$dynamicRef", "patternProperties", "unevaluatedProperties")


def allows(schema: Any, fields: Sequence[str]) -> bool:
    """Returns whether a payload that fits `schema` can have a value at the path `fields`."""
    if not isinstance(schema, Mapping):
        return schema is not False
    for keyword in ("oneOf", "anyOf"):
        if keyword in schema and not any(allows(branch, fields) for branch in schema[keyword]):
            return False
    if not all(allows(branch, fields) for branch in schema.get("allOf", ())):
        return False
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if listed is not None:
        return any(_has(constant, fields) for constant in listed)
    types = _types(schema)
    items = (*schema.get("prefixItems", ()), schema.get("items", True))
    if "array" in types and any(allows(item, fields) for item in items):
        return True  # a path goes through arrays
    return not fields or ("object" in types and _allows_field(schema, fields))


def _allows_field(schema: Mapping[str, Any], fields: Sequence[str]) -> bool:
    known = schema.get("properties", {})
    if fields[0] in known:
        return allows(known[fields[0]], fields[1:])
    if "patternProperties" in schema:
        return True
    return allows(schema.get("additionalProperties", True), fields[1:])


def _has(data: Any, fields: Sequence[str]) -> bool:
    """Returns whether `data` has a value at the path `fields`."""
    if isinstance(data, list):
        return any(_has(item, fields) for item in data)
    if not fields:
        return True
    return isinstance(data, Mapping) and _has(data.get(fields[0]), fields[1:])


def _types(schema: Mapping[str, Any]) -> Sequence[str]:
    types = schema.get("type", ("null", "boolean", "number", "string", "object", "array"))
    return (types,) if isinstance(types, str) else types


def declares(schema: Any, fields: Sequence[str]) -> bool:
    """Returns whether `schema` names the path `fields`; also true where it names no properties at
    all, or may name them in a way that this module does not follow."""
    known = list(_parts(schema))
    if not fields or not all(isinstance(part, Mapping) for part in known):
        return True
    if any(key in part for part in known for key in _UNKNOWN):
        return True
    if any(isinstance(part.get("additionalProperties"), Mapping) for part in known):
        return True
    if any("items" in part and declares(part["items"], fields) for part in known):
        return True
    named = [part["properties"] for part in known if "properties" in part]
    subschemas = [properties[fields[0]] for properties in named if fields[0] in properties]
    return not named or any(declares(subschema, fields[1:]) for subschema in subschemas)


def properties(schema: Any) -> list[str]:
    """Returns the names of the properties that a schema declares."""
    parts = [part for part in _parts(schema) if isinstance(part, Mapping)]
    return list(dict.fromkeys(name for part in parts for name in part.get("properties", ())))


def _parts(schema: Any) -> Iterator[Any]:
    """Yields a schema and the schemas that it is put together from."""
    yield schema
    if isinstance(schema, Mapping):
        below = [branch for key in _BRANCHES for branch in schema.get(key, ())]
        for subschema in (*below, *(schema[key] for key in _CONDITIONAL if key in schema)):
            yield from _parts(subschema)
