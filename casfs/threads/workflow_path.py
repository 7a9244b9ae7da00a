"""The path of a thread through its workflow: which edges it took, how often.

Which of two rules between the same roles was taken is not recorded, so both are one edge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

START = "__start__"  # in place of a role
END = "__end__"
MAX_CONDITION_CHARS = 48  # of a label


def edges_taken(path: Sequence[str], ended: bool, pending: str | None) -> Counter[tuple[str, str]]:
    """Returns how often a thread went from one state to another. `path`: the roles of its steps in
    order, after START or a role; `ended`: a rule ended it; `pending`: the role of the next step."""
    return Counter(pairwise([*path, *([END] if ended else [pending] if pending else [])]))


def condition_label(when: str | None) -> str:
    """Returns a rule's condition on one line, cut to MAX_CONDITION_CHARS."""
    text = " ".join((when or "").split())
    return text if len(text) <= MAX_CONDITION_CHARS else text[: MAX_CONDITION_CHARS - 1] + "…"
