"""Static checks of moderator rules.

Errors make rules unusable. `expression_errors` finds expressions that do not parse, read unbound
variables, or name a non-deterministic function; `name_errors` names that nothing has;
`route_errors` roles from which a thread cannot end. `warnings` finds probable mistakes: roles and
rules that are never reached, a role after which no rule may match, a role that does not exist, a
property that no role-schema declares, and comparisons that are silently never true.

Rules form a graph from `from` to `to`. A rule behind one whose `when` is null, with the same
`from`, is never tried and is not an edge.

Names and shapes were checked before (`engine.workflow`): every rule in a graph here leads
from `__start__` or a role to a role or `__end__`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from casfs.errors import Invalid
from casfs.threads import rule_prompts
from casfs.threads.workflow_path import END, START
from engine.moderator import jsonata, name_checks, syntax
from engine.moderator.conditions import BINDINGS, FUNCTIONS, RESULT_NAMES
from engine.moderator.coverage import cover_all
from engine.moderator.decision import Rule
from engine.moderator.schema_paths import ANY, allows

REFUSED = frozenset(("now", "millis", "random", "shuffle", "eval"))

_BOUND = jsonata.BUILTINS | BINDINGS | FUNCTIONS
_STEPS = ("steps", "$steps")
_NOT_STEPS = ("start", "$start")


class _Graph:
    """The rules as edges, in the order of the rules."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.shadowed: dict[int, int] = {}  # rule never tried → the rule that always matches
        self._edges: dict[str, list[str]] = {}
        self._always: dict[str, int] = {}
        for index, rule in enumerate(rules):
            origin = rule["from"]
            if origin in self._always:
                self.shadowed[index] = self._always[origin]
                continue
            self._edges.setdefault(origin, []).append(rule["to"])
            if rule["when"] is None:
                self._always[origin] = index

    def after(self, origin: str) -> dict[str, None]:
        """Returns the states reachable from `origin` in one move or more; an ordered set."""
        reachable: dict[str, None] = {}
        waiting = list(self._edges.get(origin, ()))
        while waiting:
            target = waiting.pop(0)
            if target not in reachable:
                reachable[target] = None
                waiting += self._edges.get(target, ())
        return reachable

    def states(self) -> list[str]:
        """Returns `__start__` and the reachable roles."""
        return [START, *(target for target in self.after(START) if target != END)]

    def can_fall_through(self, origin: str) -> bool:
        return origin not in self._always


def expression_errors(index: int, text: str) -> Iterator[str]:
    """Yields the errors of `text`, the `when` of rule `index`."""
    yield from (f"{_when(index)}: {error}" for error in _errors(text, _BOUND))


def _errors(text: str, bound: frozenset[str]) -> Iterator[str]:
    try:
        names = jsonata.parsed(text).names()
    except Invalid as error:
        yield str(error)
        return
    for name in sorted(names.mentioned & REFUSED):
        yield f"${name} is refused: deciding again must give the same decision"
    for name in sorted(names.free - bound):
        yield f"${name} is not bound"


def result_errors(text: str, schemas: Mapping[str, Any]) -> list[str]:
    """Returns the errors of a `meta` over a called thread; `schemas`: of its roles, if known."""
    if errors := list(_errors(text, _BOUND | RESULT_NAMES)):
        return errors
    expression = jsonata.parsed(text)
    errors = [*name_checks.unknown_names(expression.reads(), BINDINGS | RESULT_NAMES)]
    for name, role in expression.calls() if schemas else ():
        if name in FUNCTIONS and role not in schemas:
            errors.append(f"no role is named {role!r}; there are {', '.join(schemas)}")
    for path in expression.paths():
        errors += name_checks.unknown_fields(path, _role_of(path, ""), schemas)
    return errors


