"""Workflows: roles and the rules that route between them."""

from __future__ import annotations

import click

from casfs.cli.lazy_group import LazyGroup

MODULES = {
    "new": "workflow.file:new",
    "add": "workflow.file:add",
    "validate": "workflow.file:validate",
    "list": "workflow.list:list_",
    "show": "workflow.show:show",
    "trust": "workflow.list:trust",
    "rm": "workflow.list:rm",
    "next": "workflow.next:next_",
}


@click.group(cls=LazyGroup, modules=MODULES)
def workflow() -> None:
    """Roles and the JSONata rules that route between them.

    \b
    casfs workflow new mine
    casfs workflow add mine.yaml
    """
