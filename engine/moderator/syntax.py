"""Inspects the syntax tree of a parsed JSONata expression.

`names` and `comparisons` walk the tree of jsonata-python's parser (its Symbol objects, read by
attribute; only `engine.moderator.jsonata` imports the library) and return types of ours, so that
checks of a workflow do not depend on the library. Forms that those checks do not use are None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_COMPARISONS = frozenset(("=", "!=", "<", "<=", ">", ">=", "in"))
_CHILDREN = (  # fields of a Symbol that hold one Symbol or a list of them
    *("steps", "predicate", "stages", "expressions", "terms"),
    *("group", "expr", "lhs", "rhs", "expression", "condition", "then", "_else"),
    *("procedure", "body", "pattern", "update", "delete"),
)
_IN_SAME_CONTEXT = (  # of these, the ones that are evaluated on the same value as their parent
    *("expressions", "expr", "lhs", "rhs", "expression"),
    *("condition", "then", "_else", "procedure", "body"),
)
_EXTRAS = (  # attributes that change the meaning of a Symbol
    *("predicate", "stages", "focus", "index", "group", "tuple", "ancestor"),
    *("keep_array", "keep_singleton_array", "consarray", "seeking_parent"),
)


@dataclass(frozen=True)
class Names:
    """The `$names` of an expression, without the dollar sign; `$` and `$$` are left out."""

    mentioned: frozenset[str]
    """Every name read or bound anywhere, lambda parameters excepted."""
    free: frozenset[str]
    """Those read where nothing in the expression binds them."""


@dataclass(frozen=True)
class Literal:
    """A literal, or an array of literals, on one side of a comparison."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Equals:
    """The filter `[name = 'value']`, or one operand of `and`."""

    name: str
    value: Any


@dataclass(frozen=True)
class Path:
    """`head[filter]….field.field`: the paths that checks of a workflow understand. `head` is
    `steps`, `$steps`, or `$last` for a call with the literal `argument`. A filter is an index, an
    Equals, or None for any other."""

    head: str
    argument: Any
    filters: tuple[int | Equals | None, ...]
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """`left operator right`; a side of any other form is None."""

    operator: str
    left: Path | Literal | None
    right: Path | Literal | None


INPUT = "input"  # where a bare name is looked up
STEP = "step"


def names(root: Any) -> Names:
    """Returns the names in the expression whose syntax tree has this root."""
    nodes = list(_nodes(root))
    variables = {node.value for node in nodes if node.type == "variable"}
    mentioned = variables.union(*map(_introduced, nodes))
    free: set[str] = set()
    _collect_free(root, _bound_by(root), free)
    return Names(frozenset(mentioned - {"", "$"}), frozenset(free))


def comparisons(root: Any) -> tuple[Comparison, ...]:
    """Returns every comparison in the expression, in the order of the text."""
    return tuple(_comparison(node) for node in _nodes(root) if _is_comparison(node))


def paths(root: Any) -> tuple[Path, ...]:
    """Returns the paths in the expression that are of the form of Path."""
    candidates = (_path(node) for node in _nodes(root) if node.type == "path")
    return tuple(path for path in candidates if path is not None)


def reads(root: Any) -> tuple[tuple[str, str], ...]:
    """Returns (INPUT, name) for the names that the expression reads from its input, and (STEP,
    name) for those in filters of `steps`; names that are looked up elsewhere are left out."""
    return tuple(_reads(root, INPUT))


def _reads(node: Any, context: str) -> Iterator[tuple[str, str]]:
    first = node.steps[0] if node.type == "path" else node
    if first.type == "name":
        yield context, first.value
    elif first is not node:
        yield from _reads(first, context)
    if context == INPUT and first.type in ("name", "variable") and first.value == "steps":
        for part in (*(first.predicate or ()), *(first.stages or ())):
            if part.expr is not None:
                yield from _reads(part.expr, STEP)
    if node.type in ("path", "transform"):
        return
    for field in _IN_SAME_CONTEXT:
        part = getattr(node, field)
        for child in part if isinstance(part, list) else () if part is None else (part,):
            yield from _reads(child, context)
    inner = [member for pair in node.lhs_object or () for member in pair]
    for child in (*inner, *((node.arguments or ()) if node.type != "lambda" else ())):
        yield from _reads(child, context)


def calls(root: Any) -> tuple[tuple[str, str], ...]:
    """Returns (name, text) of every call `$name('text')` in the expression."""
    return tuple(
        (node.procedure.value, node.arguments[0].value)
        for node in _nodes(root)
        if node.type == "function"
        and node.procedure.type == "variable"
        and [argument.type for argument in node.arguments] == ["string"]
    )