def name_errors(rules: Sequence[Rule], schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yields names that expressions read and that nothing has: variables of the input, fields of
    steps, properties of a meta that its role-schema forbids."""
    for index, rule in enumerate(rules):
        for path in _prompt_paths(rule):
            faults = name_checks.unknown_fields(path, rule["from"], schemas)
            yield from (f"$.moderator[{index}].prompt: {fault}" for fault in faults)
        try:
            expression = jsonata.parsed(rule["when"] or "null")
        except Invalid:
            continue  # an error already
        errors = [*name_checks.unknown_names(expression.reads())]
        for path in expression.paths():
            role = _role_of(path, rule["from"])
            errors += name_checks.unknown_fields(path, role, schemas)
        yield from (f"{_when(index)}: {error}" for error in dict.fromkeys(errors))


def route_errors(rules: Sequence[Rule], schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yields the reachable states from which a thread can never end: no path leads to the end, or
    to a role after which no rule may match."""
    graph = _Graph(rules)

    def ends(state: str) -> bool:
        falls_through = graph.can_fall_through(state) and state != START
        return falls_through and not _covered(rules, state, schemas)

    stuck = [
        state
        for state in graph.states()
        if END not in (after := graph.after(state)) and not any(map(ends, (state, *after)))
    ]
    for state in stuck[:1] if START in stuck else stuck:
        yield f"$.moderator: no path from {state} to {END}"


def warnings(rules: Sequence[Rule], schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yields probable mistakes. `schemas`: the role-schema of every role."""
    graph = _Graph(rules)
    states = graph.states()
    for role in schemas:
        if role not in states:
            yield f"$.roles.{role}: no rule leads to it from {START}"
    for index, winner in graph.shadowed.items():
        yield f"$.moderator[{index}]: never tried, rule {winner} before it always matches"
    for state in states:
        if graph.can_fall_through(state) and not _covered(rules, state, schemas):
            yield (
                f"$.moderator: it may be that no rule matches after {state} (return code 1); "
                "a last rule with when null would catch that"
            )
    for index, rule in enumerate(rules):
        for warning in _comparison_warnings(rule, graph, schemas):
            yield f"{_when(index)}: {warning}"
        for path in _prompt_paths(rule):
            undeclared = name_checks.undeclared(path, rule["from"], schemas)
            yield from (f"$.moderator[{index}].prompt: {warning}" for warning in undeclared)


def _prompt_paths(rule: Rule) -> Iterator[syntax.Path]:
    """Yields the paths that a rule's prompt reads, as an expression would."""
    for _, names in rule_prompts.fields(rule.get("prompt", "")):
        yield syntax.Path("$last", rule["from"], filters=(), fields=("meta", *(names or ())))


def _covered(rules: Sequence[Rule], state: str, schemas: Mapping[str, Any]) -> bool:
    """Returns whether a rule matches whatever the last step's meta is."""
    whens = [rule["when"] for rule in rules if rule["from"] == state and rule["when"] is not None]
    try:
        return cover_all(whens, state, schemas.get(state))
    except Invalid:
        return True  # an error already


def _when(index: int) -> str:
    return f"$.moderator[{index}].when"


# --- comparisons that are never true --------------------------------------------------


def _comparison_warnings(rule: Rule, graph: _Graph, schemas: Mapping[str, Any]) -> Iterator[str]:
    if rule["when"] is None:
        return
    try:
        expression = jsonata.parsed(rule["when"])
    except Invalid:
        return  # an error already
    for name, text in expression.calls():
        if name in FUNCTIONS and text not in schemas:
            yield f"no role is named {text!r}"
    for path in expression.paths():
        yield from name_checks.undeclared(path, _role_of(path, rule["from"]), schemas)
    for comparison in expression.comparisons():
        sides = (comparison.left, comparison.right)
        for side, other in (sides, sides[::-1]):
            if not isinstance(side, syntax.Path):
                continue
            if comparison.operator != "in" or side is comparison.left:
                yield from _array_warnings(side, graph, schemas)
            if comparison.operator in ("=", "!=", "in") and isinstance(other, syntax.Literal):
                yield from _literal_warnings(
                    side, other.values, origin=rule["from"], schemas=schemas
                )


def _array_warnings(path: syntax.Path, graph: _Graph, schemas: Mapping[str, Any]) -> Iterator[str]:
    """Warns where `path` yields an array, a value for each of several steps, instead of one."""
    if path.head not in _STEPS or len(path.filters) > 1 or not path.fields:
        return
    fields = ".".join(path.fields)
    role = _filtered_role(path)
    if role is not None and _filters_are_single(path) and role in graph.after(role):
        yield (
            f"{path.head}[role='{role}'].{fields} is an array once {role} has run twice, "
            f"and never equal to one value; $last('{role}').{fields} is the latest"
        )
    if not path.filters and _several(path.fields, graph, schemas):
        yield (
            f"{path.head}.{fields} is an array once several steps have it, and never equal "
            f"to one value; {path.head}[-1].{fields} is the latest"
        )


def _filters_are_single(path: syntax.Path) -> bool:
    return all(
        isinstance(path_filter, syntax.Equals) and path_filter.single
        for path_filter in path.filters
    )


def _several(fields: Sequence[str], graph: _Graph, schemas: Mapping[str, Any]) -> bool:
    """Returns whether more than one step of a thread can have a value at `fields`."""
    states = [state for state in graph.states() if state in schemas]
    having = [role for role in states if _step_allows(schemas[role], fields, ANY)]
    return len(having) > 1 or any(role in graph.after(role) for role in having)


def _step_allows(schema: Any, fields: Sequence[str], value: Any) -> bool:
    """Returns whether a step can hold `value` at `fields`; its role-schema describes only the
    meta."""
    return fields[0] != "meta" or allows(schema, fields[1:], value)


def _literal_warnings(
    path: syntax.Path, values: Sequence[Any], origin: str, schemas: Mapping[str, Any]
) -> Iterator[str]:
    if (path.head == "role" and not path.fields) or path.fields == ("role",):
        yield from (f"no role is named {value!r}" for value in values if value not in schemas)
    fields = (path.head, *path.fields) if path.head == "meta" else path.fields
    if fields[:1] != ("meta",) or path.head in _NOT_STEPS:
        return
    role = _role_of(path, origin)
    name = ".".join(fields)
    if role == START:
        return  # there is no step yet
    for value in values:
        if not any(
            allows(schemas[role_name], fields[1:], ANY)
            for role_name in schemas
            if role in (None, role_name)
        ):
            continue  # no such property: an error already
        if role is None:
            if not any(allows(schema, fields[1:], value) for schema in schemas.values()):
                yield f"{name} is never {value!r}: no role's schema allows it"
        elif role in schemas and not allows(schemas[role], fields[1:], value):
            yield f"{name} of {role} is never {value!r}: its schema forbids it"


def _role_of(path: syntax.Path, origin: str) -> str | None:
    """Returns the role whose step `path` reads, None where it is not a literal."""
    if path.head in ("$first", "$last"):
        return str(path.argument)
    if path.head not in _STEPS:
        return None
    return origin if path.filters == (-1,) else _filtered_role(path)


def _filtered_role(path: syntax.Path) -> str | None:
    first = path.filters[0] if path.filters else None
    by_role = isinstance(first, syntax.Equals) and first.name == "role"
    return str(first.value) if isinstance(first, syntax.Equals) and by_role else None
