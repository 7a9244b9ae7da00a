"""Opens a workspace by the best strategy that works here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.checkpoints.checkpoint import Checkpoint
from casfs.cli import implicit_mount
from casfs.cli.output import warn
from casfs.errors import CasfsError, Corrupt, Failed
from casfs.store.store import Store
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle as workspaces
from casfs.workspaces import overlay_mount, registry, strategies, strategy_choice
from casfs.workspaces.registry import Workspace
from casfs.workspaces.strategies import Strategy


@dataclass(frozen=True)
class Opening:
    """`backend`: the strategy, None for the best; the others as of `lifecycle.open`."""

    backend: str | None = None
    origin: Checkpoint | None = None
    image_tree: DatedTree | None = None
    worktree: Mapping[str, Any] | None = None
    read_only: bool = False
    verify: bool = False


def open_best(store: Store, state: RecordedState, path: Path, wanted: Opening) -> Workspace:
    """Opens with the wanted strategy; without one, with the first that works, best first. A
    registered workspace keeps its own strategy."""
    registered = registry.get(store, registry.absolute(path))
    if registered is not None:
        available = [registered.strategy]
    else:
        available = strategy_choice.choose(wanted.backend, store)
    if wanted.read_only and wanted.backend is None:
        # Where only a copy works, opening it says that it cannot be read-only.
        available = [candidate for candidate in available if candidate.layered] or available
    trees = implicit_mount.tree_provider(store, os.environ)

    def attempt(strategy: Strategy) -> Workspace:
        writes = registered is None and not wanted.read_only
        if strategy.name == strategies.FUSE and writes:
            _check_deletions(is_named=wanted.backend is not None)
        return workspaces.open(
            store,
            state,
            directory=path,
            strategy=strategy,
            trees=trees,
            origin=wanted.origin,
            image_tree=wanted.image_tree,
            worktree=wanted.worktree,
            read_only=wanted.read_only,
            verify=wanted.verify,
        )

    def failed(strategy: Strategy, error: CasfsError) -> None:
        if wanted.verify and isinstance(error, Corrupt):
            raise error
        warn(f"backend {strategy.name} does not work here: {error}")

    return strategy_choice.first_working(available, attempt, failed)


def _check_deletions(*, is_named: bool) -> None:
    """Raises Failed for a fuse-overlayfs that shows deleted files again. Where a person has named
    it, it is used, with a warning."""
    forgets = False
    with suppress(CasfsError):  # it does not work here: opening by it says why
        forgets = overlay_mount.forgets_deletions()
    if forgets:
        fault = "this one shows deleted files again after some renames"
        if not is_named:
            raise Failed(fault)
        warn(f"fuse-overlayfs: {fault}")