def text_filter(node: Any) -> tuple[str, str] | None:
    """Returns (name, text) where the filter with this root is exactly `name = 'text'`."""
    if node.type != "binary" or node.value != "=":
        return None
    for side, other in ((node.lhs, node.rhs), (node.rhs, node.lhs)):
        if side.type == "path" and len(side.steps) == 1 and other.type == "string":
            step = side.steps[0]
            parts = (node, side, step, other)
            plain = not any(getattr(part, extra) for part in parts for extra in _EXTRAS)
            return (step.value, other.value) if step.type == "name" and plain else None
    return None


def _children(node: Any) -> Iterator[Any]:
    for field in _CHILDREN:
        part = getattr(node, field)
        if isinstance(part, list):
            yield from part
        elif part is not None:
            yield part
    for pair in node.lhs_object or ():
        yield from pair
    if node.type != "lambda":  # whose arguments are its parameters
        yield from node.arguments or ()


def _nodes(root: Any) -> Iterator[Any]:
    """Yields every node, parents first, in the order of the text."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(_children(node))))


def _introduced(node: Any) -> set[str]:
    """Returns the names that `@$name` and `#$name` on this node bind for its path."""
    stages = {stage.value for stage in node.stages or () if stage.type == "index"}
    return {name for name in (node.focus, node.index) if isinstance(name, str)} | stages


def _bound_by(node: Any) -> frozenset[str]:
    """Returns the names that `:=` binds in the scope of `node`, without inner scopes."""
    own = {node.lhs.value} if node.type == "bind" else set()
    inner = (child for child in _children(node) if child.type not in ("block", "lambda"))
    return frozenset(own.union(*map(_bound_by, inner)))


def _collect_free(node: Any, scope: frozenset[str], free: set[str]) -> None:
    if node.type == "variable" and node.value not in scope and node.value not in ("", "$"):
        free.add(node.value)
    if node.type == "lambda":
        scope |= {parameter.value for parameter in node.arguments} | _bound_by(node.body)
    elif node.type == "block":
        scope = scope.union(*map(_bound_by, node.expressions))
    elif node.type == "path":
        scope = scope.union(*map(_introduced, node.steps))
    for child in _children(node):
        _collect_free(child, scope, free)


def _is_comparison(node: Any) -> bool:
    return node.type == "binary" and node.value in _COMPARISONS


def _comparison(node: Any) -> Comparison:
    return Comparison(node.value, _operand(node.lhs), _operand(node.rhs))


def _operand(node: Any) -> Path | Literal | None:
    if node.type in ("string", "number", "value"):
        return Literal((node.value,))
    if node.type == "unary" and node.value == "[":
        items = [_operand(item) for item in node.expressions]
        literals = [item.values[0] for item in items if isinstance(item, Literal)]
        return Literal(tuple(literals)) if len(literals) == len(items) else None
    return _path(node)


def _path(node: Any) -> Path | None:
    first, *later_steps = node.steps if node.type == "path" else [node]
    if any(step.type != "name" or step.stages or step.predicate for step in later_steps):
        return None
    argument = None
    if first.type == "function" and first.procedure.type == "variable":
        if len(first.arguments) != 1 or first.arguments[0].type != "string":
            return None
        head = f"${first.procedure.value}"
        argument = first.arguments[0].value
    elif first.type in ("name", "variable"):
        head = f"${first.value}" if first.type == "variable" else first.value
    else:
        return None
    filters = tuple(_filter(part) for part in (*(first.predicate or ()), *(first.stages or ())))
    return Path(head, argument, filters=filters, fields=tuple(step.value for step in later_steps))


def _filter(stage: Any) -> int | Equals | None:
    node = stage.expr
    if node is not None and node.type == "number":
        return int(node.value)
    return _equals(node)


def _equals(node: Any) -> Equals | None:
    if node is None or node.type != "binary":
        return None
    if node.value == "and":
        return _equals(node.lhs) or _equals(node.rhs)
    if node.value != "=":
        return None
    sides = (_operand(node.lhs), _operand(node.rhs))
    for side, other in (sides, sides[::-1]):
        plain = isinstance(side, Path) and not side.filters and not side.fields
        if plain and isinstance(other, Literal) and len(other.values) == 1:
            assert isinstance(side, Path)
            return Equals(side.head, other.values[0])
    return None
