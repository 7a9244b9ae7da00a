"""The moderator: which role is next, decided by a workflow's rules and a thread's steps.

The rules of the last step's role (`__start__` before the first step) are tried in order;
the first whose `when` is null or casts to true wins. An expression sees

- `steps`, `start`, `threadId` as its input and `$steps`, `$start`, `$threadId` as
  bindings, the same values: the payloads of the thread-steps, oldest first, the payload of
  the thread-start, the thread's id;
- `$first(role)` and `$last(role)`: the first and the last step of a role, or nothing.

Deciding is pure: equal rules and steps, equal decision; workflow checks refuse the
functions that would break that. `evaluate` is the decision itself; `decide` is what the
engine awaits, so that evaluation can move to a process that can be killed without any
caller changing. A rule that fails does not raise: it is a Stuck decision, because the
thread is then suspended with the reason, not lost. Nothing here reads or writes the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypedDict

import trio

from casfs.errors import Invalid
from engine import jsonata

START = "__start__"
END = "__end__"
BINDINGS = frozenset(("steps", "start", "threadId"))
FUNCTIONS = frozenset(("first", "last"))

COMPLETED = 0
NO_RULE = 1

Rule = TypedDict("Rule", {"from": str, "to": str, "when": str | None})


@dataclass(frozen=True)
class Context:
    """What a decision depends on. `steps` holds thread-step payloads, oldest first."""

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
class Stuck:
    """A rule failed; the thread is to be suspended with this reason."""

    reason: str


Decision: TypeAlias = Next | End | Stuck


async def decide(rules: Sequence[Rule], context: Context) -> Decision:
    """The decision, as the engine asks for it."""
    await trio.lowlevel.checkpoint()
    return evaluate(rules, context)


def evaluate(rules: Sequence[Rule], context: Context) -> Decision:
    """The decision, computed here and now; may run as long as a rule's expression does."""
    role = str(context.steps[-1]["role"]) if context.steps else START
    for index, rule in _rules_from(rules, role):
        try:
            if _matches(rule["when"], context):
                return _outcome(rule)
        except Invalid as error:
            return Stuck(f"{_describe(index, rule)}: {error}")
    return End(NO_RULE, f"no rule matches after {role}")


def _rules_from(rules: Sequence[Rule], role: str) -> Iterator[tuple[int, Rule]]:
    return ((index, rule) for index, rule in enumerate(rules) if rule["from"] == role)


def _matches(when: str | None, context: Context) -> bool:
    if when is None:
        return True
    values = {"steps": context.steps, "start": context.start, "threadId": context.thread_id}
    result = _compiled(when).evaluate(values, values, _functions(context.steps))
    return jsonata.boolean(result)


def _functions(steps: Sequence[Mapping[str, Any]]) -> dict[str, jsonata.Function]:
    def first(role: str | None) -> Mapping[str, Any] | None:
        return next((step for step in steps if step["role"] == role), None)

    def last(role: str | None) -> Mapping[str, Any] | None:
        return next((step for step in reversed(steps) if step["role"] == role), None)

    return {"first": jsonata.Function(first, "<s:o>"), "last": jsonata.Function(last, "<s:o>")}


@lru_cache(maxsize=256)
def _compiled(text: str) -> jsonata.Expression:
    return jsonata.compile(text)


def _outcome(rule: Rule) -> Decision:
    if rule["to"] == END:
        return End(COMPLETED, f"ended after {rule['from']}")
    return Next(rule["to"])


def _describe(index: int, rule: Rule) -> str:
    when = " ".join((rule["when"] or "null").split())
    return f"moderator rule {index} ({rule['from']} to {rule['to']}, when {when})"
