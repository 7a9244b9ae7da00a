"""`workspace open`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.revisions import resolve
from casfs.cli import background, implicit_mount
from casfs.cli.common import open_store, store_root
from casfs.cli.output import echo_result, json_option, warn
from casfs.cli.purged_notes import print_missing
from casfs.cli.workspace.list import workspace_json
from casfs.errors import CasfsError, Corrupt, Refused
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle as workspaces
from casfs.workspaces import strategies, strategy_choice
from casfs.workspaces.registry import Workspace
from casfs.workspaces.strategies import Strategy


@click.command("open")
@click.argument("tree", metavar="TREE")
@click.argument("directory")
@click.option("--read-only", is_flag=True, help="Open without write access.")
@click.option(
    "--backend",
    type=click.Choice(list(strategies.STRATEGIES)),
    help="Default: the first that works. erofs-overlay: over an EROFS image (root); overlay: over"
    " the casfs mount (root); fuse-overlayfs: the same in user space; namespace: visible only"
    " inside `workspace exec`; copy: a plain copy.",
)
@click.option("--verify", is_flag=True, help="Hash all content first (for erofs-overlay).")
@click.option("--without-local", is_flag=True, help="Leave out private and derived files.")
@json_option
def open_(
    tree: str,
    directory: str,
    read_only: bool,
    backend: str | None,
    verify: bool,
    without_local: bool,
) -> None:
    """Open TREE as DIRECTORY, which must not exist or be empty.

    The best backend that works here is used and printed. A workspace that a reboot has
    unmounted is opened again with its changes.

    \b
    casfs workspace open work ./try
    casfs workspace open work@20260101 ./look --read-only
    """
    path = Path(directory)
    with open_store() as store:
        source = resolve(store, tree)
        if read_only:
            workspaces.sweep(store)
        with implicit_mount.kept(store_root()):
            state = RecordedState.of_tree(source.state.work) if without_local else source.state
            workspace = _open(
                store,
                state,
                path=path,
                backend=backend,
                origin=source.checkpoint,
                read_only=read_only,
                verify=verify,
            )
        origin = source.checkpoint
        print_missing(store, state.full, f"{origin.name}@{origin.id}" if origin else source.root)
    how = (
        "; not visible outside `casfs workspace exec`"
        if workspace.state == "namespace-only"
        else ""
    )
    echo_result(
        workspace_json(workspace),
        f"{workspace.record['base']} {workspace.path} backend: {workspace.strategy.name}{how}",
    )


def _open(
    store: Store,
    state: RecordedState,
    path: Path,
    backend: str | None,
    origin: Checkpoint | None,
    read_only: bool,
    verify: bool,
) -> Workspace:
    """Opens with that strategy; without one, with the first that works, best first."""
    available = strategy_choice.choose(backend, store)
    if read_only and backend is None:
        # Where only a copy works, opening it says that it cannot be read-only.
        available = [candidate for candidate in available if candidate.layered] or available
    trees = implicit_mount.tree_provider(store, os.environ)
    while True:
        strategy = available.pop(0)
        try:
            return workspaces.open(
                store,
                state,
                directory=path,
                strategy=strategy,
                trees=trees,
                origin=origin,
                read_only=read_only,
                verify=verify,
            )
        except Refused:
            raise
        except background.StartFailed as error:  # the mount below: the others need it as well
            available = [candidate for candidate in available if not candidate.over_fuse]
            _warn_of_next(strategy, error, available)
        except CasfsError as error:
            if verify and isinstance(error, Corrupt):
                raise
            _warn_of_next(strategy, error, available)


def _warn_of_next(failed: Strategy, error: CasfsError, left: list[Strategy]) -> None:
    if not left:
        raise error
    warn(f"backend {failed.name} does not work here, trying {left[0].name}: {error}")
