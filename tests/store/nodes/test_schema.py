from __future__ import annotations

from typing import Any

import pytest

from casfs.errors import Invalid
from casfs.store.nodes.ref_collectors import Ref
from casfs.store.nodes.schema import DIALECT, Schema, check_document
from tests.support.schema_payloads import h

A, B, C, D = h("a"), h("b"), h("c"), h("d")
REF = {"type": "string", "format": "cas_ref"}
NULLABLE = {"type": ["string", "null"], "format": "cas_ref"}
NUMBER = {"type": "number"}


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def hashes(document: dict[str, Any], payload: Any) -> list[str]:
    schema = Schema(document)
    schema.check(payload)
    return [ref.hash for ref in schema.refs(payload)]


# -- where refs are found -----------------------------------------------------------------

FOLLOWED: dict[str, tuple[dict[str, Any], Any, list[str]]] = {
    "root": (REF, A, [A]),
    "no refs at all": (obj(a={"type": "string"}), {"a": A}, []),
    "properties": (obj(a=REF, b={"type": "string"}), {"a": A, "b": B, "c": C}, [A]),
    "properties that are missing": (obj(a=REF), {}, []),
    "items": ({"items": REF}, [A, B, A], [A, B, A]),
    "items of objects": ({"items": obj(a=REF)}, [{"a": A}, {}, {"a": B}], [A, B]),
    "prefixItems": ({"prefixItems": [REF, True, REF]}, [A, B, C, D], [A, C]),
    "prefixItems of a short array": ({"prefixItems": [REF, REF]}, [A], [A]),
    "items after prefixItems": ({"prefixItems": [True, REF], "items": REF}, [A, B, C], [B, C]),
    "additionalProperties": (
        {**obj(a={"type": "string"}), "additionalProperties": REF},
        {"a": A, "b": B},
        [B],
    ),
    "additionalProperties beside patterns": (
        {"patternProperties": {"^x-": True}, "additionalProperties": REF},
        {"x-a": A, "a": B},
        [B],
    ),
    "a pattern ends where the validator says": (
        {"patternProperties": {"^a$": True}, "additionalProperties": REF},
        {"a": A, "a\n": B},
        [B],
    ),
    "patternProperties": ({"patternProperties": {"^r": REF}}, {"r1": A, "xr": B}, [A]),
    "properties and patternProperties of one key": (
        {**obj(ra=REF), "patternProperties": {"^r": REF, "a$": REF}},
        {"ra": A},
        [A, A, A],
    ),
    "allOf": ({"allOf": [obj(a=REF), obj(b=REF)]}, {"a": A, "b": B}, [A, B]),
    "anyOf": ({"anyOf": [REF, NUMBER]}, A, [A]),
    "anyOf of other branch": ({"anyOf": [REF, NUMBER]}, 1, []),
    "anyOf of all that validate": ({"anyOf": [obj(a=REF), obj(b=REF)]}, {"a": A, "b": B}, [A, B]),
    "oneOf": (
        {"oneOf": [{**obj(k={"const": 1}, a=REF)}, {**obj(k={"const": 2}, a={"type": "string"})}]},
        {"k": 1, "a": A},
        [A],
    ),
    "oneOf of other branch": (
        {"oneOf": [{**obj(k={"const": 1}, a=REF)}, {**obj(k={"const": 2}, a={"type": "string"})}]},
        {"k": 2, "a": A},
        [],
    ),
    "then": (
        {"if": obj(k={"const": 1}), "then": obj(a=REF), "else": obj(b=REF)},
        {"k": 1, "a": A, "b": B},
        [A],
    ),
    "else": (
        {"if": obj(k={"const": 1}), "then": obj(a=REF), "else": obj(b=REF)},
        {"k": 2, "a": A, "b": B},
        [B],
    ),
    "if": ({"if": obj(a=REF)}, {"a": A}, [A]),
    "if that fails": ({"if": obj(a=REF)}, {"a": "text"}, []),
    "then without if": ({"then": obj(a=REF)}, {"a": A}, []),
    "contains": ({"contains": REF}, ["text", A, 1, B], [A, B]),
    "contains beside items": ({"contains": REF, "items": True}, [A], [A]),
    "dependentSchemas": ({"dependentSchemas": {"k": obj(a=REF)}}, {"k": 1, "a": A}, [A]),
    "dependentSchemas without its key": ({"dependentSchemas": {"k": obj(a=REF)}}, {"a": A}, []),
    "$ref": (
        {"$defs": {"r": REF}, **obj(a={"$ref": "#/$defs/r"})},
        {"a": A},
        [A],
    ),
    "$ref beside properties": (
        {"$defs": {"r": obj(a=REF)}, "$ref": "#/$defs/r", **obj(b=REF)},
        {"a": A, "b": B},
        [A, B],
    ),
    "$ref to $ref": (
        {"$defs": {"r": {"$ref": "#/$defs/s"}, "s": REF}, "items": {"$ref": "#/$defs/r"}},
        [A],
        [A],
    ),
    "$ref with escapes": (
        {
            "$defs": {"a b/~é": {"anyOf": [REF, NUMBER]}},
            "prefixItems": [
                {"$ref": "#/$defs/a%20b~1~0%C3%A9"},
                {"$ref": "#/%24defs/a%20b~1~0%C3%A9"},
            ],
        },
        [A, B],
        [A, B],
    ),
    "$ref into a list of branches": (
        {"anyOf": [{"items": REF}, {}], **obj(a={"$ref": "#/anyOf/0"})},
        {"a": [A]},
        [A],
    ),
    "branches under keys with signs": (
        obj(**{"a b/~%é": {"oneOf": [REF, {"type": "null"}]}}),
        {"a b/~%é": A},
        [A],
    ),
    "recursive #": (
        {**obj(a=REF, next={"$ref": "#"}), "required": ["a"]},
        {"a": A, "next": {"a": B, "next": {"a": C}}},
        [A, B, C],
    ),
    "recursive list": (
        {"$defs": {"t": {"anyOf": [REF, {"items": {"$ref": "#/$defs/t"}}]}}, "$ref": "#/$defs/t"},
        [A, [B, [C]], []],
        [A, B, C],
    ),
    "nullable with a hash": (obj(a=NULLABLE), {"a": A}, [A]),
    "nullable with null": (obj(a=NULLABLE), {"a": None}, []),
    "nullable union": (obj(a={"anyOf": [REF, {"type": "null"}]}), {"a": A}, [A]),
    "tuples of Python": ({"items": REF, "contains": REF}, (A,), [A, A]),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_refs_are_followed_through(name: str) -> None:
    document, payload, refs = FOLLOWED[name]
    assert hashes(document, payload) == refs


def test_a_ref_into_a_branch_is_followed() -> None:
    document = {
        "$defs": {"c": {"oneOf": [{"type": "null"}, REF]}},
        **obj(a={"$ref": "#/$defs/c/oneOf/1"}, b={"$ref": "#/properties/a"}),
    }
    assert hashes(document, {"a": A, "b": B}) == [A, B]


def test_the_type_of_the_target_comes_with_the_ref() -> None:
    schema = Schema(obj(a={**REF, "cas_type": "content"}, b=REF))
    assert schema.refs({"a": A, "b": B}) == [Ref(A, "content"), Ref(B, None)]


# -- cas_ref asserts ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "abc", A[:63], A + "0", A.upper(), "g" * 64, A + "\n", " " + A, A[:63] + "ä"]
)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda ref: ref,
        lambda ref: {**ref, "pattern": "."},
        lambda ref: {"allOf": [ref]},
        lambda ref: {"$defs": {"r": ref}, "$ref": "#/$defs/r"},
        lambda ref: {**ref, "pattern": ".", "allOf": [True]},
    ],
)
def test_a_ref_is_64_hex_characters(text: str, wrap: Any) -> None:
    schema = Schema(wrap(REF))
    schema.check(A)
    with pytest.raises(Invalid):
        schema.check(text)


