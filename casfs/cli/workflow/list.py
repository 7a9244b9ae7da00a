"""`workflow list`, `trust` and `rm`: the workflows of a store."""

from __future__ import annotations

import click

from casfs.cli.common import (
    json_option,
    open_store,
)
from casfs.cli.output import echo_result
from casfs.cli.removal import remove_heads
from casfs.cli.table import Hash, echo_table
from casfs.errors import NotFound
from engine.workflow import registry as workflows


@click.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List the workflows: name, hash.

    \b
    casfs workflow list
    """
    with open_store(ctx) as store:
        found = workflows.listing(store)
    value = [{"name": name, "hash": hash} for name, hash in found]
    echo_table(as_json, value, "NAME HASH", ((name, Hash(hash)) for name, hash in found))


@click.command()
@click.argument("name")
@json_option
@click.pass_context
def trust(ctx: click.Context, name: str, as_json: bool) -> None:
    """Let a workflow run that a pull or an import brought, and print which agents it runs.

    It holds until a pull replaces the workflow.

    \b
    casfs workflow trust develop
    """
    with open_store(ctx) as store:
        workflows.trust(store, name)
        line = workflows.runs(store, name)
    echo_result(as_json, {"name": name, "runs": line}, f"trusted {name}: {line}")


@click.command()
@click.argument("name")
@json_option
@click.pass_context
def rm(ctx: click.Context, name: str, as_json: bool) -> None:
    """Remove a workflow's name; threads that run it go on. `casfs undo` restores it.

    \b
    casfs workflow rm develop
    """
    with open_store(ctx) as store:
        key = workflows.head_name(name)
        head = store.heads.get(key)
        if head is None:
            raise NotFound(f"no workflow {name!r}; see `casfs workflow list`")
        remove_heads(store, [(key, head)], as_json)
