"""`workspace exec`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs.cli import implicit_mount
from casfs.cli.common import open_store
from casfs.errors import CasfsError
from casfs.workspaces import overlay_mount, registry


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
        inside = workspace.strategy.layered and workspace.strategy.mount is None
        layers = (
            workspace.layers(implicit_mount.tree_provider(store, os.environ)) if inside else None
        )
        registry.check_open(workspace)
    if layers is not None:
        registry.lock(workspace)  # held by the command, for as long as it runs
        overlay_mount.enter_namespace(layers)
    os.chdir(workspace.path)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise CasfsError(f"cannot run {command[0]}: {error.strerror}") from None