def test_a_pattern_beside_a_ref_still_counts() -> None:
    schema = Schema({**REF, "pattern": "^a"})
    schema.check("a" * 64)
    with pytest.raises(Invalid):
        schema.check("b" * 64)


def test_a_local_ref_says_so() -> None:
    schema = Schema(obj(a={**REF, "cas_local": True}, b={**REF, "cas_local": False}))
    assert schema.refs({"a": A, "b": B}) == [Ref(A, None, is_local=True), Ref(B, None)]


def test_a_weak_ref_says_so() -> None:
    schema = Schema(obj(a={**REF, "cas_weak": True}, b=REF))
    refs = schema.refs({"a": A, "b": B})
    assert refs == [Ref(A, None, is_weak=True), Ref(B, None)]
    assert [ref.may_dangle for ref in refs] == [True, False]


def test_what_looks_like_a_ref_in_data_is_none() -> None:
    document = obj(a={"const": {"format": "cas_ref"}}, b={"enum": [{"format": "cas_ref"}]})
    payload = {"a": {"format": "cas_ref"}, "b": {"format": "cas_ref"}}
    assert hashes(document, payload) == []


# -- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"unevaluatedProperties": REF}, "$: the keyword 'unevaluatedProperties'"),
        ({"unevaluatedItems": REF}, "'unevaluatedItems'"),
        ({"items": {"$dynamicRef": "#a"}}, "$.items: the keyword '$dynamicRef'"),
        ({"$anchor": "a"}, "'$anchor'"),
        ({"definitions": {"a": REF}}, "'definitions'"),
        ({"dependencies": {"a": REF}}, "'dependencies'"),
        (obj(a={"contentSchema": REF}), "$.properties.a: the keyword 'contentSchema'"),
        ({"anyOf": [True, {"cas-ref": 1}]}, "$.anyOf[1]: the keyword 'cas-ref'"),
        (obj(a={"$id": "inner"}), "$.properties.a: the keyword '$id'"),
        ({"not": REF}, "$.not: a cas_ref there"),
        ({"not": {"allOf": [REF]}}, "$.not: a cas_ref there"),
        ({"propertyNames": REF}, "$.propertyNames: a cas_ref there"),
        ({"not": {"$ref": "#/$defs/r"}, "$defs": {"r": REF}}, "$.not: a cas_ref there"),
        ({"$ref": "https://example.org/s"}, "$ref 'https://example.org/s' leads out"),
        ({"items": {"$ref": "other"}}, "$.items: $ref 'other' leads out"),
        ({"$ref": "#anchor"}, "$ref '#anchor' leads out"),
        ({"$ref": 7}, "$ref 7 leads out"),
        ({"$ref": "#/$defs/none"}, "$ref '#/$defs/none' leads to no subschema"),
        ({"$ref": "#/default", "default": {"format": "cas_ref"}}, "leads to no subschema"),
        ({"$ref": "#/properties", **obj(a=REF)}, "leads to no subschema"),
        ({"$ref": "#"}, "a $ref leads back here"),
        ({"allOf": [{"$ref": "#"}]}, "a $ref leads back here"),
        (
            {
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
                "items": {"$ref": "#/$defs/a"},
            },
            "a $ref leads back here",
        ),
        ({"type": "string", "cas_type": "content"}, 'cas_type stands only beside "format"'),
        (obj(a={**REF, "cas_type": 5}), "$.properties.a.cas_type: must be the name"),
        ({"type": "string", "cas_local": True}, 'cas_local stands only beside "format"'),
        ({"type": "string", "cas_weak": True}, 'cas_weak stands only beside "format"'),
        (obj(a={**REF, "cas_local": "yes"}), "$.properties.a.cas_local: must be true or false"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "is understood"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "is understood"),
        ({"properties": {"a": 5}}, "$.properties.a: a schema must be an object or a boolean"),
        ({"properties": []}, "$: a keyword's value is not a schema"),
        ({"allOf": 5}, "$: a keyword's value is not a schema"),
        ({"items": [True]}, "$.items: a schema must be"),
        ({"type": "text"}, "not a usable schema"),
        ({"pattern": "("}, "not a usable schema"),
        ({"patternProperties": {"(": REF}}, "not a usable schema"),
        ({"title": "\ud800"}, "$.title: lone surrogate"),
        ([], "a schema must be an object"),
        (True, "a schema must be an object"),
    ],
)
def test_a_schema_is_refused(document: Any, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        Schema(document)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_very_deep_schema_is_refused() -> None:
    document: dict[str, Any] = {}
    for _ in range(5000):
        document = {"items": document}
    with pytest.raises(Invalid, match="nested deeper"):
        Schema(document)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"unevaluatedProperties": False, "unevaluatedItems": True},
        {"$comment": "c", "title": "t", "description": "d", "examples": [REF], "default": REF},
        {"not": {"type": "string"}, "propertyNames": {"maxLength": 3}},
        {"additionalProperties": False, "items": False, "$schema": DIALECT},
        {"dependentRequired": {"a": ["b"]}, "const": 1, "enum": [1], "multipleOf": 1},
    ],
)
def test_a_harmless_schema_is_accepted(document: dict[str, Any]) -> None:
    Schema(document)


