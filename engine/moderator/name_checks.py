"""Names that an expression reads: variables of its input, fields of steps, properties of a meta.

A name that nothing has is always missing, so the rule is silently never or always true: an error. A
property that an open role-schema does not declare may still come, or not: a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from casfs.store.nodes.registry import builtin
from casfs.threads.workflow_path import START
from engine.moderator import schema_paths, syntax
from engine.moderator.conditions import BINDINGS
from engine.moderator.syntax import Path

_OF_STEP = ("steps", "$steps", "$first", "$last")
_OF_START = ("start", "$start")


def unknown_names(
    reads: Iterable[tuple[str, str]], known: Collection[str] = BINDINGS
) -> Iterator[str]:
    """Yields the faults of bare names; `reads`: (where they are looked up, name)."""
    for context, name in reads:
        if context == syntax.INPUT and name not in known:
            yield f"unknown name {name!r}; there are {', '.join(sorted(known))}"
        if context == syntax.STEP and name not in (fields := _fields("thread-step")):
            yield f"a step has no field {name!r}; there are {', '.join(fields)}"


def unknown_fields(path: Path, role: str | None, schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yields the fault of a path to a field that no step has, or to a property that no meta of
    `role` (None: of any) can have."""
    if not path.fields or path.head not in (*_OF_STEP, *_OF_START):
        return
    what, type = ("a step", "thread-step") if path.head in _OF_STEP else ("start", "thread-start")
    if path.fields[0] not in (known := _fields(type)):
        yield f"{what} has no field {path.fields[0]!r}; there are {', '.join(known)}"
        return
    fields, meta_schemas = _meta(path, role, schemas)
    if meta_schemas and not any(schema_paths.allows(schema, fields) for schema in meta_schemas):
        named = schema_paths.properties(meta_schemas[0]) if len(meta_schemas) == 1 else []
        known_here = f"; there are {', '.join(named)}" if named and len(fields) == 1 else ""
        yield f"{_owner(role)} no property {'.'.join(fields)!r}{known_here}"


def undeclared(path: Path, role: str | None, schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yields the warning of a path to a property that is allowed, but not declared."""
    fields, meta_schemas = _meta(path, role, schemas)
    allowing = [schema for schema in meta_schemas if schema_paths.allows(schema, fields)]
    if allowing and not any(schema_paths.declares(schema, fields) for schema in allowing):
        declares = f"the schema of {role} declares" if role else "no role's schema declares"
        yield f"{declares} {'no' if role else 'a'} property {'.'.join(fields)!r}"


def _meta(
    path: Path, role: str | None, schemas: Mapping[str, Any]
) -> tuple[Sequence[str], list[Any]]:
    """Returns where in a meta a path leads, and the schemas that describe it; none for a path
    elsewhere."""
    if path.head not in _OF_STEP or path.fields[:1] != ("meta",) or len(path.fields) == 1:
        return (), []
    if role is None:
        return path.fields[1:], list(schemas.values())
    return path.fields[1:], [schemas[role]] if role in schemas and role != START else []


def _owner(role: str | None) -> str:
    return f"the schema of {role} has" if role else "the schemas of the roles have"


@cache
def _fields(type: str) -> tuple[str, ...]:
    return tuple(builtin()[type]["properties"])
