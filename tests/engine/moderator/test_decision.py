"""The moderator: what the shipped workflows decide, and the rules of deciding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

import engine
from engine.moderator.conditions import LocalEvaluator
from engine.moderator.decision import (
    END,
    Decision,
    DecisionInput,
    End,
    Next,
    Rule,
    RuleFailed,
    decide,
    unconditional,
)

WORKFLOWS = Path(engine.__file__).parent / "workflows"
ONE, TWO, OTHER = "11" * 32, "22" * 32, "33" * 32

Step = dict[str, Any]


def evaluate(rules: Sequence[Rule], context: DecisionInput) -> Decision:
    return trio.run(decide, rules, context, LocalEvaluator())


def rules_of(workflow: str) -> list[Rule]:
    rules: list[Rule] = json.loads((WORKFLOWS / f"{workflow}.json").read_text())["moderator"]
    return rules


def rule(origin: str, to: str, when: str | None = None) -> Rule:
    return {"from": origin, "to": to, "when": when}


def step(role: str, **meta: Any) -> Step:
    return {"role": role, "meta": meta, "previous": None, "childThreads": []}


def planned(*phases: str) -> Step:
    return step("planner", status="planned", phases=[{"hash": h, "title": "t"} for h in phases])


def coded(phase: str) -> Step:
    return step("coder", completedPhase=phase, status="completed")


def context(*steps: Step) -> DecisionInput:
    return DecisionInput(
        steps, {"input": ONE, "depth": 0, "parentState": None}, "01J00000000000000000000000"
    )


P1, P2 = planned(ONE), planned(ONE, TWO)
APPROVED, REJECTED = step("reviewer", status="approved"), step("reviewer", status="rejected")
PASSED, FAILED = step("tester", status="passed"), step("tester", status="failed")
COMMITTED = step("committer", status="committed", branch="b", commitSha="c")

DEVELOP: list[tuple[str, list[Step], Decision]] = [
    ("nothing yet", [], Next("planner")),
    ("planned", [P1], Next("coder")),
    ("aborted", [step("planner", status="aborted", reason="r")], End(0, "ended after planner")),
    ("one of one", [P1, coded(ONE)], Next("reviewer")),
    ("one of two", [P2, coded(ONE)], Next("coder")),
    ("the second of two first", [P2, coded(TWO)], Next("coder")),
    ("two of two", [P2, coded(ONE), coded(TWO)], Next("reviewer")),
    ("two of two, in the other order", [P2, coded(TWO), coded(ONE)], Next("reviewer")),
    ("a repeated phase", [P2, coded(ONE), coded(ONE)], Next("coder")),
    (
        "a repeated phase, then the other",
        [P2, coded(ONE), coded(ONE), coded(TWO)],
        Next("reviewer"),
    ),
    ("an unknown phase", [P1, coded(OTHER)], Next("coder")),
    ("an unknown phase of two", [P2, coded(ONE), coded(OTHER)], Next("coder")),
    ("approved", [P1, coded(ONE), APPROVED], Next("tester")),
    ("rejected", [P1, coded(ONE), REJECTED], Next("coder")),
    (
        "approved after a rejection",
        [P1, coded(ONE), REJECTED, coded(ONE), APPROVED],
        Next("tester"),
    ),
    ("rejected after an approval", [P1, coded(ONE), APPROVED, FAILED, REJECTED], Next("coder")),
    ("passed", [P1, coded(ONE), APPROVED, PASSED], Next("committer")),
    ("failed", [P1, coded(ONE), APPROVED, FAILED], Next("coder")),
    ("fixed after a failure", [P1, coded(ONE), APPROVED, FAILED, coded(ONE)], Next("reviewer")),
    ("committed", [P1, coded(ONE), APPROVED, PASSED, COMMITTED], End(0, "ended after committer")),
]


@pytest.mark.parametrize(
    ("steps", "decision"), [case[1:] for case in DEVELOP], ids=[case[0] for case in DEVELOP]
)
def test_develop(steps: list[Step], decision: Decision) -> None:
    assert evaluate(rules_of("develop"), context(*steps)) == decision


def test_solve_issue_is_a_line() -> None:
    route: list[Step] = []
    for role in ("preparer", "developer", "submitter"):
        assert evaluate(rules_of("solve-issue"), context(*route)) == Next(role)
        route.append(step(role))
    assert evaluate(rules_of("solve-issue"), context(*route)) == End(0, "ended after submitter")


@pytest.mark.parametrize(
    "when",
    [
        "steps[0].role = 'a'",
        "$steps[0].role = 'a'",
        "$count(steps) = 3 and $count($steps) = 3",
        "$steps[-1].meta.n = 3",
        "$first('a').meta.n = 1",
        "$last('a').meta.n = 3",
        "$last('b').meta.n = 2",
        "$not($exists($first('c')))",
        "$not($exists($last('c')))",
        "$last('a') = $steps[-1]",
        "$count(steps[role='a']) = 2",
        "start.depth = 0 and $start.depth = 0",
        "start.parentState = null",
        "threadId = $threadId and $length(threadId) = 26",
        "$last('a').meta.flag",
        "steps[role='a'].meta.flag",
    ],
)
def test_what_an_expression_sees(when: str) -> None:
    steps = context(step("a", n=1, flag=False), step("b", n=2), step("a", n=3, flag=True))
    rules = [rule("a", "yes", when), rule("a", "no")]
    assert evaluate(rules, steps) == Next("yes")


@pytest.mark.parametrize(
    "when", ["0", "''", "nothing", "[]", "null", "{}", "steps.meta.none", "$sum"]
)
def test_what_casts_to_false_does_not_match(when: str) -> None:
    assert evaluate([rule("a", "yes", when)], context(step("a"))) == End(
        1, "no rule matches after a"
    )


@pytest.mark.parametrize("when", ["1", "'no'", "steps", "[0, 1]", "{'a': false}", "start", None])
def test_what_casts_to_true_matches(when: str | None) -> None:
    assert evaluate([rule("a", "yes", when)], context(step("a"))) == Next("yes")


@pytest.mark.parametrize(
    "when",
    [
        "$count($steps) = 1 and $count(steps) = 1",
        "$steps[0].role = 'a' and $steps[-1].meta.n = 1",
        "steps[role='a'].meta.n = 1 and $steps[role='a'].meta.list[0] = 'x'",
        "'x' in steps[role='a'].meta.list",
        "$first('a') = $last('a')",
        "$type(steps) = 'array' and $count($filter(steps, function($s) { $s.role = 'a' })) = 1",
    ],
)
def test_a_single_step_is_still_a_list(when: str) -> None:
    steps = context(step("a", n=1, list=["x"]))
    assert evaluate([rule("a", "yes", when)], steps) == Next("yes")


def test_expressions_before_the_first_step() -> None:
    rules = [
        rule("__start__", "no", "$exists($steps[0]) or $exists($first('a'))"),
        rule("__start__", "yes", "$count(steps) = 0"),
    ]
    assert evaluate(rules, context()) == Next("yes")


def test_the_first_match_wins() -> None:
    rules = [
        rule("b", "wrong"),
        rule("a", "no", "false"),
        rule("a", "yes", "true"),
        rule("a", "late"),
    ]
    assert evaluate(rules, context(step("a"))) == Next("yes")


def test_no_rule_at_all() -> None:
    assert evaluate([], context()) == End(1, "no rule matches after __start__")


def test_a_failing_rule_is_named() -> None:
    rules = [rule("a", "b", "false"), rule("a", "c", "1 +\n 'x'"), rule("a", "d")]
    decision = evaluate(rules, context(step("a")))
    assert isinstance(decision, RuleFailed)
    assert decision.reason.startswith("moderator rule 1 (a to c, when 1 + 'x'): evaluation failed")
    assert "right side of the + operator" in decision.reason
    assert "\n" not in decision.reason


def test_a_rule_that_does_not_parse_is_named() -> None:
    decision = evaluate([rule("a", "b", "1 +")], context(step("a")))
    assert isinstance(decision, RuleFailed)
    assert decision.reason.startswith("moderator rule 0 (a to b, when 1 +): does not parse")


def test_a_rule_behind_the_winner_is_not_evaluated() -> None:
    rules = [rule("a", "b", "true"), rule("a", "c", "1 / 0")]
    assert evaluate(rules, context(step("a"))) == Next("b")


@pytest.mark.parametrize(
    "when", ["steps{role: 1}", "steps ~> | $ | {'role': 'z'} |", "$append(steps, 1)"]
)
def test_deciding_changes_nothing(when: str) -> None:
    steps: Sequence[Step] = [step("a", list=[])]
    before = json.dumps(steps)
    first = evaluate([rule("a", "b", when)], DecisionInput(steps, {}, "t"))
    assert evaluate([rule("a", "b", when)], DecisionInput(steps, {}, "t")) == first == Next("b")
    assert json.dumps(steps) == before


def test_the_order_of_fields_does_not_matter() -> None:
    rules = [rule("a", "b", "$keys($steps[0].meta)[0] = 'x'"), rule("a", "c")]
    for meta in ({"x": 1, "y": 2}, {"y": 2, "x": 1}):
        assert evaluate(rules, context(step("a", **meta))) == Next("b")


def test_a_long_expression_is_shown_short() -> None:
    decision = evaluate([rule("a", "b", "1 / 0 & '" + "x" * 5000 + "'")], context(step("a")))
    assert isinstance(decision, RuleFailed)
    assert len(decision.reason) < 400
    assert "ZeroDivisionError" in decision.reason


async def test_a_rule_without_a_condition_asks_nobody() -> None:
    class Nobody:
        async def holds(self, when: str, context: DecisionInput) -> bool:
            raise AssertionError(when)

    assert await decide([rule("a", "b")], context(step("a")), Nobody()) == Next("b")


def test_what_is_decided_without_an_evaluator() -> None:
    rules: list[Rule] = [
        {"from": "a", "to": "b", "when": None},
        {"from": "b", "to": "a", "when": "true"},
        {"from": "c", "to": END, "when": None},
    ]
    assert unconditional(rules, "a") == Next("b")
    assert unconditional(rules, "b") is None
    assert unconditional(rules, "c") == End(0, "ended after c")
    assert unconditional(rules, "d") == End(1, "no rule matches after d")
