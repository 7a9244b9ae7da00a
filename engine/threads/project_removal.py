"""Removes the threads of a project, in a way that one undo restores.

What `casfs undo` can take back in its directories stays: worktrees name operations of that log, and
a log that began anew would stand in the way of the removal's undo.
"""

from __future__ import annotations

from casfs.backend.protocols import Head, HeadName
from casfs.maintenance.project_listing import ProjectSummary
from casfs.store import removals
from casfs.store.store import Store
from engine.threads import lifecycle


def removable_heads(store: Store, project: ProjectSummary) -> dict[HeadName, Head]:
    """Returns the heads of all its threads. Raises Conflict for one that runs."""
    ids = {thread.id for thread in project.all_threads}
    heads: dict[HeadName, Head] = {}
    for thread in project.all_threads:
        heads |= lifecycle.removable_heads(store, thread, together_with=ids)
    return heads


def remove(store: Store, project: ProjectSummary) -> str | None:
    """Returns the removal's id, None where there is nothing to remove. Raises Conflict for a thread
    that runs."""
    heads = removable_heads(store, project)
    if not heads:
        return None
    with store.batch() as batch:
        return removals.remove(store, batch, heads.items())
