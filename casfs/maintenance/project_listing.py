"""What a store has of each project: its sessions and threads, attached agents, worktrees, room."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from casfs.attach import attachments
from casfs.attach.attachments import Attachment
from casfs.backend.protocols import targets
from casfs.directories import projects
from casfs.directories.projects import Project
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
    activity, since 1970 UTC; `attachments`: of agents in the project alone; `worktrees`: names;
    `all_threads`: subagents and called ones, too, newest first."""

    directory: Path
    sessions: int = 0
    open: int = 0
    runs: int = 0
    updated_ms: int = 0
    attachments: list[Attachment] = field(default_factory=list)
    worktrees: list[str] = field(default_factory=list)
    all_threads: list[Thread] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        return os.path.isdir(self.directory)

    @property
    def agents(self) -> list[str]:
        """Returns the attached agents, each once."""
        return sorted({attachment.agent for attachment in self.attachments})

    def add(self, thread: Thread) -> None:
        self.all_threads.append(thread)
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

    for thread, project in _with_projects(store):
        if project is not None:
            summary(project.directory).add(thread)
    for attachment in attachments.load(store.root).attached:
        if attachment.directory is not None:
            project = projects.project_of(Path(attachment.directory))
            summary(project.directory).attachments.append(attachment)
    for listed in worktree.listing(store):
        project = projects.project_of(listed.project)
        summary(project.directory).worktrees.append(listed.name)
    return sorted(summaries.values(), key=lambda each: (-each.updated_ms, each.directory))


def find(store: Store, text: str) -> ProjectSummary | None:
    """Returns the project that a path names, or that holds it; None where the store has none."""
    known = {summary.directory: summary for summary in listing(store)}
    return next((known[path] for path in projects.named(text) if path in known), None)


def _with_projects(store: Store) -> Iterator[tuple[Thread, Project | None]]:
    """Yields all threads, newest first; a called one, or a subagent, that an older casfs has
    recorded without a project is of that of its caller."""
    listed = list(threads.newest_first(store))
    own: dict[str, Project | None] = {}
    for thread in listed:
        own[thread.id] = projects.of_thread(store, thread)
    # A caller is older than what it calls.
    for thread in reversed(listed):
        if own[thread.id] is None:
            own[thread.id] = own.get(thread.fields.get("parent") or "")
    return ((thread, own[thread.id]) for thread in listed)


def room(store: Store, threads_of_project: Iterable[Thread]) -> int:
    """Returns the bytes of all that threads lead to, whether others have it, too, or not. Reads
    each node."""
    roots = [hash for thread in threads_of_project for hash in targets(thread.head)]
    hashes: list[str] = []
    with suppress(CasfsError):  # what is damaged ends the count; fsck says what
        hashes.extend(graph.walk(store, store.blobs.info(roots), with_local=True))
    infos = store.blobs.info(hashes)
    return sum(info.size for info in infos.values() if info.is_here)
