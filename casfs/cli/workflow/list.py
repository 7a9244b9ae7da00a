"""`workflow list`, `trust` and `rm`: the workflows of a store."""

from __future__ import annotations

import click

from casfs.cli.common import open_store
from casfs.cli.output import echo_result, json_option, wants_json
from casfs.cli.removal import remove_heads
from casfs.cli.table import Hash, echo_table
from casfs.cli.trust import ask_for_trust
from casfs.errors import NotFound
from engine.workflow import registry as workflows


@click.command("list")
@json_option
def list_() -> None:
    """List the workflows: name, hash, and where it is from, if it is from elsewhere.

    \b
    casfs workflow list
    """
    values = []
    rows = []
    with open_store() as store:
        for name, hash in workflows.listing(store):
            origin, is_trusted = workflows.foreign(store, name) or (None, True)
            values.append({"name": name, "hash": hash, "origin": origin, "trusted": is_trusted})
            rows.append((name, Hash(hash), workflows.origin_text(store, name)))
    echo_table(values, headers="NAME HASH FROM", rows=rows)


@click.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@json_option
def trust(name: str, yes: bool) -> None:
    """Let a workflow run that a pull or an import brought: prints all that it may run, and asks.

    It holds until a pull replaces the workflow.

    \b
    casfs workflow trust develop
    """
    with open_store() as store:
        workflows.find(store, name)
        lines = workflows.all_runs(store, name)
        if not wants_json():
            ask_for_trust(name, lines, yes)
        workflows.trust(store, name)
    echo_result({"name": name, "runs": lines}, f"trusted {name}")


@click.command()
@click.argument("name")
@json_option
def rm(name: str) -> None:
    """Remove a workflow's name; threads that run it go on. `casfs undo --store` restores it.

    \b
    casfs workflow rm develop
    """
    with open_store() as store:
        key = workflows.head_name(name)
        head = store.heads.get(key)
        if head is None:
            raise NotFound(f"no workflow {name!r}; see `casfs workflow list`")
        remove_heads(store, [(key, head)])
