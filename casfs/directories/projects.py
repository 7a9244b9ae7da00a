"""The project of a directory: what is attached, and what sessions and threads belong to.

A project is a git repository, or a directory that is in none. A linked work tree of a repository is
part of the repository's project.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.threads.threads import SESSION, Thread

GIT = ".git"
FIELDS = (PROJECT, WORKTREE) = ("project", "worktree")  # of the record of a thread
WORKTREES = "worktrees"  # of a repository, with a directory for each linked work tree
MAX_PATH_BYTES = 1024  # in the record of a thread


class Project(NamedTuple):
    """`directory`: of the repository itself; `worktree`: of the linked work tree, where it is in
    one."""

    directory: Path
    worktree: Path | None = None

    @classmethod
    def of_fields(cls, record: Mapping[str, Any]) -> Project:
        """The inverse of `fields`."""
        worktree = record.get(WORKTREE)
        return cls(Path(record[PROJECT]), None if worktree is None else Path(worktree))

    @property
    def name(self) -> str:
        """Returns what a listing shows: the directory's name, and that of the work tree."""
        name = self.directory.name or str(self.directory)
        return name if self.worktree is None else f"{name} ({self.worktree.name})"

    @property
    def fields(self) -> dict[str, Any]:
        """What the record of a thread has of it; nothing where that has no room for it."""
        fields = {PROJECT: str(self.directory)}
        if self.worktree is not None:
            fields[WORKTREE] = str(self.worktree)
        is_short = all(len(os.fsencode(path)) <= MAX_PATH_BYTES for path in fields.values())
        return fields if is_short else {}


def top_of(directory: Path) -> Path:
    """Returns the work tree that holds a directory, or the directory itself."""
    real = Path(os.path.realpath(directory))
    for path in (real, *real.parents):
        # The home directory may be a repository, of dotfiles.
        if path != Path.home() and (path / GIT).exists():
            return path
    return real


def project_of(directory: Path) -> Project:
    # A listing of threads needs what is recorded alone.
    from casfs.trees.git.index import pointed_to

    top = top_of(directory)
    with suppress(OSError):
        own = Path(os.path.normpath(pointed_to(top / GIT)))
        # A submodule's is below `modules`: it is a project of its own.
        if own.parent.name == WORKTREES:
            repository = own.parent.parent
            is_bare = repository.name != GIT
            return Project(repository if is_bare else repository.parent, top)
    return Project(top)


def fields_of(thread: Thread) -> dict[str, str]:
    """Returns the fields of a thread's record that a thread of the same project gets, too."""
    return {name: thread.fields[name] for name in FIELDS if name in thread.fields}


def json_fields(project: Project | None) -> dict[str, str | None]:
    """Returns what a listing of threads prints of one's project as JSON."""
    return dict.fromkeys(FIELDS) | ({} if project is None else project.fields)


def recorded(thread: Thread) -> Project | None:
    """As `of_thread`, by the thread's record alone."""
    return Project.of_fields(thread.fields) if PROJECT in thread.fields else None


def of_thread(store: Store, thread: Thread) -> Project | None:
    """Returns the project of a thread of this machine; None where it has none."""
    if (project := recorded(thread)) is not None:
        return project
    # A session that an older casfs has recorded; the directory of one from elsewhere is none here.
    if thread.fields.get("cause") != SESSION or "origin" in thread.fields:
        return None
    from casfs.threads import sessions

    try:
        return Project(Path(sessions.about(store, thread)["directory"]))
    except CasfsError:
        return None
