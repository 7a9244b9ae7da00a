"""What the `rm` verbs print."""

from __future__ import annotations

from typing import Any

from casfs.backend.protocols import Head, HeadName
from casfs.cli.output import echo_result
from casfs.store import removals
from casfs.store.store import Store

MAX_NAMES = 3  # in a line


def remove_heads(store: Store, heads: list[tuple[HeadName, Head]], **fields: Any) -> None:
    """Removes heads, and prints it."""
    with store.batch() as batch:
        id = removals.remove(store, batch, heads)
    print_removed(id, [removals.label(name) for name, _ in heads], **fields)


def print_removed(id: str, names: list[str], **fields: Any) -> None:
    line = f"{id} removed {listed(names)}; `casfs undo --store` restores it until gc deletes it"
    echo_result({"removal": id, "removed": names, **fields}, line)


def listed(names: list[str]) -> str:
    """Returns the first names, and how many more there are."""
    suffix = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + suffix
