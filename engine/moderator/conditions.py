"""The `when` of a moderator rule: the variables of its expression, and whether it holds.

An expression sees

- `steps`, `start`, `threadId` as its input and `$steps`, `$start`, `$threadId` as
  bindings, the same values: the payloads of the thread-steps, oldest first, the payload of
  the thread-start, the thread's id;
- `$first(role)` and `$last(role)`: the first and the last step of a role, or nothing;
- RESULT_NAMES, where it makes a caller's meta from the thread that was called.

An ExpressionScope holds these for a thread and takes new steps as they come, so the cost of a
rule depends on what it reads, not on the length of the thread. Nothing here limits time or
memory; see `engine.moderator.evaluator_process`, where the daemon's rules are evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from engine.moderator import jsonata
from engine.moderator.decision import DecisionInput

BINDINGS = frozenset(("steps", "start", "threadId"))
FUNCTIONS = frozenset(("first", "last"))
RESULT_NAMES = frozenset(("calls", "end", "filesChanged"))


class ExpressionScope:
    """The variables and functions of expressions over one thread."""

    def __init__(self, start: Mapping[str, Any], thread_id: str) -> None:
        self._steps = jsonata.SealedList()
        self._values = {"steps": self._steps, "start": start, "threadId": thread_id}
        self._first: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._functions = {
            "first": jsonata.Function(self._first.get, "<s:o>"),
            "last": jsonata.Function(self._last.get, "<s:o>"),
        }

    def add(self, steps: Iterable[Mapping[str, Any]]) -> None:
        """Adds the payloads of later steps."""
        known = len(self._steps)
        self._steps.add(steps)
        for step in self._steps[known:]:
            self._first.setdefault(step["role"], step)
            self._last[step["role"]] = step

    def holds(self, when: str) -> bool:
        """Returns whether the expression casts to true. Raises Invalid when it fails."""
        result = _compiled(when).evaluate(self._values, self._values, self._functions)
        return jsonata.boolean(result)

    def value(self, text: str, names: Mapping[str, Any]) -> Any:
        """Returns the value of an expression, which sees further `names`. Raises Invalid."""
        known = {**self._values, **names}
        return _compiled(text).evaluate(known, known, self._functions)


class LocalEvaluator:
    """Evaluates in this process, without limits of time and memory."""

    async def holds(self, when: str, context: DecisionInput) -> bool:
        history = ExpressionScope(context.start, context.thread_id)
        history.add(context.steps)
        return history.holds(when)


@lru_cache(maxsize=256)
def _compiled(text: str) -> jsonata.Expression:
    return jsonata.compile(text)
