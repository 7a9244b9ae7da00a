"""The project of a directory: what is attached, and what sessions and threads belong to.

A project is a git repository, or a directory that is in none. A linked work tree of a repository is
part of the repository's project.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from casfs import canonical
from casfs.errors import CasfsError, Invalid
from casfs.store.store import Store
from casfs.system.paths import printable, small_text
from casfs.threads.threads import PROJECT, PROJECT_FIELDS, SESSION, WORKTREE, Thread

GIT = ".git"
WORKTREES = "worktrees"  # of a repository, with a directory for each linked work tree
BARE = re.compile(r"(?mi)^[ \t]*bare[ \t]*=[ \t]*true\b")  # in the configuration of a repository
MAX_FIELDS_BYTES = 280  # as JSON: the record of a thread has no more room


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
        """What the record of a thread has of it; nothing where that has no room for it, or where a
        path is not UTF-8."""
        fields = {PROJECT: str(self.directory)}
        if self.worktree is not None:
            fields[WORKTREE] = str(self.worktree)
        try:
            is_short = len(canonical.encode(fields)) <= MAX_FIELDS_BYTES
        except Invalid:
            return {}
        if is_short:
            return fields
        return {} if self.worktree is None else Project(self.directory).fields


def work_tree_of(directory: Path) -> Path:
    """Returns the work tree that holds a directory, or the directory itself."""
    real = Path(os.path.realpath(directory))
    for path in (real, *real.parents):
        # The home directory may be a repository, of dotfiles.
        if path != Path.home() and os.path.exists(path / GIT):
            return path
    return real


def project_of(directory: Path) -> Project:
    """Returns the project that holds a directory; where there is none, it is one itself."""
    # A listing of threads needs what is recorded alone.
    from casfs.trees.git.index import pointed_to

    top = work_tree_of(directory)
    with suppress(OSError):
        own = Path(os.path.normpath(pointed_to(top / GIT)))
        # Any directory that was unpacked may have such a file: git's own leads back to it.
        leads_back = small_text(own / "gitdir").strip() == str(top / GIT)
        main = _directory_of(own.parent.parent)
        if own.parent.name == WORKTREES and leads_back and main is not None:
            return Project(main, top)
    return Project(top)


def _directory_of(repository: Path) -> Path | None:
    """Returns the directory of a repository that has linked work trees; None where it is elsewhere,
    as that of a submodule, and only git knows it."""
    if repository.name == GIT:
        return repository.parent
    is_bare = BARE.search(small_text(repository / "config")) is not None
    return repository if is_bare else None


def named(text: str) -> list[Path]:
    """Returns the directories of projects that a person may mean by a path, the likeliest first: a
    path that is gone names just itself."""
    path = Path(os.path.abspath(text))
    names = [path, Path(os.path.realpath(path))]
    if os.path.isdir(path):
        names.append(project_of(path).directory)
    return list(dict.fromkeys(names))


def json_fields(project: Project | None) -> dict[str, str | None]:
    """Returns what a listing of threads prints of one's project as JSON."""
    if project is None:
        return dict.fromkeys(PROJECT_FIELDS)
    worktree = None if project.worktree is None else printable(os.fsencode(project.worktree))
    return {PROJECT: printable(os.fsencode(project.directory)), WORKTREE: worktree}


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
