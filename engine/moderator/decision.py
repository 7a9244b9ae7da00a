"""The moderator's decision: the next role, by a workflow's rules and a thread's steps.

The rules of the last step's role (`__start__` before the first step) are tried in order;
the first whose `when` is null or casts to true wins. The variables of an expression are in
`engine.moderator.conditions`; evaluating it, and stopping it when it does not end, is up to the
Evaluator: the daemon's is a pool of processes (`engine.moderator.evaluator_pool`).

Decisions are pure: equal rules and steps give equal decisions; workflow checks refuse the
functions that would break that. A rule that fails does not raise: the decision is RuleFailed,
and the thread is suspended with the reason. Nothing here reads or writes the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, Protocol, TypeAlias, TypedDict

from casfs.errors import Invalid
from casfs.threads.workflow_path import END, START

COMPLETED = 0
NO_RULE = 1
MAX_CONDITION_CHARS = 160  # of an expression in a reason, which is one line

Rule = TypedDict("Rule", {"from": str, "to": str, "when": str | None, "prompt": NotRequired[str]})


@dataclass(frozen=True)
class DecisionInput:
    """The inputs of a decision. `steps` holds thread-step payloads, oldest first. An evaluator may
    cache the steps of a thread by identity: the same object is the same step."""

    steps: Sequence[Mapping[str, Any]]
    start: Mapping[str, Any]
    thread_id: str


@dataclass(frozen=True)
class Next:
    """Run this role. `rule`: index of the rule that says so, where it has a prompt."""

    role: str
    rule: int | None = None


@dataclass(frozen=True)
class End:
    """The thread is over."""

    return_code: int
    summary: str


@dataclass(frozen=True)
class RuleFailed:
    """A rule failed; the thread will be suspended with this reason."""

    reason: str


Decision: TypeAlias = Next | End | RuleFailed


class Evaluator(Protocol):
    """Evaluates expressions."""

    async def holds(self, when: str, context: DecisionInput) -> bool:
        """Returns whether `when` casts to true. Raises Invalid when it fails or exceeds a limit."""


async def decide(rules: Sequence[Rule], context: DecisionInput, evaluator: Evaluator) -> Decision:
    """Returns what follows the last step."""
    role = str(context.steps[-1]["role"]) if context.steps else START
    for index, rule in _rules_from(rules, role):
        try:
            if rule["when"] is None or await evaluator.holds(rule["when"], context):
                return _decision(index, rule)
        except Invalid as error:
            return RuleFailed(f"{_describe(index, rule)}: {error}")
    return _no_rule_matches(role)


def unconditional(rules: Sequence[Rule], role: str) -> Decision | None:
    """Returns the decision after a role that does not depend on the step; None where an
    expression must be evaluated."""
    for index, rule in _rules_from(rules, role):
        return _decision(index, rule) if rule["when"] is None else None
    return _no_rule_matches(role)


def _rules_from(rules: Sequence[Rule], role: str) -> Iterator[tuple[int, Rule]]:
    return ((index, rule) for index, rule in enumerate(rules) if rule["from"] == role)


def _decision(index: int, rule: Rule) -> Decision:
    if rule["to"] == END:
        return End(COMPLETED, f"ended after {rule['from']}")
    return Next(rule["to"], index if "prompt" in rule else None)


def _no_rule_matches(role: str) -> End:
    return End(NO_RULE, f"no rule matches after {role}")


def _describe(index: int, rule: Rule) -> str:
    when = " ".join((rule["when"] or "null").split())
    shown = when if len(when) <= MAX_CONDITION_CHARS else f"{when[:MAX_CONDITION_CHARS]}…"
    return f"moderator rule {index} ({rule['from']} to {rule['to']}, when {shown})"
