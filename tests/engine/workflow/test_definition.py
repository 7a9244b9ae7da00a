"""Checking workflow definitions: each fault is one line that says where it is."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import engine
from casfs.errors import Invalid
from casfs.store.nodes.ref_collectors import Ref
from casfs.store.nodes.schema import Schema
from engine.workflow.definition import CheckReport, check

WORKFLOWS = Path(engine.__file__).parent / "workflows"
HASH = "ab" * 32


def shipped(name: str) -> Any:
    return json.loads((WORKFLOWS / f"{name}.json").read_text())


def role(name: str, schema: Any = None) -> dict[str, Any]:
    return {
        "name": name,
        "description": "d",
        "systemPrompt": "s",
        "extractPrompt": "e",
        "schema": schema or {"name": f"{name}-meta", "type": "object"},
    }


def rule(origin: str, to: str, when: str | None = None) -> dict[str, Any]:
    return {"from": origin, "to": to, "when": when}


def definition(rules: list[Any], **schemas: Any) -> dict[str, Any]:
    roles = {name: role(name, schema) for name, schema in schemas.items()}
    return {"name": "w", "description": "d", "roles": roles, "moderator": rules}


LINE = [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")]
LOOP = [rule("__start__", "a"), rule("a", "b"), rule("b", "a", "false"), rule("b", "__end__")]
STATUS = {
    "name": "m",
    "type": "object",
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "status": {"const": "yes"},
                "list": {"type": "array", "items": {"enum": [1]}},
            },
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"status": {"const": "no"}, "why": {"type": ["string", "null"]}},
            "additionalProperties": False,
        },
    ],
}


def when_report(when: str, rules: list[Any] = LINE) -> CheckReport:
    """The report of rules that end b by `when`, or by whatever comes."""
    kept = [one for one in rules if one["to"] != "__end__"]
    ends = [rule("b", "__end__", when), rule("b", "__end__")]
    return check(definition([*kept, *ends], a=STATUS, b=STATUS))


@pytest.mark.parametrize("name", ["develop", "solve-issue"])
def test_shipped_workflows_are_clean(name: str) -> None:
    assert check(shipped(name)) == CheckReport([], [])


@pytest.mark.parametrize("name", ["develop", "solve-issue"])
def test_shipped_roles_say_what_to_do(name: str) -> None:
    for key, body in shipped(name)["roles"].items():
        assert body["name"] == key
        assert len(body["systemPrompt"]) > 200
        for field in _fields(body["schema"]):
            assert field in body["extractPrompt"], (key, field)


def _fields(schema: dict[str, Any]) -> set[str]:
    own = set(schema.get("properties", ()))
    return own.union(*(_fields(one) for one in schema.get("oneOf", ())))


TOOLS = {"packageManager": "uv", "testCommand": "pytest", "lintCommand": None, "buildCommand": None}
PREPARED = {"repoPath": "/r", "defaultBranch": "main", "conventions": None, "toolchain": TOOLS}
DEVELOPED = {"branch": "b", "commitSha": "c", "filesChanged": ["a.py"], "summary": "s"}

FITS: list[tuple[str, str, dict[str, Any]]] = [
    ("develop", "planner", {"status": "planned", "phases": [{"hash": HASH, "title": "t"}]}),
    ("develop", "planner", {"status": "aborted", "reason": "r"}),
    ("develop", "coder", {"completedPhase": HASH, "status": "failed"}),
    (
        "develop",
        "coder",
        {"completedPhase": HASH, "status": "completed", "filesChanged": ["a"], "summary": "s"},
    ),
    ("develop", "reviewer", {"status": "approved"}),
    ("develop", "reviewer", {"status": "rejected", "issues": ["i"]}),
    ("develop", "tester", {"status": "passed"}),
    ("develop", "tester", {"status": "failed", "details": "d"}),
    ("develop", "committer", {"status": "committed", "branch": "b", "commitSha": "c"}),
    ("develop", "committer", {"status": "failed", "error": "e"}),
    ("solve-issue", "preparer", PREPARED),
    ("solve-issue", "developer", DEVELOPED),
    ("solve-issue", "submitter", {"status": "submitted", "prUrl": "https://x"}),
    ("solve-issue", "submitter", {"status": "failed", "error": "e"}),
]

DOES_NOT_FIT: list[tuple[str, str, dict[str, Any]]] = [
    ("develop", "planner", {"status": "planned", "phases": [{"hash": "short", "title": "t"}]}),
    ("develop", "planner", {"status": "planned", "phases": []}),
    ("develop", "planner", {"status": "planned", "reason": "r"}),
    ("develop", "planner", {"status": "aborted"}),
    ("develop", "coder", {"completedPhase": HASH, "status": "planned"}),
    ("develop", "coder", {"status": "completed"}),
    ("develop", "reviewer", {"status": "approved", "issues": []}),
    ("develop", "reviewer", {"status": "rejected"}),
    ("develop", "tester", {"status": "passed", "extra": 1}),
    ("develop", "committer", {"status": "committed", "branch": "b"}),
    ("solve-issue", "preparer", {**PREPARED, "toolchain": {"packageManager": "uv"}}),
    ("solve-issue", "preparer", {**PREPARED, "defaultBranch": None}),
    ("solve-issue", "developer", {**DEVELOPED, "summary": None}),
    ("solve-issue", "submitter", {"status": "submitted", "error": "e"}),
]


def role_schema(workflow: str, name: str) -> Schema:
    schema = shipped(workflow)["roles"][name]["schema"]
    return Schema(schema, extra=frozenset({"name"}))


@pytest.mark.parametrize(("workflow", "name", "meta"), FITS)
def test_metas_that_fit(workflow: str, name: str, meta: dict[str, Any]) -> None:
    role_schema(workflow, name).check(meta)


@pytest.mark.parametrize(("workflow", "name", "meta"), DOES_NOT_FIT)
def test_metas_that_do_not_fit(workflow: str, name: str, meta: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        role_schema(workflow, name).check(meta)


def test_phases_are_refs_to_content() -> None:
    refs = role_schema("develop", "planner").refs(FITS[0][2])
    refs += role_schema("develop", "coder").refs(FITS[2][2])
    assert refs == [Ref(HASH, "content"), Ref(HASH, "content")]


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (("name",), 1, "$.name: must be a string"),
        (("name",), "a/b", "$.name: 'a/b' does not fit"),
        (("roles",), [], "$.roles: must be an object"),
        (("moderator",), {}, "$.moderator: must be an array"),
        (("more",), 1, "$.more: no such field; there are name, description"),
        (("roles", "coder"), "h", "$.roles.coder: must be an object"),
        (("roles", "coder", "systemPrompt"), None, "$.roles.coder.systemPrompt: must be a string"),
        (("roles", "coder", "name"), "", "$.roles.coder.name: must not be empty"),
        (("roles", "coder", "tools"), [], "$.roles.coder.tools: no such field"),
        (("roles", "coder", "schema", "name"), "", "$.roles.coder.schema.name: a role-schema"),
        (("roles", "coder", "schema", "type"), "strin", "$.roles.coder.schema: not a usable"),
        (("roles", "coder", "schema", "typo"), 1, "$.roles.coder.schema: "),
        (("roles", "__end__"), role("x"), "$.roles.__end__: __end__ is a reserved name"),
        (("roles", "1st"), role("x"), '$.roles["1st"]: a role\'s name must fit'),
        (("roles", "a b"), role("x"), '$.roles["a b"]: a role\'s name must fit'),
        (("moderator", 2), "x", "$.moderator[2]: must be an object"),
        (("moderator", 2, "when"), True, "$.moderator[2].when: must be a string or null"),
        (("moderator", 2, "if"), "x", "$.moderator[2].if: no such field"),
        (("moderator", 2, "to"), "codr", "$.moderator[2].to: unknown role 'codr'; there are pl"),
        (("moderator", 2, "from"), "x", "$.moderator[2].from: unknown role 'x'"),
        (("moderator", 2, "to"), "__start__", "$.moderator[2].to: __start__ cannot stand here"),
        (("moderator", 2, "from"), "__end__", "$.moderator[2].from: __end__ cannot stand here"),
        (("moderator", 3, "when"), "1 +", "$.moderator[3].when: does not parse at position 3: "),
        (("moderator", 3, "when"), "", "$.moderator[3].when: does not parse at position 0: "),
        (("moderator", 3, "when"), "$stepz[0]", "$.moderator[3].when: $stepz is not bound"),
    ],
)
def test_one_fault_is_one_error(path: tuple[str | int, ...], value: Any, error: str) -> None:
    changed = shipped("develop")
    place = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    (found,) = check(changed).errors
    assert found.startswith(error)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (("description",), "$.description: missing"),
        (("moderator",), "$.moderator: missing"),
        (("roles", "coder", "extractPrompt"), "$.roles.coder.extractPrompt: missing"),
        (("moderator", 4, "when"), "$.moderator[4].when: missing"),
    ],
)
def test_missing_fields(path: tuple[str | int, ...], error: str) -> None:
    changed = shipped("develop")
    place = changed
    for part in path[:-1]:
        place = place[part]
    del place[path[-1]]
    assert check(changed).errors == [error]


@pytest.mark.parametrize("value", [None, 1, "x", [], [{}]])
def test_what_is_no_object(value: Any) -> None:
    assert check(value) == CheckReport(["$: must be an object"], [])


def test_all_faults_are_found_at_once() -> None:
    changed = shipped("develop")
    del changed["description"]
    changed["roles"]["coder"]["name"] = 1
    changed["moderator"][2]["to"] = "x"
    changed["moderator"][3]["when"] = "("
    assert [line.split(":")[0] for line in check(changed).errors] == [
        "$.description",
        "$.roles.coder.name",
        "$.moderator[2].to",
        "$.moderator[3].when",
    ]


def test_the_definition_is_not_changed() -> None:
    given = shipped("develop")
    before = copy.deepcopy(given)
    check(given)
    assert given == before


@pytest.mark.parametrize("name", ["now", "millis", "random", "shuffle", "eval"])
@pytest.mark.parametrize("form", ["${}()", "$map(steps, ${})", "(${} := 1; ${})", "steps ~> ${}"])
def test_refused_functions(name: str, form: str) -> None:
    report = when_report(form.replace("{}", name))
    assert report.errors == [
        f"$.moderator[2].when: ${name} is refused: deciding again must give the same decision"
    ]


@pytest.mark.parametrize(
    "when",
    [
        "$steps and $start and $threadId and $first('a') and $last('b')",
        "$map(steps, function($s) { $s.role }) = 'a'",
        "($n := $count(steps); $n > 3)",
        "steps@$s[$s.role = 'a']",
    ],
)
def test_bound_variables(when: str) -> None:
    assert when_report(when) == CheckReport([], [])


def test_no_way_out_of_a_loop() -> None:
    rules = [*LINE[:1], rule("a", "b"), rule("a", "__end__"), rule("b", "a")]
    report = check(definition(rules, a=None, b=None))
    assert report.errors == ["$.moderator: no path from __start__ to __end__"]
    assert "$.moderator[2]: never tried, rule 1 before it always matches" in report.warnings


def test_a_trap() -> None:
    rules = [*LINE[:1], rule("a", "b", "false"), rule("a", "__end__"), rule("b", "b")]
    assert check(definition(rules, a=None, b=None)).errors == [
        "$.moderator: no path from b to __end__"
    ]


def test_no_rules() -> None:
    report = check(definition([], a=None))
    assert report.errors == ["$.moderator: no path from __start__ to __end__"]


def test_unreachable_role() -> None:
    report = check(definition([*LINE, rule("c", "__end__")], a=None, b=None, c=None))
    assert report == CheckReport([], ["$.roles.c: no rule leads to it from __start__"])


def test_a_fault_is_one_line_whatever_names_it_has() -> None:
    when = "steps[role='x\ny'].meta.a = 'b\nc' or $last('a').meta.status = 'b\nc'"
    roles: dict[str, Any] = {"a": None, "a\nb": {"name": "m", "properties": {"x\ny": 1}}}
    rules = [rule("__start__", "x\ny"), rule("a", "__end__", "(\n1 +"), rule("a", "a", when)]
    errors = check(definition(rules, **roles)).errors
    report = check(definition([*LINE[:1], rule("a", "__end__", when), rule("a", "a")], a=STATUS))
    assert (len(errors), len(report.warnings)) == (4, 1)
    assert not [line for line in (*errors, *report.warnings) if "\n" in line]


@pytest.mark.parametrize(
    ("when", "slip"),
    [
        ("$count(steps[role='c']) > 1", "no role is named 'c'"),
        ("$steps[-1].role = 'c'", "no role is named 'c'"),
        ("$last('c').meta.status = 'yes'", "no role is named 'c'"),
        ("$exists($first('c'))", "no role is named 'c'"),
    ],
)
def test_a_role_that_does_not_exist(when: str, slip: str) -> None:
    (warning,) = when_report(when).warnings
    assert warning.startswith(f"$.moderator[2].when: {slip}")


@pytest.mark.parametrize(
    "schema",
    [
        {"name": "m", "type": "object"},
        {"name": "m", "patternProperties": {"^s": {"const": "x"}}, "additionalProperties": False},
        {"name": "m", "properties": {"s": {"$ref": "#/$defs/s"}}, "$defs": {"s": {"const": "x"}}},
        {"name": "m", "properties": {"s": {"anyOf": [{"const": "x"}, {"type": "string"}]}}},
        {"name": "m", "additionalProperties": {"enum": ["x", "v"]}},
    ],
)
def test_schemas_are_judged_leniently(schema: dict[str, Any]) -> None:
    rules = [
        rule("__start__", "a"),
        rule("a", "__end__", "$last('a').meta.s = 'v'"),
        rule("a", "a"),
    ]
    assert check(definition(rules, a=schema)) == CheckReport([], [])


@pytest.mark.parametrize(
    ("path", "end"),
    [
        (("moderator", 2, "from"), ", __start__"),
        (("moderator", 2, "to"), ", __end__"),
        (("roles", "coder", "sistemPrompt"), ", cacheable, policy, agent"),
    ],
)
def test_a_list_of_names_has_all_that_a_file_takes(path: tuple[str | int, ...], end: str) -> None:
    changed = place = shipped("develop")
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = "_start_"
    assert check(changed).errors[0].endswith(end)
