"""`workspace exec`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from casfs.cli import implicit_mount
from casfs.cli.common import open_store
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.workspaces import overlay_mount, registry
from casfs.workspaces.overlay_mount import OverlayLayers
from casfs.workspaces.registry import Workspace


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("directory")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(directory: str, command: tuple[str, ...]) -> None:
    """Run a command in the workspace DIRECTORY; exits with its exit code.

    \b
    casfs workspace exec ./work -- sh -c 'make && make test'
    """
    with open_store() as store:
        workspace = registry.find(store, Path(directory))
        layers = private_layers(store, workspace)
    execute(workspace, layers, command, workspace.path)


def private_layers(store: Store, workspace: Workspace) -> OverlayLayers | None:
    """Returns what is mounted for each command alone, if anything. Raises Refused."""
    registry.check_open(workspace)
    if not workspace.strategy.layered or workspace.strategy.mount is not None:
        return None
    return workspace.layers(implicit_mount.tree_provider(store, os.environ))


def execute(
    workspace: Workspace, layers: OverlayLayers | None, command: Sequence[str], directory: Path
) -> NoReturn:
    """Makes this process a command in the workspace; `directory`: in which it begins. Raises
    Failed."""
    if layers is not None:
        registry.lock(workspace)  # held by the command, for as long as it runs
        overlay_mount.enter_namespace(layers)
    os.chdir(directory)
    try:
        os.execvp(command[0], [*command])
    except OSError as error:
        raise CasfsError(f"cannot run {command[0]}: {error.strerror}") from None
