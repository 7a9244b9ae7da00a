"""`undo`, and what the `rm` verbs print."""

from __future__ import annotations

from typing import Any

import click

from casfs import removals
from casfs.backend.protocols import Head, HeadName
from casfs.cli.common import json_option, open_store
from casfs.cli.json_values import moment
from casfs.cli.output import echo_result
from casfs.cli.table import Moment, echo_table
from casfs.errors import Usage
from casfs.removals import Removal
from casfs.store import Store

MAX_NAMES = 3  # in a line


def remove_heads(
    store: Store, heads: list[tuple[HeadName, Head]], as_json: bool, **fields: Any
) -> None:
    """Removes heads, and prints it."""
    with store.batch() as batch:
        id = removals.remove(store, batch, heads)
    print_removed(id, [removals.label(name) for name, _ in heads], as_json, **fields)


def print_removed(id: str, names: list[str], as_json: bool, **fields: Any) -> None:
    line = f"{id} removed {listed(names)}; `casfs undo` restores it until gc deletes it"
    echo_result(as_json, {"removal": id, "removed": names, **fields}, line)


@click.command()
@click.argument("removal", required=False, metavar="[REMOVAL|NAME]")
@click.option("--list", "listing", is_flag=True, help="List what can be restored instead.")
@json_option
@click.pass_context
def undo(ctx: click.Context, removal: str | None, listing: bool, as_json: bool) -> None:
    """Restore what the last `rm` or `forget` removed, or the one that REMOVAL or a NAME names.

    It works until `casfs gc` has run, a grace period after the removal.

    \b
    casfs undo --list
    casfs undo work
    """
    if listing and removal is not None:
        raise Usage("give --list, or what to restore")
    with open_store(ctx) as store:
        if not listing:
            done = removals.undo(store, removal)
            echo_result(as_json, _value(done), f"{done.id} restored {listed(done.names)}")
            return
        found = removals.listing(store)
    if not found and not as_json:
        click.echo("nothing to undo", err=True)
    rows = ((one.id, Moment(one.removed_at), listed(one.names)) for one in found)
    echo_table(as_json, [_value(one) for one in found], "REMOVAL DATE NAMES", rows, whole="REMOVAL")


def _value(one: Removal) -> dict[str, Any]:
    return {"removal": one.id, "removedAt": moment(one.removed_at), "names": one.names}


def listed(names: list[str]) -> str:
    """Returns the first names, and how many more there are."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
