"""References in a payload, and the functions that collect them.

A collector appends the references in each of some values, which have one schema, to a list. A
compiled schema is a tree of collectors; they check nothing themselves: `casfs.store.nodes.schema`
has checked the payload before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from casfs.digest import HEX


class Ref(NamedTuple):
    """A reference found in a payload. `cas_type`: the type that its target must have, or None.
    `is_local`: only the store that recorded it has to have the target, and nothing takes it along
    to another store unless asked. `is_weak`: gc may delete the target before the node."""

    hash: str
    cas_type: str | None
    is_local: bool = False
    is_weak: bool = False

    @property
    def may_dangle(self) -> bool:
        return self.is_local or self.is_weak


Collect = Callable[[Iterable[Any], list[Ref]], None]


def only_set(parts: Iterable[Collect | None]) -> list[Collect]:
    return [collect for collect in parts if collect]


def in_turn(parts: list[Collect]) -> Collect | None:
    if len(parts) <= 1:
        return parts[0] if parts else None

    def collect(values: Iterable[Any], refs: list[Ref]) -> None:
        for value in values:
            for part in parts:
                part((value,), refs)

    return collect


def collect_ref(schema: dict[str, Any]) -> Collect:
    cas_type: str | None = schema.get("cas_type")
    is_local: bool = schema.get("cas_local", False)
    is_weak: bool = schema.get("cas_weak", False)

    new_tuple = tuple.__new__  # without the Python function that a NamedTuple's own is

    def collect(values: Iterable[Any], refs: list[Ref]) -> None:
        for value in values:
            if isinstance(value, str) and HEX.match(value):
                refs.append(new_tuple(Ref, (value, cas_type, is_local, is_weak)))

    return collect


def collect_if(
    test: Callable[[Any], bool], then: Collect | None, other: Collect | None = None
) -> Collect:
    def collect(values: Iterable[Any], refs: list[Ref]) -> None:
        for value in values:
            chosen = then if test(value) else other
            if chosen:
                chosen((value,), refs)

    return collect


def has_key(name: str, value: Any) -> bool:
    return isinstance(value, dict) and name in value


def collect_object(
    named: dict[str, Collect | None],
    patterns: list[tuple[Callable[[str], bool], Collect | None]],
    additional: Collect | None,
) -> Collect:
    def collect_members(members: dict[str, Any], refs: list[Ref]) -> None:
        for key, item in members.items():
            known = key in named
            if known and (part := named[key]):
                part((item,), refs)
            for matches, matched in patterns:
                if matches(key):
                    known = True
                    if matched:
                        matched((item,), refs)
            if additional and not known:
                additional((item,), refs)

    def collect(values: Iterable[Any], refs: list[Ref]) -> None:
        for value in values:
            if isinstance(value, dict):
                collect_members(value, refs)

    return collect


def collect_array(first: list[Collect | None], remaining: Collect | None) -> Collect:
    def collect(values: Iterable[Any], refs: list[Ref]) -> None:
        for value in values:
            if not isinstance(value, list | tuple):  # Python's callers may give either
                continue
            for part, item in zip(first, value, strict=False):
                if part:
                    part((item,), refs)
            if remaining:
                remaining(value[len(first) :], refs)

    return collect
