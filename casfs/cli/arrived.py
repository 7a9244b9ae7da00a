"""What a pull, a clone or an import says of the names that arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from casfs.store.removals import label
from casfs.store.store import Store

MAX_LINES = 50  # of one group; `--json` has all


def arrived_lines(
    store: Store,
    verb: str,
    names: Sequence[str],
    replaced: Mapping[str, str],
    renamed: Mapping[str, str],
) -> list[str]:
    """Returns a line for each name: first those that have moved, then those that are here under
    another name, so that many new ones hide none of them."""
    from engine.workflow import registry as workflows

    def line(name: str, text: str) -> str:
        is_workflow = name.startswith(workflows.HEADS)
        return f"{text}: {workflows.runs(store, label(name))}" if is_workflow else text

    theirs = {local_name: there for there, local_name in renamed.items()}
    moved = [line(name, f"moved {label(name)}, was {replaced[name][:8]}") for name in replaced]
    new_names = [name for name in names if name not in replaced]
    filed = [
        line(name, f"{verb} {label(theirs[name])} as {label(name)}")
        for name in new_names
        if name in theirs
    ]
    added = [line(name, f"{verb} {label(name)}") for name in new_names if name not in theirs]
    return [*some_of(moved), *some_of(filed), *some_of(added)]


def some_of(lines: Sequence[str]) -> list[str]:
    """Returns the first lines, and how many more there are."""
    omitted = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], *([f"… and {omitted} more; `--json` has all"] * (omitted > 0))]
