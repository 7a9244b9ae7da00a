"""The warning "it may be that no rule matches": only where a meta that fits may have no rule."""

from __future__ import annotations

from typing import Any

import pytest

from engine.workflow.definition import check

NO_RULE = "it may be that no rule matches after a "
STATUS = {"status": {"enum": ["ok", "bad", "worse"]}, "done": {"type": "boolean"}}


def warnings(schema: dict[str, Any], *whens: str) -> list[str]:
    rules = [{"from": "__start__", "to": "a", "when": None}]
    rules += [{"from": "a", "to": "__end__", "when": when} for when in whens]
    role = {
        "name": "a",
        "description": "",
        "systemPrompt": "",
        "extractPrompt": "",
        "schema": {"name": "a", "type": "object", **schema},
    }
    report = check({"name": "w", "description": "", "roles": {"a": role}, "moderator": rules})
    assert report.errors == []
    return report.warnings


def required(**properties: Any) -> dict[str, Any]:
    return {"properties": properties, "required": list(properties)}


COVERED: list[tuple[dict[str, Any], list[str]]] = [
    (
        required(**STATUS),
        [f"steps[-1].meta.status = '{value}'" for value in ("ok", "bad", "worse")],
    ),
    (required(**STATUS), ["$last('a').meta.status = 'ok'", "$steps[-1].meta.status != 'ok'"]),
    (
        required(**STATUS),
        ["steps[-1].meta.status in ['ok', 'bad']", "'worse' = steps[-1].meta.status"],
    ),
    (required(**STATUS), ["steps[-1].meta.done", "$not(steps[-1].meta.done)"]),
    (required(**STATUS), ["steps[-1].meta.done = true", "steps[-1].meta.done = false"]),
    (
        required(**STATUS),
        [
            "steps[-1].meta.status = 'ok' and steps[-1].meta.done",
            "steps[-1].meta.status != 'ok' or (steps[-1].meta.done = false)",
        ],
    ),
    (
        required(**STATUS),
        [
            "steps[-1].meta.status = 'ok'",
            "steps[-1].meta.status != 'ok' and $count(steps) < 3",
            "steps[-1].meta.status != 'ok' and $not($count(steps) < 3)",
            "steps[-1].meta.status = 'bad' or steps[-1].meta.status = 'worse'",
        ],
    ),
    (required(n={"type": "integer"}), ["steps[-1].meta.n >= 8", "steps[-1].meta.n < 8"]),
    (required(s={"type": "string"}), ["steps[-1].meta.s = 'x'", "steps[-1].meta.s != 'x'"]),
    (
        {"oneOf": [required(kind={"const": "x"}), required(kind={"const": "y"})]},
        ["steps[-1].meta.kind = 'x'", "steps[-1].meta.kind = 'y'"],
    ),
    (
        required(inner={"type": "object", **required(v={"enum": [1, 2]})}),
        ["steps[-1].meta.inner.v = 1", "steps[-1].meta.inner.v = 2"],
    ),
    (required(**STATUS), ["steps[-1].meta.status"]),
]
OPEN: list[tuple[dict[str, Any], list[str]]] = [
    (required(**STATUS), ["steps[-1].meta.status = 'ok'", "steps[-1].meta.status = 'bad'"]),
    ({"properties": STATUS}, ["steps[-1].meta.done", "$not(steps[-1].meta.done = true)", "false"]),
    (required(**STATUS), ["steps[-2].meta.done", "steps[-2].meta.done = false"]),
    (
        required(**STATUS),
        ["steps[-1].meta.done and $count(steps) > 1", "$not(steps[-1].meta.done)"],
    ),
    (required(n={"type": "number"}), ["steps[-1].meta.n > 8", "steps[-1].meta.n < 8"]),
    (required(s={"type": "string"}), ["steps[-1].meta.s = 'x'", "steps[-1].meta.s = 'y'"]),
    (
        {"oneOf": [required(kind={"const": "x"}), {"properties": {"kind": {"const": "y"}}}]},
        ["steps[-1].meta.kind = 'x'", "steps[-1].meta.kind = 'y'"],
    ),
    (required(b={"enum": [0, False]}), ["steps[-1].meta.b = 0"]),
]


@pytest.mark.parametrize(("schema", "whens"), COVERED)
def test_rules_that_cover_all_are_not_warned_of(schema: dict[str, Any], whens: list[str]) -> None:
    assert not [line for line in warnings(schema, *whens) if NO_RULE in line]


@pytest.mark.parametrize(("schema", "whens"), OPEN)
def test_rules_that_leave_a_gap(schema: dict[str, Any], whens: list[str]) -> None:
    assert [line for line in warnings(schema, *whens) if NO_RULE in line]
