"""Names that a rule reads and that nothing has are errors; what may be there is not."""

from __future__ import annotations

from typing import Any

import pytest

from engine.workflow.definition import CheckReport, check
from tests.engine.workflow.test_definition import LINE, STATUS, definition, role, rule, when_report

OPEN = {"name": "m", "type": "object", "properties": {"status": {"enum": ["yes", "no"]}}}


def errors(when: str) -> list[str]:
    return [line.removeprefix("$.moderator[2].when: ") for line in when_report(when).errors]


@pytest.mark.parametrize(
    ("when", "error"),
    [
        ("step[-1].meta.status = 'yes'", "unknown name 'step'; there are start, steps, threadId"),
        ("$count(stepz) > 1", "unknown name 'stepz'"),
        ("stepz ~> $count()", "unknown name 'stepz'"),
        ("[1, stepz]", "unknown name 'stepz'"),
        ("{'a': stepz}.a", "unknown name 'stepz'"),
        ("stepz ? true : false", "unknown name 'stepz'"),
        ("($f := function($x) { stepz }; $f(1))", "unknown name 'stepz'"),
        ("role = 'a'", "unknown name 'role'"),
        ("steps[rol = 'a']", "a step has no field 'rol'"),
        ("$steps[-1][rol = 'a' and index > 1]", "a step has no field 'rol'"),
        ("steps[-1].output.status = 'yes'", "a step has no field 'output'; there are index, role"),
        ("$steps[-1].status", "a step has no field 'status'"),
        ("$last('a').mta", "a step has no field 'mta'"),
        ("$exists(steps.output)", "a step has no field 'output'"),
        ("start.inptu", "start has no field 'inptu'; there are workflow, input"),
        ("$last('a').meta.m", "the schema of a has no property 'm'; there are status, list, why"),
        ("$first('a').meta.stat = 'yes'", "the schema of a has no property 'stat'"),
        ("steps[-1].meta.m", "the schema of b has no property 'm'"),
        ("steps[role = 'a'][-1].meta.m", "the schema of a has no property 'm'"),
        ("$last('a').meta.status.code = 1", "the schema of a has no property 'status.code'"),
        ("steps[0].meta.m", "the schemas of the roles have no property 'm'"),
    ],
)
def test_a_name_that_nothing_has(when: str, error: str) -> None:
    (found,) = errors(when)
    assert found.startswith(error)
    assert when_report(when).warnings == []  # one mistake is said once


@pytest.mark.parametrize(
    "when",
    [
        "start.maxRounds > 2 and threadId != ''",
        "$count(steps[role = 'a' and index > 2]) > 1",
        "steps.{'r': role}",
        "steps.(role = 'a')",
        "steps{role: $count($)}",
        "steps^(>index)[0].role",
        "$map(steps, function($s) { $s.role })",
        "$reduce(steps, function($a, $b) { $a + $b.index }, 0)",
        "($f := function($x) { $x.role }; $f(steps[-1]) = 'a')",
        "steps#$i[$i = 0].role",
        "steps@$s[$s.role = 'a']",
        "$$.steps[0].role",
        "**.role",
        "steps ~> $count()",
        "`steps`[0]",
        "steps ~> |$|{'a': role}|",
        "[steps[-1].role, start.depth]",
        "steps[$contains(role, 'a')]",
        "steps[$$.threadId = 'x']",
        "$last('a').meta.list = 1",
        "-start.depth",
        "steps[-1].meta",
    ],
)
def test_a_name_that_is_there(when: str) -> None:
    assert errors(when) == []


def test_an_open_schema_may_hold_what_it_does_not_declare() -> None:
    rules = [*LINE[:2], rule("b", "__end__", "$last('a').meta.m"), rule("b", "__end__")]
    report = check(definition(rules, a=OPEN, b=None))
    assert report == CheckReport(
        [], ["$.moderator[2].when: the schema of a declares no property 'm'"]
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"name": "m", "type": "object"},
        {**OPEN, "patternProperties": {"^m": {}}},
        {**OPEN, "additionalProperties": {"type": "string"}},
        {**OPEN, "$ref": "#/$defs/x", "$defs": {"x": {}}},
        {
            **OPEN,
            "if": {"properties": {"status": {"const": "no"}}},
            "then": {"properties": {"m": {}}},
        },
        {**OPEN, "allOf": [{"properties": {"m": {}}}]},
        {"name": "m", "properties": {"list": {"items": {"properties": {"m": {}}}}, "m": {}}},
    ],
)
def test_a_schema_that_may_declare_it(schema: dict[str, Any]) -> None:
    rules = [*LINE[:2], rule("b", "__end__", "$last('a').meta.m"), rule("b", "__end__")]
    assert check(definition(rules, a=schema, b=None)) == CheckReport([], [])


def test_what_the_first_items_of_an_array_have_is_there() -> None:
    first = {"type": "array", "prefixItems": [{"properties": {"m": {}}}], "items": False}
    schema = {"name": "m", "type": "object", "properties": {"list": first}}
    rules = [*LINE[:2], rule("b", "__end__", "$last('a').meta.list.m"), rule("b", "__end__")]
    assert check(definition(rules, a=schema, b=None)) == CheckReport([], [])


def test_a_role_has_the_name_of_its_key() -> None:
    given = definition(LINE, a=STATUS, b=STATUS)
    given["roles"]["a"] = role("zzz")
    assert check(given).errors == ["$.roles.a.name: must be 'a', its key; or leave it out"]


def test_a_workflow_may_end_where_no_rule_matches() -> None:
    rules = [rule("__start__", "a"), rule("a", "b", "$last('a').meta.status = 'yes'")]
    report = check(definition(rules, a=STATUS, b=None))
    assert report.errors == []
    assert report.warnings == []
