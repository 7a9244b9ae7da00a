"""Whether the rules after a role leave a meta for which none of them matches.

A rule's condition is read over the values that its role-schema lets the required members of the
last step's meta have: those of a `const` or `enum`, true and false, and of numbers and texts the
ones that the conditions themselves tell apart. What is not understood is unknown, and a rule
matches for certain only where it does whatever the unknown is; so the answer "they cover all"
is right, and the answer "they may not" is a guess.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from engine.moderator import jsonata
from engine.moderator.syntax import Comparison, Condition, Equals, Literal, Logic, Path

MAX_CASES = 4096  # combinations of values; with more the answer is "they may not"
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Fields = tuple[str, ...]


def cover_all(whens: Sequence[str], role: str, schema: Any) -> bool:
    """Returns whether one of the conditions is true after each step of `role`, whose meta fits
    `schema`. Raises Invalid for a condition that does not parse."""
    conditions = [jsonata.parsed(when).condition() for when in whens]
    compared: dict[Fields, list[Any]] = {}
    for condition in conditions:
        _collect(condition, role, compared)
    domains = {
        fields: domain
        for fields, values in compared.items()
        if (domain := _domain(schema, fields, values)) is not None
    }
    if prod(map(len, domains.values())) > MAX_CASES:
        return False
    cases = (dict(zip(domains, case, strict=True)) for case in product(*domains.values()))
    return all(any(_truth(condition, role, case) for condition in conditions) for case in cases)


def _meta_fields(path: Path, role: str) -> Fields | None:
    """Returns where in the last step's meta a path leads, None for any other path."""
    latest = (path.head in ("steps", "$steps") and path.filters == (-1,)) or (
        path.head == "$last" and path.argument == role and not path.filters
    )
    filtered = path.head in ("steps", "$steps") and path.filters == (Equals("role", role), -1)
    return path.fields[1:] if (latest or filtered) and path.fields[:1] == ("meta",) else None


def _collect(condition: Condition, role: str, compared: dict[Fields, list[Any]]) -> None:
    """Adds the members that a condition looks at, with the values that it compares them with."""
    if isinstance(condition, Logic):
        for part in condition.parts:
            _collect(part, role, compared)
    elif isinstance(condition, Path):
        if (fields := _meta_fields(condition, role)) is not None:
            compared.setdefault(fields, [])
    elif isinstance(condition, Comparison):
        for side, other in ((condition.left, condition.right), (condition.right, condition.left)):
            if isinstance(side, Path) and isinstance(other, Literal):
                fields = _meta_fields(side, role)
                if fields is not None:
                    compared.setdefault(fields, []).extend(other.values)


def _domain(schema: Any, fields: Fields, compared: Sequence[Any]) -> list[Any] | None:
    """Returns the values that stand for all at `fields`; None where it may be missing or is not
    known."""
    if not isinstance(schema, Mapping):
        return None
    if not fields and ("const" in schema or "enum" in schema):
        return [schema["const"]] if "const" in schema else list(schema["enum"])
    for keyword in ("oneOf", "anyOf"):
        if keyword in schema:
            base = {key: value for key, value in schema.items() if key != keyword}
            domains = [
                _domain(_merged(base, branch), fields, compared) for branch in schema[keyword]
            ]
            return (
                None if None in domains else [value for domain in domains for value in domain or ()]
            )
    if fields:
        if fields[0] not in schema.get("required", ()):
            return None
        return _domain(schema.get("properties", {}).get(fields[0]), fields[1:], compared)
    kind = schema.get("type")
    if kind == "boolean":
        return [True, False]
    if kind in ("number", "integer"):
        points = sorted({v for v in compared if isinstance(v, int | float) and v is not True})
        return [p for v in points for p in (v - 0.5, v, v + 0.5)] or None
    if kind == "string":
        return [*(value for value in compared if isinstance(value, str)), "\0 any other text"]
    return None


def _merged(base: Mapping[str, Any], branch: Any) -> Any:
    if not isinstance(branch, Mapping):
        return base
    return {
        **base,
        **branch,
        "required": [*base.get("required", ()), *branch.get("required", ())],
        "properties": {**base.get("properties", {}), **branch.get("properties", {})},
    }


def _truth(condition: Condition, role: str, case: Mapping[Fields, Any]) -> bool | None:
    """Returns whether a condition holds in a case, None where that is not known."""
    if isinstance(condition, Logic):
        truths = [_truth(part, role, case) for part in condition.parts]
        if condition.operator == "not":
            return None if truths[0] is None else not truths[0]
        decisive = condition.operator == "or"
        return decisive if decisive in truths else None if None in truths else not decisive
    if isinstance(condition, Path):
        fields = _meta_fields(condition, role)
        return jsonata.boolean(case[fields]) if fields is not None and fields in case else None
    if not isinstance(condition, Comparison):
        return None
    left, right = (_values(side, role, case) for side in (condition.left, condition.right))
    if left is None or right is None or len(left) != 1:
        return None
    return _compare(condition.operator, left[0], right)


def _values(side: Path | Literal | None, role: str, case: Mapping[Fields, Any]) -> Any:
    if isinstance(side, Literal):
        return side.values
    fields = _meta_fields(side, role) if side is not None else None
    return (case[fields],) if fields is not None and fields in case else None


def _compare(name: str, left: Any, right: Sequence[Any]) -> bool | None:
    same = [
        left == operand and isinstance(left, bool) == isinstance(operand, bool) for operand in right
    ]
    if name == "in":
        return any(same)
    if len(right) != 1:
        return None
    if name in ("=", "!="):
        return same[0] == (name == "=")
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (left, *right))
    return _ORDER[name](left, right[0]) if numbers and name in _ORDER else None
