"""Creates worktrees for programs: the daemon has loaded what that needs, and follows the project.

By the kernel alone, over an image: the other strategies need what the command line starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from casfs.errors import Failed
from casfs.store.store import Store
from casfs.system.log import Log
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle, strategies, strategy_choice
from casfs.workspaces.registry import Workspace
from casfs.worktrees import caller, creation
from casfs.worktrees.creation import Wanted
from engine.blocking import blocking
from engine.runtime.project_states import ProjectStates

Answer = dict[str, Any]


class Worktrees:
    def __init__(self, store: Store, projects: ProjectStates, log: Log) -> None:
        self._store = store
        self._log = log
        self._projects = projects
        self.operations: dict[str, Callable[..., Awaitable[Answer]]] = {
            "worktree_add": self._worktree_add
        }

    async def _worktree_add(
        self,
        directory: str,
        wanted: Mapping[str, Any],
        env: Mapping[str, str],
        surroundings: Mapping[str, Any],
    ) -> Answer:
        """Creates a worktree; `casfs.cli.worktree.by_daemon` asks for it. Without one in the answer
        the program must do it itself, and nothing is left. Raises as `creation.create`."""
        create = partial(self._create, Path(directory), Wanted(**wanted), env)
        try:
            if surroundings == caller.surroundings():
                return await blocking(create)
        except _NotHere as error:
            self._log("worktree not made", directory=directory, error=str(error))
        return {"worktree": None, "warnings": []}

    def _create(self, directory: Path, wanted: Wanted, env: Mapping[str, str]) -> Answer:
        warnings: list[str] = []
        created = creation.create(
            self._store,
            directory,
            wanted,
            env,
            look=self._projects.look,
            open_workspace=self._open,
            warn=warnings.append,
        )
        return {"worktree": created.summary, "warnings": warnings}

    def _open(
        self,
        state: RecordedState,
        path: Path,
        image: DatedTree | None,
        record: Mapping[str, Any],
    ) -> Workspace:
        native = strategies.STRATEGIES[strategies.NATIVE]
        if reason := strategy_choice.unavailable(native):
            raise _NotHere(reason)
        try:
            return lifecycle.open(
                self._store,
                state,
                path,
                native,
                trees=strategies.no_mount,
                image_tree=image,
                worktree=record,
            )
        except Failed as error:
            raise _NotHere(str(error)) from None


class _NotHere(Failed):
    """By the kernel alone it does not work here."""
