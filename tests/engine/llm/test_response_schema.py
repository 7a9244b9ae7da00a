"""Role-schemas in the words of a model's server."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.errors import Invalid
from casfs.store.nodes.schema import Schema
from engine.llm import response_schema

HASH = "0" * 64
ROLE: dict[str, Any] = {
    "name": "report",
    "$id": "report",
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "part": {"type": "string", "format": "cas_ref", "cas_type": "content"},
        "day": {"type": "string", "format": "date"},
        "format": {"enum": ["cas_ref"]},
        "next": {"$ref": "#/$defs/item"},
        "all": {"type": "array", "items": {"$ref": "#"}},
    },
    "$defs": {"item": {"anyOf": [{"const": {"$ref": "#/x"}}, {"type": "null"}]}},
    "required": ["part"],
}


def test_ours_is_left_out() -> None:
    found = response_schema.portable(ROLE)
    assert found == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "part": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "day": {"type": "string", "format": "date"},
            "format": {"enum": ["cas_ref"]},
            "next": {"$ref": "#/$defs/item"},
            "all": {"type": "array", "items": {"$ref": "#"}},
        },
        "$defs": {"item": {"anyOf": [{"const": {"$ref": "#/x"}}, {"type": "null"}]}},
        "required": ["part"],
    }


def test_references_move_with_their_document() -> None:
    found = response_schema.portable(ROLE, "#/$defs/meta")
    assert found["properties"]["next"] == {"$ref": "#/$defs/meta/$defs/item"}
    assert found["properties"]["all"]["items"] == {"$ref": "#/$defs/meta"}
    assert found["$defs"]["item"]["anyOf"][0] == {"const": {"$ref": "#/x"}}


def test_an_action_is_checked_to_the_leaves_of_the_meta() -> None:
    role = {**ROLE, "properties": {key: ROLE["properties"][key] for key in ("part", "next")}}
    schema = Schema(response_schema.action_schema([], "finish", role))

    def report(meta: Any) -> Any:
        arguments = {"report": "", "meta": meta}
        return {"thought": "", "action": {"tool": "finish", "arguments": arguments}}

    schema.check(report({"part": HASH, "next": None}))
    for meta in ({}, {"part": "x"}, {"part": HASH, "next": 3}):
        with pytest.raises(Invalid):
            schema.check(report(meta))


def test_what_has_no_bound_is_bounded() -> None:
    schema = {
        "name": "n",
        "properties": {
            "free": {"type": "string"},
            "maybe": {"type": ["string", "null"]},
            "own": {"type": "string", "maxLength": 3},
            "fixed": {"type": "string", "const": "a long constant"},
            "part": {"type": "string", "format": "cas_ref"},
            "many": {"type": "array", "items": {"type": "string"}},
            "number": {"type": "integer"},
        },
    }
    assert response_schema.portable(schema, longest=9)["properties"] == {
        "free": {"type": "string", "maxLength": 9},
        "maybe": {"type": ["string", "null"], "maxLength": 9},
        "own": {"type": "string", "maxLength": 3},
        "fixed": {"type": "string", "const": "a long constant"},
        "part": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "many": {"type": "array", "maxItems": 20, "items": {"type": "string", "maxLength": 9}},
        "number": {"type": "integer"},
    }
    tool = {"name": "t", "parameters": {"properties": {"x": {"type": "string"}}}}
    variants = response_schema.action_schema([tool], "finish", schema, 9)["properties"]["action"][
        "anyOf"
    ]
    given = variants[0]["properties"]["arguments"]
    assert given == {"properties": {"x": {"type": "string", "maxLength": 9}}}
    report = variants[1]["properties"]["arguments"]["properties"]["report"]
    assert report == {"type": "string", "maxLength": 9}
