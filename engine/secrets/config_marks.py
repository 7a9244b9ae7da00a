"""The parts of a config that its schema marks with a `format`, at any depth.

    env      a string that names a variable whose value is a secret (`engine.secrets.redaction`)
    variable a string that names a variable whose value is none
    agent    a text, or {package, config, version}, that names a nested agent
    jsonata  a string: an expression over a called thread (`engine.moderator.rules.result_errors`)

A missed mark would be recorded in clear or checked too late. So every keyword that can apply to a
part of the config is followed, each branch of `oneOf` or `if` whether it holds or not; and a
property that the config leaves out counts with its default. False positives do no harm.

The schema is one that `casfs.store.nodes.schema` accepts: no `$ref` leads out of it, or in a
circle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from casfs.store.nodes.schema_dialect import IN_PLACE, ref_target, subschemas

ENV = "env"
VARIABLE = "variable"
AGENT = "agent"
EXPRESSION = "jsonata"


def marked_values(schema: Any, config: Any, format: str) -> Iterator[Any]:
    """Yields the parts of `config` that `schema` marks with `format`."""
    yield from _walk(schema, config, format=format, root=schema)


def _walk(schema: Any, config: Any, format: str, root: Any) -> Iterator[Any]:
    if not isinstance(schema, Mapping):
        return
    if schema.get("format") == format:
        yield config
    for part, value in (*_in_place(schema, config, root), *_below(schema, config)):
        yield from _walk(part, value, format=format, root=root)


def _in_place(schema: Mapping[str, Any], config: Any, root: Any) -> Iterator[tuple[Any, Any]]:
    """Yields (schema, value) of the subschemas that apply to the same value."""
    for (keyword, *name), sub in subschemas(dict(schema)):
        present = isinstance(config, Mapping) and name[:1] and name[0] in config
        if keyword in IN_PLACE and (keyword != "dependentSchemas" or present):
            yield sub, config
    if "$ref" in schema:
        yield _target(root, schema["$ref"]), config


def _below(schema: Mapping[str, Any], config: Any) -> Iterator[tuple[Any, Any]]:
    """Yields (schema, value) for the members of an object, and the items of an array."""
    if isinstance(config, Mapping):
        known = schema.get("properties", {})
        for key, member_schema in known.items():
            if key in config:
                yield member_schema, config[key]
            elif isinstance(member_schema, Mapping) and "default" in member_schema:
                yield member_schema, member_schema["default"]
        for key, value in config.items():
            patterns = schema.get("patternProperties", {})
            fitting = [
                pattern_schema
                for pattern, pattern_schema in patterns.items()
                if _fits(pattern, key)
            ]
            yield from ((fitting_schema, value) for fitting_schema in fitting)
            if key not in known and not fitting:
                yield schema.get("additionalProperties"), value
    elif isinstance(config, list | tuple):
        first = schema.get("prefixItems", ())
        for index, value in enumerate(config):
            yield first[index] if index < len(first) else schema.get("items"), value
            yield schema.get("contains"), value


def _fits(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:  # a pattern of another dialect
        return True


def _target(root: Any, ref: str) -> Any:
    """Returns the subschema that a `#/…` points to, None where there is none."""
    subschema = root
    for key in ref_target(ref):
        if isinstance(subschema, Mapping):
            subschema = subschema.get(key)
        elif isinstance(subschema, list) and key.isdecimal() and int(key) < len(subschema):
            subschema = subschema[int(key)]
        else:
            return None
    return subschema
