"""Desks as tests have them: in directories of their own, and over images alone."""

from __future__ import annotations

from pathlib import Path

from casfs.store.store import Store
from casfs.workspaces import strategies
from casfs.workspaces.desk import Desk
from engine.runtime.workspace import Workspaces


def desk_at(store: Store, path: Path) -> Desk:
    """A copy that is at `path` itself."""
    desk = Desk(store, path)
    desk.path = path
    return desk


OVER_IMAGES = Workspaces(preferred=[strategies.NATIVE])  # needs skip_without(strategies.NATIVE)
