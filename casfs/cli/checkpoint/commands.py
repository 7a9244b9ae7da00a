"""Checkpoints: directories recorded under a name."""

from __future__ import annotations

import click

from casfs.cli.lazy_group import LazyGroup

MODULES = {
    "create": "checkpoint.create:create",
    "list": "checkpoint.list:list_",
    "rm": "checkpoint.forget:rm",
    "forget": "checkpoint.forget:forget",
    "diff": "diff:diff",
    "restore": "restore:restore",
}


@click.group(cls=LazyGroup, modules=MODULES)
def checkpoint() -> None:
    """Record directories, list the records, restore them.

    \b
    casfs checkpoint create work ./project -m "before the refactoring"
    casfs checkpoint restore work ./again
    """
