"""What it costs to validate with a schema, in evaluations of a subschema at a place of the value.

Combinators and `$ref`s multiply: 40 levels of `anyOf` with twice the same `$ref` are 2^40
evaluations of 3 KB. Two bounds keep every validation short, on any machine alike:

- at registration, a schema may apply at most MAX_IN_PLACE subschemas to one place of a value, in
  chains of at most MAX_CHAIN;
- a schema that multiplies on the way down into the value (recursion, or more than MAX_IN_PLACE
  evaluations in all) counts before each validation, at most MAX_EVALUATIONS. The count
  is an upper bound: a validator stops earlier at most combinators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from casfs.errors import Invalid
from casfs.store.nodes.schema_dialect import (
    IN_PLACE,
    Document,
    Place,
    line,
    path,
    ref_target,
    spot,
    subschemas,
)

MAX_IN_PLACE = 1000
MAX_CHAIN = 64
MAX_EVALUATIONS = 10_000_000  # some 0.2 s
MAX_EXPLAINED = 10_000  # evaluations of a payload whose errors are all looked at
MAX_LEVELS = 100  # of a schema without recursion; a deeper one counts as recursive


class Cost:
    def __init__(self, places: dict[Place, Document]) -> None:
        """Raises Invalid for a `$ref` that leads to no subschema, for a cycle of them that does not
        descend into the value, and for a schema that costs too much at one place."""
        self._places = places
        self._closures: dict[Place, tuple[Counter[Place], int]] = {}
        for location in places:
            self._closure(location, ())
        self._static: dict[Place, float] = {}
        self._multiplies = self._total((), 0) > MAX_IN_PLACE

    def evaluations(self, payload: Any, limit: int) -> int:
        """Returns an upper bound for a payload; stops above `limit`."""
        known: dict[tuple[Place, int], int] = {}

        def count(location: Place, value: Any) -> int:
            if not isinstance(value, dict | list | tuple):
                return self._closures[location][0].total()
            if (counted := known.get((location, id(value)))) is not None:
                return counted
            if len(known) > limit:
                return limit + 1
            total = 0
            for sub_location, times in self._closures[location][0].items():
                below = 1
                for sub, item in _descents(self._places[sub_location], sub_location, value):
                    below += count(sub, item)
                    if below > limit:
                        break
                total += times * below
            known[location, id(value)] = total
            return total

        return count((), payload)

    def limit(self, payload: Any) -> None:
        """Raises Invalid for a payload that costs too much."""
        if self._multiplies and self.evaluations(payload, MAX_EVALUATIONS) > MAX_EVALUATIONS:
            raise Invalid("$: too costly to validate: the schema multiplies at each level of it")

    def explain(self, validator: Any, payload: Any) -> str:
        """Returns the fault that lies least deep; of a large payload the first one. (The validator
        collects all errors, each with those of every branch: 100 µs and more for each.)"""
        if self.evaluations(payload, MAX_EXPLAINED) <= MAX_EXPLAINED:
            error = _nearest(min(validator.iter_errors(payload), key=_depth))
        elif self._multiplies:
            return "$: does not fit the schema; it is too large to say where"
        else:
            error = _first_error(validator, payload)
        return f"{path(error.instance_path)}: {line(self._message(error))}"

    def _message(self, error: Any) -> str:
        """Returns what is wrong; where no branch stands out, what each of them wants."""
        branches = getattr(error.kind, "context", None)
        if not branches:
            return str(error.message)
        if not all(branches):  # some hold, which for `oneOf` is too many
            *above, keyword = map(str, error.schema_path)
            schemas = self._places[tuple(above)][keyword]
            valid = [
                valid_schema
                for valid_schema, faults in zip(schemas, branches, strict=True)
                if not faults
            ]
            required = [", ".join(_required(schema)) for schema in valid]
            names = " and ".join(required)
            return f"{names} exclude each other; give one" if all(required) else error.message
        faults = [min(branch, key=_depth) for branch in branches]
        kinds = {fault.kind.name for fault in faults}
        if kinds == {"required"}:
            return f"one of {_listed(fault.kind.property for fault in faults)} is required"
        if kinds == {"type"} and {_depth(fault) for fault in faults} == {_depth(error)}:
            types = _listed(type for fault in faults for type in fault.kind.types)
            return f"must be of type {types}"
        return "; or ".join(dict.fromkeys(fault.message for fault in faults))

    def _closure(self, location: Place, trail: tuple[Place, ...]) -> tuple[Counter[Place], int]:
        """Returns the subschemas that are applied to the same place of the value, with how often,
        and the length of their longest chain."""
        if location in trail:
            raise Invalid(f"{spot(location)}: a $ref leads back here without going into the value")
        if (known := self._closures.get(location)) is not None:
            return known
        if len(trail) > MAX_CHAIN:
            raise Invalid(_too_costly(location))
        schema = self._places[location]
        counts = Counter([location])
        chain = 1
        for target in _in_place(schema, location):
            if target not in self._places:
                raise Invalid(f"{spot(location)}: $ref {schema['$ref']!r} leads to no subschema")
            target_counts, length = self._closure(target, (*trail, location))
            counts = counts + target_counts
            chain = max(chain, length + 1)
            if counts.total() > MAX_IN_PLACE or chain > MAX_CHAIN:
                raise Invalid(_too_costly(location))
        return self._closures.setdefault(location, (counts, chain))

    def _total(self, location: Place, level: int) -> float:
        """Returns the evaluations of the whole schema, each value there once; infinite where it
        is recursive."""
        if level > MAX_LEVELS:
            return float("inf")
        if location not in self._static:
            self._static[location] = float("inf")  # while it is counted: met again, it is recursive
            self._static[location] = sum(
                times
                * (
                    1
                    + sum(
                        self._total(sub, level + 1)
                        for sub in _below(self._places[sub_location], sub_location)
                    )
                )
                for sub_location, times in self._closures[location][0].items()
            )
        return self._static[location]


def _too_costly(location: Place) -> str:
    return (
        f"{spot(location)}: too costly: more than {MAX_IN_PLACE} subschemas, or a chain of more"
        f" than {MAX_CHAIN}, apply to one place of the value"
    )


def _first_error(validator: Any, payload: Any) -> Any:
    try:
        validator.validate(payload)
    except ValueError as error:  # the validator's ValidationError
        return error
    raise AssertionError("the payload is valid")


def _in_place(schema: Document, location: Place) -> Iterator[Place]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield ref_target(schema["$ref"])
        yield from (location + step for step, _ in subschemas(schema) if step[0] in IN_PLACE)


def _below(schema: Document, location: Place) -> Iterator[Place]:
    """Yields the subschemas for parts of the value."""
    if isinstance(schema, dict):
        for step, _ in subschemas(schema):
            if step[0] not in IN_PLACE and step[0] != "$defs":
                yield location + step


def _descents(schema: Document, location: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    """Yields (subschema, part of the value) for each pair that may be evaluated."""
    for sub in _below(schema, location):
        keyword = sub[len(location)]
        if isinstance(value, dict):
            if keyword == "properties":
                if sub[-1] in value:
                    yield sub, value[sub[-1]]
            elif keyword == "propertyNames":
                yield from ((sub, name) for name in value)
            elif keyword in ("patternProperties", "additionalProperties"):
                yield from ((sub, item) for item in value.values())
        elif keyword == "prefixItems":
            if int(sub[-1]) < len(value):
                yield sub, value[int(sub[-1])]
        elif keyword in ("items", "contains"):
            yield from ((sub, item) for item in value)


def _required(schema: Document) -> list[str]:
    return schema.get("required", []) if isinstance(schema, dict) else []


def _listed(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))


def _depth(error: Any) -> int:
    return len(error.instance_path)


def _nearest(error: Any) -> Any:
    """Returns the fault in the one branch of `anyOf` or `oneOf` that fits best, which is most
    likely the one that was meant; the error itself where no branch stands out."""
    misfit = partial(_misfit, _depth(error))
    branches = sorted(filter(None, getattr(error.kind, "context", ())), key=misfit)
    if not branches or not all(error.kind.context) or misfit(branches[0])[0]:
        return error
    if len(branches) > 1 and misfit(branches[0]) == misfit(branches[1]):
        return error
    return _nearest(min(branches[0], key=_depth))


def _misfit(depth: int, faults: list[Any]) -> list[int]:
    """Returns how badly a branch fits a value at `depth`: one for another type fits least."""
    is_other_type = any(_depth(fault) == depth and fault.kind.name == "type" for fault in faults)
    return [is_other_type, len(faults)]
