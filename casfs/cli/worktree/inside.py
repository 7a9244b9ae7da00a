"""`worktree shell` and `worktree run`: programs in a worktree."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from typing import NoReturn

import click

from casfs.cli import implicit_mount
from casfs.cli.common import open_store, store_root
from casfs.cli.worktree import common
from casfs.errors import Failed
from casfs.system.git_program import LOCAL_VARIABLES
from casfs.workspaces import registry
from casfs.worktrees.caller import IN_PLACE
from casfs.worktrees.in_place import enter

in_place_option = click.option(
    "--in-place", is_flag=True, help="At the project's own path, as its programs alone see it."
)


@click.command()
@click.argument("name")
@in_place_option
def shell(name: str, in_place: bool) -> None:
    """Start your shell in a worktree.

    \b
    casfs worktree shell try
    casfs worktree shell try --in-place
    """
    own = os.environ.get("SHELL") or pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh"
    _run(name, [own], in_place=in_place)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@in_place_option
def run(name: str, command: tuple[str, ...], in_place: bool) -> None:
    """Run a command in a worktree; exits with its exit code.

    \b
    casfs worktree run try -- sh -c 'make && make test'
    casfs worktree run --in-place try -- .venv/bin/pytest
    """
    _run(name, command, in_place=in_place)


def _run(name: str, command: Sequence[str], *, in_place: bool) -> NoReturn:
    with open_store() as store, implicit_mount.kept(store_root()):
        worktree = common.find(store, name)
        common.mount(store, worktree)
        worktree = common.find(store, name)
        os.environ |= worktree.environment
        # Of a repository around the caller: git would work there.
        for variable in LOCAL_VARIABLES:
            os.environ.pop(variable, None)
        registry.check_open(worktree.workspace)
    directory = worktree.path
    if in_place:
        directory = enter(worktree)
        os.environ[IN_PLACE] = worktree.name
    os.chdir(directory)
    try:
        os.execvp(command[0], [*command])
    except OSError as error:
        raise Failed(f"cannot run {command[0]}: {error.strerror}") from None
