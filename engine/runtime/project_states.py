"""The projects of worktrees, followed from their first worktree on, so that a further one begins
without a look at every file. Where an agent's session follows it, that is asked.

What blocks, looks and reading events, runs in worker threads.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import trio

from casfs.checkpoints.followed_directory import Extent, FollowedDirectory
from casfs.errors import CasfsError, NotFound
from casfs.store.store import Store
from casfs.system.log import Log
from casfs.trees.recorded_state import RecordedState
from casfs.worktrees.project_files import WITHOUT_REPOSITORY, ProjectLook
from engine.blocking import blocking
from engine.sessions.session_directory import SessionDirectory

Answer = dict[str, Any]
MAX_FOLLOWED = 4  # projects; the one that was used first is let go
BURST_S = 0.5  # events come in bursts: they are read together
LOOK_AT_ALL_S = 3600.0
FOLLOWED_S = 1800.0  # after the last worktree


class ProjectStates:
    def __init__(
        self, store: Store, log: Log, of_session: Callable[[Path], SessionDirectory | None]
    ) -> None:
        self._store = store
        self._log = log
        self._of_session = of_session
        self._followed: dict[Path, tuple[_Project, trio.CancelScope]] = {}
        self.operations: dict[str, Callable[..., Awaitable[Answer]]] = {
            "project_state": self._project_state
        }

    def start(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

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
        session = trio.from_thread.run_sync(self._of_session, directory)
        if session is not None:
            with suppress(NotFound):  # it was let go meanwhile
                return session.project()
        project = trio.from_thread.run_sync(self._project, directory)
        try:
            return project.look()
        except (CasfsError, OSError):
            trio.from_thread.run_sync(self._let_go, directory, project)
            raise

    def _project(self, path: Path) -> _Project:
        entry = self._followed.pop(path, None)
        if entry is None:
            while len(self._followed) >= MAX_FOLLOWED:
                first = next(iter(self._followed))
                self._let_go(first, self._followed[first][0])
            entry = _Project(self._store, path), trio.CancelScope()
            self._nursery.start_soon(self._follow, path, *entry)
        entry[1].deadline = trio.current_time() + FOLLOWED_S
        self._followed[path] = entry  # the last: the first is let go
        return entry[0]

    async def _follow(self, path: Path, project: _Project, scope: trio.CancelScope) -> None:
        """Reads events as they come, until FOLLOWED_S after the last request: each directory costs
        the kernel a watch."""
        try:
            with scope:
                while True:
                    await trio.lowlevel.wait_readable(project.fd)
                    await trio.sleep(BURST_S)
                    await blocking(project.drain)
        except Exception as error:  # the next request follows it anew
            self._log("directory not followed", directory=str(path), error=str(error))
        finally:
            self._let_go(path, project)
            with trio.CancelScope(shield=True):  # it waits for a look that is being taken
                await blocking(project.close)

    def _let_go(self, path: Path, project: _Project) -> None:
        # Another one may be followed there by now.
        entry = self._followed.get(path)
        if entry is not None and entry[0] is project:
            del self._followed[path]
            entry[1].cancel()


class _Project:
    """Every method blocks. `fd` is readable when there is something to `drain`."""

    def __init__(self, store: Store, path: Path) -> None:
        self._lock = Lock()
        extent = Extent(keeps_derived=True, excluded=WITHOUT_REPOSITORY)
        self._followed = FollowedDirectory(store, path, extent=extent)
        self._state: RecordedState | None = None
        self.fd = self._followed.fd

    def drain(self) -> None:
        with self._lock:
            self._followed.drain()

    def look(self) -> ProjectLook:
        with self._lock:
            # A file that is mapped for writing has no events until it is unmapped.
            if time.monotonic() - self._followed.looked_at_all > LOOK_AT_ALL_S:
                self._followed.mark_everything()
            self._followed.drain()
            look = self._followed.look(self._state)
            self._state = look.state
            seen = self._followed.seen
            unreadable = {**seen.unreadable}
            return ProjectLook(look.state, [*seen.git_files], unreadable, look.new_bytes)

    def close(self) -> None:
        with self._lock:
            self._followed.close()