def test_root_keywords_of_ours_are_no_assertion() -> None:
    Schema({"$id": "x", "type": "object"}).check({})
    schema = Schema({"name": "x-meta", "type": "object"}, extra=frozenset({"name"}))
    schema.check({})
    with pytest.raises(Invalid, match="'name'"):
        Schema({"name": "x-meta"})


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"type": "object"}, "$id"),
        ({"$id": 7}, "$id"),
        ({"$id": ""}, "$id"),
        ({"$id": "Note"}, "$id"),
        ({"$id": "my_note"}, "$id"),
        ({"$id": "a" * 65}, "$id"),
        ({"$id": "note\n"}, "$id"),
        ({"$id": "note", "$schema": "http://json-schema.org/draft-07/schema#"}, "is understood"),
        ({"$id": "note", "required": "a"}, "$.required"),
        ({"$id": "note", "properties": {"a": {"minLength": -1}}}, "$.properties.a.minLength"),
        ({"$id": "note", "keyword": 1}, "'keyword'"),
        ({"$id": "note", "title": "\ud800"}, "$.title"),
        ({"$id": "note", "maximum": float("nan")}, "$.maximum"),
        ([], "must be an object"),
        (None, "must be an object"),
    ],
)
def test_a_document_is_refused(document: Any, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_document(document)
    assert words in str(caught.value)


def test_a_document_gives_its_name() -> None:
    assert check_document({"$id": "note-2", "$schema": DIALECT, **obj(a=REF)}) == "note-2"


# -- faults of a payload ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ([], "$: "),
        ({}, "$: "),
        ({"a": [{"b": 1}, {"b": "x"}]}, "$.a[1].b: "),
        ({"a": [], "c d": 1}, '$["c d"]: '),
    ],
)
def test_the_fault_of_a_payload_is_located(payload: Any, path: str) -> None:
    schema = Schema(
        {
            **obj(a={"type": "array", "items": obj(b=NUMBER)}, **{"c d": {"type": "string"}}),
            "required": ["a"],
        }
    )
    with pytest.raises(Invalid) as caught:
        schema.check(payload)
    assert str(caught.value).startswith(path)


