"""The rule that picks a workspace's strategy: the first in the order of `STRATEGIES` (erofs-
overlay, overlay, fuse-overlayfs, copy) that this machine and this user can use.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from casfs.errors import CasfsError, Refused
from casfs.store.store import FORMAT_FILE, Store
from casfs.system.start_failed import StartFailed
from casfs.workspaces import image_mount
from casfs.workspaces.overlay_mount import FUSE_OVERLAYFS
from casfs.workspaces.strategies import FUSE, NATIVE, OVERLAY, STRATEGIES, Strategy

THIS_FILE = Path(__file__)
Result = TypeVar("Result")


def choose(name: str | None, store: Store) -> list[Strategy]:
    """Returns the available strategies of that name, or of any; the preferred one first. Raises
    Refused where none is available."""
    names = [name] if name is not None else [*STRATEGIES]
    candidates = available(store, names)
    if not candidates:
        near = store.root / FORMAT_FILE
        reasons = "; ".join(f"{each}: {unavailable(STRATEGIES[each], near)}" for each in names)
        raise Refused(f"no workspace backend works here: {reasons}")
    return candidates


def available(store: Store, names: Iterable[str]) -> list[Strategy]:
    """Returns those of the named strategies that can be used, in this order."""
    near = store.root / FORMAT_FILE
    named = (STRATEGIES[name] for name in names)
    return [strategy for strategy in named if unavailable(strategy, near) is None]


def first_working(
    candidates: Iterable[Strategy],
    attempt: Callable[[Strategy], Result],
    on_failure: Callable[[Strategy, CasfsError], object],
) -> Result:
    """Returns what `attempt` returns for the first strategy with which it does not fail;
    `on_failure`: called with each of the others. Raises Refused as it does, what it raises for the
    last one, and what `on_failure` raises."""
    left = list(candidates)
    while True:
        strategy = left.pop(0)
        try:
            return attempt(strategy)
        except Refused:
            raise
        except CasfsError as error:
            if isinstance(error, StartFailed):  # of the mount below: the others need it as well
                left = [candidate for candidate in left if not candidate.over_fuse]
            if not left:
                raise
            on_failure(strategy, error)


def unavailable(strategy: Strategy, near: Path = THIS_FILE) -> str | None:
    """Returns why this machine or this user cannot use a strategy, None where it can. `near`: a
    file, not an image, on the file system of the store."""
    check = CHECKS.get(strategy.name)
    return None if check is None else check(near)


def _check_overlay(near: Path) -> str | None:
    return None if os.geteuid() == 0 else "only root may mount an overlay for all to see"


def _check_fuse_overlayfs(near: Path) -> str | None:
    if shutil.which(FUSE_OVERLAYFS) is None:
        return f"no {FUSE_OVERLAYFS}; install the package of that name"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no access to /dev/fuse"
    return None


CHECKS: dict[str, Callable[[Path], str | None]] = {
    NATIVE: image_mount.unavailable,
    OVERLAY: _check_overlay,
    FUSE: _check_fuse_overlayfs,
}
