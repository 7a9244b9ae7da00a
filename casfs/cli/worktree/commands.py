"""Worktrees: full copies of a project, each with a branch of its own."""

from __future__ import annotations

import os

import click

from casfs.cli.lazy_group import LazyGroup
from casfs.errors import Refused
from casfs.worktrees.caller import IN_PLACE

MODULES = {
    "add": "worktree.add:add",
    "list": "worktree.list:list_",
    "path": "worktree.list:path",
    "shell": "worktree.inside:shell",
    "run": "worktree.inside:run",
    "apply": "worktree.end:apply",
    "rm": "worktree.end:rm",
    "prune": "worktree.end:prune",
    "hook": "worktree.hook:hook",
}


@click.group(cls=LazyGroup, modules=MODULES)
def worktree() -> None:
    """A project's directory as it is now, with all that git ignores, as another one to work in.

    \b
    casfs worktree add try                 ../PROJECT.worktrees/try, on a new branch `try`
    casfs worktree run try -- make test    what was built is there
    casfs worktree apply try               bring its changes here
    casfs worktree rm try
    """
    if os.environ.get(IN_PLACE):
        raise Refused("in a worktree at its project's path (--in-place); leave it first")
