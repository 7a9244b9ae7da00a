"""The projects of worktrees, followed from their first worktree on, so that a further one begins
without a look at every file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from casfs.checkpoints.extents import PROJECT
from casfs.checkpoints.followed_directory import FollowedDirectory
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.worktrees.project_files import ProjectLook
from engine.blocking import blocking
from engine.followers import Followers

Answer = dict[str, Any]
MAX_FOLLOWED = 4  # projects; the one that was used first is let go
USER = "worktrees"
BURST_S = 0.5  # events come in bursts: they are read together
FOLLOWED_S = 1800.0  # after the last worktree: each directory costs the kernel a watch
LOOKED_AT_EVERY_S = 60.0


class ProjectStates:
    def __init__(self, store: Store, followers: Followers) -> None:
        self._store = store
        self._followers = followers
        self._projects: dict[Path, _Project] = {}
        self.operations: dict[str, Callable[..., Awaitable[Answer]]] = {
            "project_state": self._project_state
        }

    async def let_go_unused(self) -> None:
        """Releases the projects whose last worktree was made more than FOLLOWED_S ago."""
        while True:
            await trio.sleep(LOOKED_AT_EVERY_S)
            for path, project in list(self._projects.items()):
                if trio.current_time() > project.used_at + FOLLOWED_S:
                    self._let_go(path, project)

    async def _project_state(self, directory: str) -> Answer:
        """Returns a project as it is now; `casfs.cli.worktree.creating` reads it. Raises
        CasfsError."""
        seen = await blocking(partial(self.look, Path(directory)))
        return {
            "tree": seen.state.tree,
            "fields": seen.state.fields,
            "newBytes": seen.new_bytes,
            "gitFiles": [name.hex() for name in seen.git_files],
            "unreadable": {name.hex(): why for name, why in seen.unreadable.items()},
        }

    def look(self, directory: Path) -> ProjectLook:
        """Returns a project as it is now. Called in a worker thread. Raises CasfsError, OSError."""
        project = trio.from_thread.run_sync(self._project, directory)
        try:
            return project.look()
        except (CasfsError, OSError):
            trio.from_thread.run_sync(self._let_go, directory, project)
            raise

    def _project(self, path: Path) -> _Project:
        project = self._projects.pop(path, None)
        if project is None:
            while len(self._projects) >= MAX_FOLLOWED:
                self._let_go(*next(iter(self._projects.items())))
            project = _Project(self._followers.hold(path, USER, lambda: BURST_S).directory)
        project.used_at = trio.current_time()
        self._projects[path] = project  # the last: the first is let go
        return project

    def _let_go(self, path: Path, project: _Project) -> None:
        # Another one may be followed there by now.
        if self._projects.get(path) is project:
            del self._projects[path]
            self._followers.release(path, USER, project.release)


class _Project:
    """Every method blocks."""

    def __init__(self, directory: FollowedDirectory) -> None:
        self.used_at = 0.0
        self._directory = directory
        self._state: RecordedState | None = None

    def look(self) -> ProjectLook:
        with self._directory.lock:
            self._directory.mark_everything_if_old()
            self._directory.drain()
            look = self._directory.look(self._state, PROJECT)
            self._state = look.state
            report = look.report
            return ProjectLook(look.state, report.git_files, report.unreadable, look.new_bytes)

    def release(self) -> None:
        with self._directory.lock:
            self._directory.release(PROJECT)
