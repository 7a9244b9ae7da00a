"""The prompt of a moderator rule: text for the next role, with `{{ field }}` for what the last
step's meta holds.

A field is a property's name, or names with dots between; it goes through arrays, as a JSONata path
does. A string is inserted as it is, any other value as JSON, a missing one as nothing. Values come
from agents: each is cut to MAX_VALUE_CHARS, the whole text to MAX_CHARS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from casfs.threads.workflow_path import START

MAX_VALUE_CHARS = 8_000
MAX_CHARS = 64_000
Rules: TypeAlias = Sequence[Mapping[str, Any]]
Step: TypeAlias = Mapping[str, Any] | None  # the payload of the last step, None before the first
_PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_FIELD = re.compile(r"[^\W\d][\w-]*(?:\.[^\W\d][\w-]*)*")


def fields(template: str) -> list[tuple[str, tuple[str, ...] | None]]:
    """Returns (text between the braces, names) of each place; no names where it is not a field."""
    texts = [match[1].strip() for match in _PLACE.finditer(template)]
    return [(text, tuple(text.split(".")) if _FIELD.fullmatch(text) else None) for text in texts]


def filled(rule: Mapping[str, Any], step: Step) -> str | None:
    """Returns a rule's prompt for the role after `step`, None where it has none."""

    def value(match: re.Match[str]) -> str:
        field_value = _value((step or {}).get("meta"), match[1].strip().split("."))
        text = (
            field_value
            if isinstance(field_value, str)
            else json.dumps(field_value, ensure_ascii=False)
        )
        return _cut(text, MAX_VALUE_CHARS)

    return _cut(_PLACE.sub(value, rule["prompt"]), MAX_CHARS) if "prompt" in rule else None


def between(rules: Rules, role: str, step: Step) -> list[str | None]:
    """Returns the texts that the rules from `step` to `role` may have given."""
    ends = (START if step is None else step["role"], role)
    texts = (filled(rule, step) for rule in rules if (rule["from"], rule["to"]) == ends)
    return list(dict.fromkeys([*(text for text in texts if text is not None), None]))


def of_intent(rules: Rules, intent: Mapping[str, Any], step: Step) -> str | None:
    """Returns the text of the rule that a pending step's intent names."""
    index = intent.get("rule", len(rules))
    return filled(rules[index], step) if index < len(rules) else None


def _value(data: Any, names: Sequence[str]) -> Any:
    for name in names:
        if isinstance(data, list):
            data = [
                mapping[name]
                for mapping in data
                if isinstance(mapping, Mapping) and name in mapping
            ]
        else:
            data = data.get(name, "") if isinstance(data, Mapping) else ""
    return data


def _cut(text: str, limit: int) -> str:
    excess = len(text) - limit
    return text if excess <= 0 else f"{text[:limit]}… ({excess} more characters)"
