"""A hostile schema or payload costs no time: both are refused by counting, never by a clock."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from casfs.errors import Invalid
from casfs.store.nodes.schema import Schema, check_document
from casfs.store.nodes.schema_cost import MAX_CHAIN

COMBINATORS = ["anyOf", "oneOf", "allOf"]
COSTLY = "too costly"


def chain(length: int, link: Any) -> dict[str, Any]:
    """A schema whose definitions refer each to the next one, as `link` says."""
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    definitions[f"d{length}"] = {"type": "string"}
    return {"$id": "hostile", "$ref": "#/$defs/d0", "$defs": definitions}


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = {"a": value}
    return value


def tree(combinator: str) -> Schema:
    """A schema that refers to itself in two branches."""
    branch = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    return Schema({combinator: [branch, {**branch, "minProperties": 1}, {"type": "integer"}]})


@pytest.mark.parametrize("combinator", COMBINATORS)
@pytest.mark.parametrize("levels", [28, 40])
def test_combinators_that_double_are_not_registered(combinator: str, levels: int) -> None:
    with pytest.raises(Invalid, match=COSTLY):
        check_document(chain(levels, lambda ref: {combinator: [ref, ref]}))


@pytest.mark.parametrize("length", [MAX_CHAIN + 1, 1000, 5000])
def test_a_long_chain_of_refs_is_not_registered(length: int) -> None:
    with pytest.raises(Invalid, match=COSTLY):
        Schema(chain(length, lambda ref: ref))
    with pytest.raises(Invalid, match=COSTLY):  # found from its end
        Schema(dict(reversed(chain(length, lambda ref: ref).items())))


@pytest.mark.parametrize("combinator", COMBINATORS)
def test_recursion_through_branches_is_counted(combinator: str) -> None:
    with pytest.raises(Invalid, match=COSTLY):
        tree(combinator).check(nested(1, 60))


@pytest.mark.parametrize("combinator", COMBINATORS)
def test_levels_that_double_without_recursion_are_counted(combinator: str) -> None:
    schema = Schema(
        chain(
            40,
            lambda ref: {
                combinator: [{"properties": {"a": ref}}, {"properties": {"a": ref}, "title": ""}]
            },
        )
    )
    with pytest.raises(Invalid, match=COSTLY):
        schema.check(nested(1, 40))


def test_recursion_is_allowed_where_it_does_not_cost() -> None:
    tree("anyOf").check(nested(1, 16))
    with pytest.raises(Invalid, match="too large to say where"):
        tree("anyOf").check(nested("text", 16))
    with pytest.raises(Invalid, match="is not valid under any"):
        tree("anyOf").check(nested("text", 4))
    line = Schema({"properties": {"a": {"$ref": "#"}, "b": {"type": "string"}}})
    line.check(nested({"b": ""}, 190))
    with pytest.raises(Invalid, match=r'\.b: 1 is not of type "string"'):
        line.check(nested({"b": 1}, 190))


def test_long_lists_cost_what_they_are_long() -> None:
    either = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
    Schema(either).check([[1] * 1000] * 100)
    with pytest.raises(Invalid, match=r'\$\[0\]: 0 is not of type "string"'):
        Schema({"items": {"type": "string"}}).check(list(range(100_000)))


def test_a_pattern_gives_up() -> None:
    with pytest.raises(Invalid, match="backtracking"):
        Schema({"pattern": r"(a*)*\1b"}).check("a" * 1000)


def test_references_nested_too_deep() -> None:
    links = chain(60, lambda ref: ref)
    links["$defs"]["d60"] = {
        "properties": {"a": {"$ref": "#/$defs/d0"}, "r": {"type": "string", "format": "cas_ref"}}
    }
    with pytest.raises(Invalid, match="nested too deep"):
        Schema(links).refs(nested({"r": "0" * 64}, 190))


@pytest.mark.parametrize("pattern", ["^a(?=b)", r"^(a)\1$", "(?<!x)y"])
@pytest.mark.parametrize("place", ["pattern", "patternProperties"])
def test_a_pattern_that_is_not_linear_is_not_registered(pattern: str, place: str) -> None:
    """Fails before: it was accepted, and took time quadratic in a text. A stored one is read."""
    schema = {"$id": "s", place: pattern if place == "pattern" else {pattern: True}}
    with pytest.raises(Invalid, match="look-around, back-references or too many repetitions"):
        check_document(schema)
    assert Schema(schema).backtracks
    assert not Schema({"$id": "s", "pattern": r"^[\w-]+\.\d{1,3}$"}).backtracks


@pytest.mark.parametrize(
    "deep",
    [
        {"pattern": "(" * 10_000 + ")" * 10_000},
        {"patternProperties": {"(" * 10_000 + ")" * 10_000: True}},
        functools.reduce(lambda below, _: {"allOf": [below]}, range(95), {"type": "string"}),
    ],
    ids=["pattern", "name", "allOf"],
)
def test_deep_nesting_is_refused(deep: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        check_document({"$id": "hostile", **deep})
    with pytest.raises(Invalid):
        Schema(deep, new=True)
