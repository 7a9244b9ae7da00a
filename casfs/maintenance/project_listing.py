"""What a store has of each project: its sessions and threads, attached agents, worktrees, room."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from casfs.attach import attachments
from casfs.backend.protocols import targets
from casfs.directories import projects
from casfs.errors import CasfsError
from casfs.store import graph
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.threads.state import OPEN, state
from casfs.threads.threads import Thread
from casfs.worktrees import worktree


@dataclass(slots=True)
class ProjectSummary:
    """`directory`: of the project; `sessions`: of outside agents, subagents not counted; `open`:
    those of them whose agent lives; `runs`: threads that casfs runs; `updated_ms`: the last
    activity, since 1970 UTC; `agents`: that are attached in the project alone; `worktrees`: names;
    `threads`: of all of it, newest first."""

    directory: Path
    sessions: int = 0
    open: int = 0
    runs: int = 0
    updated_ms: int = 0
    agents: list[str] = field(default_factory=list)
    worktrees: list[str] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        return self.directory.is_dir()

    def _add(self, thread: Thread) -> None:
        self.threads.append(thread)
        self.updated_ms = max(self.updated_ms, thread.fields.get("updatedAt", 0))
        if thread.fields.get("parent") is not None:
            return
        if sessions.is_session(thread):
            self.sessions += 1
            self.open += state(thread) == OPEN
        else:
            self.runs += 1


def listing(store: Store) -> list[ProjectSummary]:
    """Returns the projects of this machine, the last that was active first. Raises Invalid for a
    damaged list of attachments."""
    summaries: dict[Path, ProjectSummary] = {}

    def summary(directory: Path) -> ProjectSummary:
        return summaries.setdefault(directory, ProjectSummary(directory))

    for thread in threads.newest_first(store):
        project = projects.of_thread(store, thread)
        if project is not None:
            summary(project.directory)._add(thread)
    for attachment in attachments.load(store.root).attached:
        if attachment.directory is not None:
            project = projects.project_of(Path(attachment.directory))
            summary(project.directory).agents.append(attachment.agent)
    for listed in worktree.listing(store):
        project = projects.project_of(listed.project)
        summary(project.directory).worktrees.append(listed.name)
    return sorted(summaries.values(), key=lambda each: (-each.updated_ms, each.directory))


def find(store: Store, text: str) -> ProjectSummary | None:
    """Returns the project that a path names, or that holds it; None where the store has none."""
    directory = projects.project_of(Path(text)).directory
    # One that is gone holds nothing any more: then its path is what is meant.
    named = (directory, Path(os.path.abspath(text)))
    return next((known for known in listing(store) if known.directory in named), None)


def room(store: Store, threads_of_project: Iterable[Thread]) -> int:
    """Returns the bytes of all that threads lead to, whether others have it, too, or not. Reads
    each node."""
    roots = [hash for thread in threads_of_project for hash in targets(thread.head)]
    hashes: list[str] = []
    with suppress(CasfsError):  # what is damaged ends the count; fsck says what
        hashes.extend(graph.walk(store, store.blobs.info(roots), with_local=True))
    infos = store.blobs.info(hashes)
    return sum(info.size for info in infos.values() if info.is_here)
