"""What a config schema marks in a config, however it says it."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.store.nodes.schema import Schema
from engine.secrets.config_marks import AGENT, ENV, marked_values

ENVS: dict[str, Any] = {"type": "string", "format": "env"}
KEY = {"properties": {"key": ENVS}}


@pytest.mark.parametrize(
    ("schema", "config", "found"),
    [
        (ENVS, "A", ["A"]),
        (KEY, {"key": "A", "other": "B"}, ["A"]),
        (KEY, {}, []),
        ({"properties": {"key": {**ENVS, "default": "A"}}}, {}, ["A"]),
        ({"properties": {"key": {**ENVS, "default": "A"}}}, {"key": "B"}, ["B"]),
        ({"additionalProperties": ENVS, "properties": {"x": {}}}, {"x": "A", "y": "B"}, ["B"]),
        ({"patternProperties": {"_key$": ENVS}}, {"a_key": "A", "b": "B"}, ["A"]),
        ({"patternProperties": {"\\p{Lu}": ENVS}}, {"K": "A"}, ["A"]),
        ({"items": ENVS}, ["A", "B"], ["A", "B"]),
        ({"prefixItems": [{}, ENVS], "items": KEY}, ["A", "B", {"key": "C"}], ["B", "C"]),
        ({"contains": ENVS}, ["A"], ["A"]),
        ({"oneOf": [{"type": "null"}, KEY]}, {"key": "A"}, ["A"]),
        ({"anyOf": [{"allOf": [KEY]}]}, {"key": "A"}, ["A"]),
        ({"if": {"required": ["key"]}, "then": KEY, "else": {}}, {"key": "A"}, ["A"]),
        ({"dependentSchemas": {"more": KEY}}, {"more": 1, "key": "A"}, ["A"]),
        ({"dependentSchemas": {"more": KEY}}, {"key": "A"}, []),
        ({"$defs": {"a/b": ENVS}, "items": {"$ref": "#/$defs/a~1b"}}, ["A"], ["A"]),
        ({"$ref": "#/allOf/0", "allOf": [KEY]}, {"key": "A"}, ["A", "A"]),
        (KEY, ["key"], []),
        ({"items": ENVS}, {"key": "A"}, []),
        (True, "A", []),
    ],
)
def test_what_is_found(schema: Any, config: Any, found: list[str]) -> None:
    if isinstance(schema, dict):
        Schema(schema)  # what a package may bring
    assert list(marked_values(schema, config, ENV)) == found
    assert list(marked_values(schema, config, AGENT)) == []


def test_a_reference_to_nothing() -> None:
    for ref in ("#/$defs/x", "#/allOf/7", "#/title/x"):
        assert list(marked_values({"$ref": ref, "allOf": [], "title": "t"}, "A", ENV)) == []
