"""The parts of a config that its schema marks with a `format`, at any depth.

    env      a string that names a variable whose value is a secret (`engine.secrets.redaction`)
    variable a string that names a variable whose value is none
    agent    a text, or {package, config, version}, that names a nested agent
    jsonata  a string: an expression over a called thread (`engine.moderator.rules.result_errors`)

A missed mark would be recorded in clear or checked too late. So every keyword that can apply to a
part of the config is followed, each branch of `oneOf` or `if` whether it holds or not; and a
property that the config leaves out counts with its default. False positives do no harm.

The schema is one that `casfs.nodes.schema` accepts: no `$ref` leads out of it, or in a circle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from casfs.nodes.schema_dialect import IN_PLACE, ref_target, subschemas

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
        for key, one in known.items():
            if key in config:
                yield one, config[key]
            elif isinstance(one, Mapping) and "default" in one:
                yield one, one["default"]
        for key, value in config.items():
            patterns = schema.get("patternProperties", {})
            fitting = [one for pattern, one in patterns.items() if _fits(pattern, key)]
            yield from ((one, value) for one in fitting)
            if key not in known and not fitting:
                yield schema.get("additionalProperties"), value
    elif isinstance(config, list | tuple):
        first = schema.get("prefixItems", ())
        for place, value in enumerate(config):
            yield first[place] if place < len(first) else schema.get("items"), value
            yield schema.get("contains"), value


def _fits(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:  # a pattern of another dialect
        return True


def _target(root: Any, ref: str) -> Any:
    """Returns the subschema that a `#/…` points to, None where there is none."""
    found = root
    for key in ref_target(ref):
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
