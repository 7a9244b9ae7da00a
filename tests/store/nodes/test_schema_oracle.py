"""Schema against jsonschema as the oracle: validity, and that no asserted ref is missed."""

from __future__ import annotations

import copy
import random
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from casfs.errors import Invalid
from casfs.store.nodes.registry import builtin
from casfs.store.nodes.schema import Schema
from tests.support.schema_examples import EXAMPLES
from tests.support.schema_payloads import h

A, B, C, D = h("a"), h("b"), h("c"), h("d")
REF = {"type": "string", "format": "cas_ref"}
NULLABLE = {"type": ["string", "null"], "format": "cas_ref"}
NUMBER = {"type": "number"}


DOCUMENTS = builtin()
FAST = {name: Schema(document) for name, document in DOCUMENTS.items()}
# No text with a line feed at its end: Python's `$` matches before it, JSON Schema's does not.
ODD = [None, True, 0, -1, 1.5, "", "text", A, A + "0", [], {}, [A], {"name": "x"}]


def oracle(document: Any) -> jsonschema.Draft202012Validator:
    """The other library, told of the 64 hex characters by a pattern of its own."""
    formats = jsonschema.FormatChecker(formats=())
    formats.checks("cas_ref")(
        lambda value: not isinstance(value, str) or (len(value) == 64 and not set(value) - HEX)
    )
    return jsonschema.Draft202012Validator(document, format_checker=formats)


HEX = set("0123456789abcdef")
SLOW = {name: oracle(document) for name, document in DOCUMENTS.items()}


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    return [at, *(place for key, item in items for place in places(item, (*at, key)))]


def mutate(payload: Any, order: random.Random) -> Any:
    """A copy with one value replaced, removed or doubled, or a member added."""
    box = [copy.deepcopy(payload)]
    *keys, last = (0, *order.choice(places(payload)))
    parent: Any = box
    for key in keys:
        parent = parent[key]
    action = order.choice(["replace", "remove", "double", "add"])
    if action == "remove" and len(keys) > 0:
        del parent[last]
    elif action == "double" and isinstance(parent, list) and keys:
        parent.append(copy.deepcopy(parent[last]))
    elif action == "add" and isinstance(parent[last], dict):
        parent[last][order.choice(["", "name", "extra", "target_base64"])] = order.choice(ODD)
    else:
        parent[last] = order.choice(ODD)
    return box[0]


CASES = [(name, payload) for name, examples in EXAMPLES.items() for payload in examples["valid"]]


@given(st.sampled_from(CASES), st.randoms(use_true_random=False), st.integers(1, 3))
def test_validity_is_what_jsonschema_says(
    case: tuple[str, Any], order: random.Random, times: int
) -> None:
    name, payload = case
    for _ in range(times):
        payload = mutate(payload, order)
    try:
        FAST[name].check(payload)
        valid = True
    except Invalid:
        valid = False
    assert valid == SLOW[name].is_valid(payload), payload


KEYWORDS = st.sampled_from(
    [
        {"type": "string"},
        {"type": ["integer", "null"]},
        {"minLength": 2},
        {"maxItems": 1},
        {"uniqueItems": True},
        {"required": ["a"]},
        {"const": 1},
        {"enum": ["a", A, None]},
        {"minimum": 1},
        {"dependentRequired": {"a": ["b"]}},
        {"propertyNames": {"maxLength": 1}},
        {"maxProperties": 1},
        REF,
        NULLABLE,
    ]
)
SCHEMAS = st.recursive(
    KEYWORDS,
    lambda inner: st.one_of(
        st.builds(lambda s: {"items": s}, inner),
        st.builds(lambda s, t: {"prefixItems": [s], "items": t}, inner, inner),
        st.builds(lambda s, t: {"properties": {"a": s}, "additionalProperties": t}, inner, inner),
        st.builds(lambda s: {"patternProperties": {"^a": s}}, inner),
        st.builds(
            lambda k, s, t: {k: [s, t]}, st.sampled_from(["allOf", "anyOf", "oneOf"]), inner, inner
        ),
        st.builds(lambda s, t, e: {"if": s, "then": t, "else": e}, inner, inner, inner),
        st.builds(lambda s: {"contains": s}, inner),
        st.builds(lambda s: {"dependentSchemas": {"a": s}}, inner),
        st.builds(lambda s: {"$defs": {"d": s}, "properties": {"b": {"type": "object"}}}, inner),
    ),
    max_leaves=5,
)
PAYLOADS = st.recursive(
    st.sampled_from([None, 0, 1, "", "a", A, B]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "ab", "b"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(SCHEMAS, PAYLOADS)
def test_validity_of_any_schema_is_what_jsonschema_says(document: Any, payload: Any) -> None:
    try:
        Schema(document).check(payload)
        valid = True
    except Invalid:
        valid = False
    assert valid == oracle(document).is_valid(payload)


def asserted(document: Any, payload: Any, at: tuple[Any, ...] = ()) -> set[str]:
    """The hashes that the oracle's own reading of the schema marks as refs of a valid payload:
    those whose replacement by a text of another shape would make the payload invalid."""
    found = set()
    for place in places(payload):
        parent: Any = [copy.deepcopy(payload)]
        box, keys = parent, (0, *place)
        for key in keys[:-1]:
            parent = parent[key]
        value = parent[keys[-1]]
        if value in (A, B) and isinstance(value, str):
            parent[keys[-1]] = "z" * 64
            if not oracle(document).is_valid(box[0]):
                found.add(value)
    return found


@given(
    st.recursive(
        st.sampled_from([REF, NULLABLE, {"type": "string"}, {}]),
        lambda inner: st.one_of(
            st.builds(lambda s: {"items": s}, inner),
            st.builds(lambda s, t: {"prefixItems": [s], "items": t}, inner, inner),
            st.builds(
                lambda s, t: {"properties": {"a": s}, "additionalProperties": t}, inner, inner
            ),
            st.builds(
                lambda s, t: {"patternProperties": {"^a": s}, "additionalProperties": t},
                inner,
                inner,
            ),
            st.builds(lambda s, t: {"allOf": [s, t]}, inner, inner),
            st.builds(lambda s: {"dependentSchemas": {"a": s}}, inner),
            st.builds(lambda s: {"$defs": {"d": s}, "$ref": "#/$defs/d"}, inner),
        ),
        max_leaves=5,
    ).filter(lambda document: "$ref" not in str(document).replace("'$ref': '#/$defs/d'", "", 1)),
    PAYLOADS,
)
def test_every_asserted_ref_is_collected(document: Any, payload: Any) -> None:
    try:
        schema = Schema(document)
        schema.check(payload)
    except Invalid:
        return
    assert asserted(document, payload) <= {ref.hash for ref in schema.refs(payload)}
