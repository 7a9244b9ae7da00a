"""Removes checkpoints: by name, or all but those that a policy keeps. `casfs.store.removals` undoes
it.

The policy is restic's: `last` keeps the newest n; `hourly`, `daily`, `weekly`, `monthly` and
`yearly` keep the newest of each of the last n such periods that have a checkpoint, by local time. A
checkpoint that any of them keeps stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from casfs.checkpoints import checkpoint
from casfs.checkpoints.checkpoint import NO_TREE, Checkpoint
from casfs.errors import NotFound
from casfs.store import removals
from casfs.store.store import Store

PERIODS = {  # of a policy: what is equal for all moments of one period
    "last": "%Y%m%dT%H%M%S.%f",
    "hourly": "%Y%m%d %H",
    "daily": "%Y%m%d",
    "weekly": "%G %V",
    "monthly": "%Y%m",
    "yearly": "%Y",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """`reasons`: the periods of the policy that keep a checkpoint; none: it goes."""

    checkpoint: Checkpoint
    reasons: list[str]


def decide(store: Store, name: str, policy: Mapping[str, int]) -> list[Decision]:
    """Applies a policy, numbers by period, to the checkpoints of a name; newest first. A damaged
    one is kept. Raises NotFound."""
    checkpoints = checkpoint.listing(store, name)[::-1]
    if not checkpoints:
        raise NotFound(f"no checkpoint {name!r}; see `casfs checkpoint list`")
    left = dict(policy)
    latest: dict[str, str] = {}
    decisions = []
    for candidate in checkpoints:
        reasons = [] if candidate.root != NO_TREE else ["damaged"]
        moment = datetime.fromtimestamp(candidate.created_at / 1000).astimezone()
        for period, count in left.items() if not reasons else ():
            period_label = moment.strftime(PERIODS[period])
            if count > 0 and latest.get(period) != period_label:
                left[period] = count - 1
                latest[period] = period_label
                reasons.append(period)
        decisions.append(Decision(candidate, reasons))
    return decisions


def matching(store: Store, text: str) -> list[Checkpoint]:
    """Returns all checkpoints of NAME, or the one that NAME@ID and the like name, damaged or not.
    Raises NotFound, Conflict."""
    name, _, id = text.partition("@")
    checkpoints = checkpoint.listing(store, name) if name else []
    if name == text and checkpoints:
        return checkpoints
    return [candidate for candidate in checkpoints if candidate.id == id] or [
        checkpoint.find(store, text)
    ]


def remove(store: Store, checkpoints: list[Checkpoint]) -> str | None:
    """Removes checkpoints; returns the removal's id, None where there is nothing to remove."""
    names = [checkpoint.head_name(candidate.name, candidate.id) for candidate in checkpoints]
    heads = [(name, head) for name in names if (head := store.heads.get(name)) is not None]
    if not heads:
        return None
    with store.batch() as batch:
        return removals.remove(store, batch, heads)
