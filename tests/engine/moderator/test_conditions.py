"""What an expression sees of a thread that grows."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.errors import Invalid
from engine.moderator.conditions import ExpressionScope, LocalEvaluator
from engine.moderator.decision import DecisionInput


def step(role: str, n: int) -> dict[str, Any]:
    return {"role": role, "meta": {"n": n}}


def test_steps_can_be_added() -> None:
    history = ExpressionScope({"depth": 2}, "t")
    assert history.holds("$count(steps) = 0 and $not($exists($last('a')))")
    history.add([step("a", 1), step("b", 2)])
    assert history.holds("$count(steps) = 2 and $steps[-1].role = 'b' and $last('a').meta.n = 1")
    history.add([step("a", 3)])
    assert history.holds("$first('a').meta.n = 1 and $last('a').meta.n = 3 and steps = $steps")
    assert history.holds("$last('a') = steps[-1] and $count($steps[role = 'a']) = 2")
    assert history.holds("start.depth = 2 and $start.depth = 2 and threadId & $threadId = 'tt'")


def test_an_expression_changes_nothing() -> None:
    history = ExpressionScope({}, "t")
    for when in ("steps{'a': 1}", "$steps ~> | $ | {'role': 'z'} |"):
        history.holds(when)
        assert history.holds("$count(steps) = 0 and $count($steps) = 0")
    history.add([step("a", 1)])
    assert history.holds("$string(steps ~> | $ | {'role': 'z'} |) ~> $contains('z')")
    assert history.holds("steps.role = 'a' and $first('a').role = 'a'")


def test_it_fails() -> None:
    with pytest.raises(Invalid, match="ZeroDivisionError"):
        ExpressionScope({}, "t").holds("1 / 0")


async def test_an_evaluator_in_this_process() -> None:
    context = DecisionInput([step("a", 1)], {"depth": 0}, "t")
    assert await LocalEvaluator().holds("$count(steps) = 1 and $last('a').meta.n = 1", context)
    assert not await LocalEvaluator().holds("start.depth", context)
