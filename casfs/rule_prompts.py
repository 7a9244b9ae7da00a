"""The prompt of a moderator rule: text for the next role, with `{{ field }}` for what the last
step's meta holds.

A field is the name of a property, or names with dots between; it goes through arrays, as a JSONata
path does. A string is inserted as it is, any other value as JSON, one that is missing as nothing.
Values come from agents: each is cut to MAX_VALUE_CHARS, the whole text to MAX_CHARS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from casfs.workflow_path import START

MAX_VALUE_CHARS, MAX_CHARS = 8_000, 64_000
_PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_FIELD = re.compile(r"[^\W\d][\w-]*(?:\.[^\W\d][\w-]*)*")
_MISSING = object()


def fields(template: str) -> list[tuple[str, tuple[str, ...] | None]]:
    """Returns (text between the braces, names) of each place; no names where it is no field."""
    texts = [match[1].strip() for match in _PLACE.finditer(template)]
    return [(one, tuple(one.split(".")) if _FIELD.fullmatch(one) else None) for one in texts]


def filled(template: str, meta: object) -> str:
    """Returns a template with the values of `meta` in it."""

    def value(match: re.Match[str]) -> str:
        found = _value(meta, match[1].strip().split("."))
        if found is _MISSING:
            return ""
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        return _cut(text, MAX_VALUE_CHARS)

    return _cut(_PLACE.sub(value, template), MAX_CHARS)


def of_rule(rule: Mapping[str, Any], step: Mapping[str, Any] | None) -> str | None:
    """Returns the filled prompt of a rule, None where it has none; `step`: the last one."""
    template = rule.get("prompt")
    return None if template is None else filled(template, (step or {}).get("meta"))


def at(
    rules: Sequence[Mapping[str, Any]], index: int | None, step: Mapping[str, Any] | None
) -> str | None:
    """Returns the filled prompt of the rule that a pending step's intent names."""
    return None if index is None or index >= len(rules) else of_rule(rules[index], step)


def between(
    rules: Sequence[Mapping[str, Any]], role: str, step: Mapping[str, Any] | None
) -> list[str | None]:
    """Returns what the rules from the last step's role to `role` hand over: which of them decided
    is not recorded."""
    origin = START if step is None else step["role"]
    found = [of_rule(one, step) for one in rules if (one["from"], one["to"]) == (origin, role)]
    return list(dict.fromkeys([*(one for one in found if one is not None), None]))


def _value(data: Any, names: Sequence[str]) -> Any:
    for name in names:
        if isinstance(data, list):
            data = [one for item in data if (one := _value(item, [name])) is not _MISSING]
        elif isinstance(data, Mapping):
            data = data.get(name, _MISSING)
        else:
            return _MISSING
    return data


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit} more characters)"
