"""What a config schema marks in a config: by `format`, at any depth.

    env      a string that names a variable whose value is a secret (`engine.secrets`)
    agent    an object {name, config, version} that names a further agent

A schema may say a thing in many ways, and what is overlooked here would be recorded in clear or
checked too late. So every keyword that can apply to a part of the config is followed, a branch of
`oneOf` or `if` whether it is the one that holds or not; and a property that the config leaves out
counts with its default. What is found more often than it is meant does no harm.

The schema is one that `casfs.nodes.schema` accepts: no `$ref` leads out of it, or in a circle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

ENV, AGENT = "env", "agent"
COMBINATORS = ("allOf", "anyOf", "oneOf")
CONDITIONALS = ("if", "then", "else")


def marked_values(schema: Any, config: Any, format: str) -> Iterator[Any]:
    """The parts of `config` that `schema` marks so."""
    yield from _marked(schema, config, format, schema)


def _marked(schema: Any, config: Any, format: str, root: Any) -> Iterator[Any]:
    if not isinstance(schema, Mapping):
        return
    if schema.get("format") == format:
        yield config
    for part, value in (*_in_place(schema, config, root), *_below(schema, config)):
        yield from _marked(part, value, format, root)


def _in_place(schema: Mapping[str, Any], config: Any, root: Any) -> Iterator[tuple[Any, Any]]:
    """(schema, value) for what else is said of the same value."""
    for key in COMBINATORS:
        yield from ((one, config) for one in schema.get(key, ()))
    yield from ((schema[key], config) for key in CONDITIONALS if key in schema)
    if isinstance(config, Mapping):
        dependent = schema.get("dependentSchemas", {})
        yield from ((dependent[key], config) for key in dependent if key in config)
    if "$ref" in schema:
        yield _target(root, schema["$ref"]), config


def _below(schema: Mapping[str, Any], config: Any) -> Iterator[tuple[Any, Any]]:
    """(schema, value) for the members of an object, and the items of an array."""
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
    except re.error:  # another dialect's
        return True


def _target(root: Any, ref: str) -> Any:
    """What a `#/…` leads to; None where that is nothing."""
    found = root
    for part in ref.removeprefix("#").split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
