"""Static checks of moderator rules.

Errors make rules unusable. `expression_errors` finds expressions that do not parse, read unbound
variables, or name a non-deterministic function; `name_errors` names that nothing has;
`route_errors` roles from which a thread cannot end. `warnings` finds probable mistakes: roles and
rules that are never reached, a role that does not exist, a property that no role-schema
declares.

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
from engine.moderator.decision import Rule

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


def route_errors(rules: Sequence[Rule]) -> Iterator[str]:
    """Yields the reachable states from which a thread can never end: no path leads to the end, or
    to a role after which no rule may match."""
    graph = _Graph(rules)

    def ends(state: str) -> bool:
        return graph.can_fall_through(state) and state != START

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
    for index, rule in enumerate(rules):
        for warning in _expression_warnings(rule, schemas):
            yield f"{_when(index)}: {warning}"
        for path in _prompt_paths(rule):
            undeclared = name_checks.undeclared(path, rule["from"], schemas)
            yield from (f"$.moderator[{index}].prompt: {warning}" for warning in undeclared)


def _prompt_paths(rule: Rule) -> Iterator[syntax.Path]:
    """Yields the paths that a rule's prompt reads, as an expression would."""
    for _, names in rule_prompts.fields(rule.get("prompt", "")):
        yield syntax.Path("$last", rule["from"], filters=(), fields=("meta", *(names or ())))


def _when(index: int) -> str:
    return f"$.moderator[{index}].when"


def _expression_warnings(rule: Rule, schemas: Mapping[str, Any]) -> Iterator[str]:
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
            if isinstance(side, syntax.Path) and isinstance(other, syntax.Literal):
                yield from _unknown_roles(side, other, schemas)


def _unknown_roles(
    path: syntax.Path, literal: syntax.Literal, schemas: Mapping[str, Any]
) -> Iterator[str]:
    """Yields the names that a step's role is compared with and that no role has."""
    if (path.head == "role" and not path.fields) or path.fields == ("role",):
        yield from (f"no role is named {name!r}" for name in literal.values if name not in schemas)


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