def test_a_fault_is_one_short_line() -> None:
    with pytest.raises(Invalid) as caught:
        Schema({"type": "number"}).check("line\n" * 10_000)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_a_fault_in_a_branch_is_named() -> None:
    one = {"required": ["a"], "properties": {"a": {}}, "additionalProperties": False}
    other = {"required": ["b"], "properties": {"b": {}}, "additionalProperties": False}
    schema = Schema({"type": "object", "oneOf": [one, other]})
    with pytest.raises(Invalid, match="'typo' was unexpected"):
        schema.check({"a": 1, "typo": 2})
    with pytest.raises(Invalid, match="'typo' was unexpected"):
        schema.check({"typo": 2})


@pytest.mark.parametrize(
    ("document", "value", "fault"),
    [
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}, "one of a or b is required"),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"a": 1, "b": 2},
            "a and b exclude each other; give one",
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]},
            5,
            "must be of type string or object",
        ),
        ({"anyOf": [{"const": 1}, {"const": 2}]}, 3, "1 was expected; or 2 was expected"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 0}]}, 5, "more than one of the schemas"),
    ],
)
def test_where_no_branch_stands_out_all_are_named(document: Any, value: Any, fault: str) -> None:
    nested = {"properties": {"x": {"$ref": "#/$defs/d"}}, "$defs": {"d": document}}
    with pytest.raises(Invalid, match=f"x: .*{fault}"):
        Schema(nested).check({"x": value})
