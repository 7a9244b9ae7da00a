"""The moderator: which role is next, decided by a workflow's rules and a thread's steps.

The rules of the last step's role (`__start__` before the first step) are tried in order;
the first whose `when` is null or casts to true wins. What an expression sees is in
`engine.moderator.conditions`; who evaluates it, and how it is stopped when it does not end, is the
judge's affair: the daemon's are processes of their own (`engine.moderator.workers`).

Deciding is pure: equal rules and steps, equal decision; workflow checks refuse the
functions that would break that. A rule that fails does not raise: it is a Stuck decision,
because the thread is then suspended with the reason, not lost. Nothing here reads or writes
the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypedDict

from casfs.errors import Invalid

START = "__start__"
END = "__end__"

COMPLETED = 0
NO_RULE = 1
MAX_SHOWN_CHARS = 160  # characters of an expression in a reason, which is one line

Rule = TypedDict("Rule", {"from": str, "to": str, "when": str | None})


@dataclass(frozen=True)
class DecisionInput:
    """What a decision depends on. `steps` holds thread-step payloads, oldest first.

    A judge may remember the steps of a thread: the same objects are the same steps.
    """

    steps: Sequence[Mapping[str, Any]]
    start: Mapping[str, Any]
    thread_id: str


@dataclass(frozen=True)
class Next:
    """Run this role."""

    role: str


@dataclass(frozen=True)
class End:
    """The thread is over."""

    return_code: int
    summary: str


@dataclass(frozen=True)
class RuleFailed:
    """A rule failed; the thread is to be suspended with this reason."""

    reason: str


Decision: TypeAlias = Next | End | RuleFailed


class Evaluator(Protocol):
    """Evaluates expressions."""

    async def holds(self, when: str, context: DecisionInput) -> bool:
        """Does `when` cast to true? Raises Invalid when it fails or may not go on."""


async def decide(rules: Sequence[Rule], context: DecisionInput, judge: Evaluator) -> Decision:
    role = str(context.steps[-1]["role"]) if context.steps else START
    for index, rule in _rules_from(rules, role):
        try:
            if rule["when"] is None or await judge.holds(rule["when"], context):
                return _outcome(rule)
        except Invalid as error:
            return RuleFailed(f"{_describe(index, rule)}: {error}")
    return _unmatched(role)


def unconditional(rules: Sequence[Rule], role: str) -> Decision | None:
    """What is decided after a role whatever was said; None where that has to be evaluated."""
    for _, rule in _rules_from(rules, role):
        return _outcome(rule) if rule["when"] is None else None
    return _unmatched(role)


def _rules_from(rules: Sequence[Rule], role: str) -> Iterator[tuple[int, Rule]]:
    return ((index, rule) for index, rule in enumerate(rules) if rule["from"] == role)


def _outcome(rule: Rule) -> Decision:
    if rule["to"] == END:
        return End(COMPLETED, f"ended after {rule['from']}")
    return Next(rule["to"])


def _unmatched(role: str) -> End:
    return End(NO_RULE, f"no rule matches after {role}")


def _describe(index: int, rule: Rule) -> str:
    when = " ".join((rule["when"] or "null").split())
    shown = when if len(when) <= MAX_SHOWN_CHARS else f"{when[:MAX_SHOWN_CHARS]}…"
    return f"moderator rule {index} ({rule['from']} to {rule['to']}, when {shown})"
