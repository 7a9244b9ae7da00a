"""Opens a workspace by the best strategy that works here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.checkpoints.checkpoint import Checkpoint
from casfs.cli import background, implicit_mount
from casfs.cli.output import warn
from casfs.errors import CasfsError, Corrupt, Refused
from casfs.store.store import Store
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle as workspaces
from casfs.workspaces import overlay_mount, registry, strategies, strategy_choice
from casfs.workspaces.registry import Workspace
from casfs.workspaces.strategies import Strategy


@dataclass(frozen=True)
class Opening:
    """`backend`: the strategy, None for the best; `visible`: only one whose directory all programs
    see; the others as of `lifecycle.open`."""

    backend: str | None = None
    origin: Checkpoint | None = None
    image_tree: DatedTree | None = None
    worktree: Mapping[str, Any] | None = None
    read_only: bool = False
    verify: bool = False
    visible: bool = False


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
    if wanted.visible:
        available = [candidate for candidate in available if candidate.is_visible]
        if not available:
            raise Refused(f"backend {wanted.backend} shows nothing outside `casfs workspace exec`")
    trees = implicit_mount.tree_provider(store, os.environ)
    while True:
        strategy = available.pop(0)
        if wanted.visible and strategy.name == strategies.FUSE and _forgets_deletions(wanted):
            continue
        try:
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
        except Refused:
            raise
        except background.StartFailed as error:  # the mount below: the others need it as well
            available = [candidate for candidate in available if not candidate.over_fuse]
            _warn_of_next(strategy, error, available)
        except CasfsError as error:
            if wanted.verify and isinstance(error, Corrupt):
                raise
            _warn_of_next(strategy, error, available)


def _forgets_deletions(wanted: Opening) -> bool:
    """Returns whether to skip fuse-overlayfs, because it shows deleted files again. Where a person
    has named it, it is used, with a warning."""
    try:
        forgets = overlay_mount.forgets_deletions()
    except CasfsError:  # it does not work here: opening by it says why
        return False
    if forgets and wanted.backend is not None:
        warn("this fuse-overlayfs shows deleted files again after some renames")
    return forgets and wanted.backend is None


def _warn_of_next(failed: Strategy, error: CasfsError, left: list[Strategy]) -> None:
    if not left:
        raise error
    warn(f"backend {failed.name} does not work here, trying {left[0].name}: {error}")
