"""Removes all that a store has of a project, in a way that one undo restores."""

from __future__ import annotations

from casfs.backend.protocols import Head, HeadName
from casfs.directories import operations, projects
from casfs.maintenance.project_listing import ProjectSummary
from casfs.store import removals
from casfs.store.store import Store
from engine.threads import lifecycle


def remove(store: Store, project: ProjectSummary) -> str | None:
    """Removes the threads of a project and the logs of what was written into it; returns the
    removal's id, None where there is nothing. Raises Conflict for a thread that runs."""
    ids = {thread.id for thread in project.threads}
    heads: dict[HeadName, Head] = {}
    for thread in project.threads:
        heads |= lifecycle.removable_heads(store, thread, together_with=ids)
    for newest in operations.logs(store):
        # Not by the path alone: a repository in the project's directory is a project of its own.
        if projects.project_of(newest.path).directory == project.directory:
            log = operations.listing(store, newest.directory_id)
            heads |= {operation.name: operation.head for operation in log}
    if not heads:
        return None
    with store.batch() as batch:
        return removals.remove(store, batch, heads.items())
