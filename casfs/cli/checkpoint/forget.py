"""`checkpoint rm` and `forget`: records that are not kept."""

from __future__ import annotations

import click

from casfs.checkpoints import forget as forgetting
from casfs.cli.common import open_store
from casfs.cli.keep_options import keep_options, kept
from casfs.cli.output import json_option, wants_json
from casfs.cli.removal import print_removed
from casfs.cli.table import echo_table
from casfs.errors import NotFound, Usage


@click.command()
@click.argument("checkpoint", metavar="NAME[@ID]")
@json_option
def rm(checkpoint: str) -> None:
    """Remove a checkpoint, or all of NAME; `casfs undo --store` restores them until gc.

    \b
    casfs checkpoint rm work@20261122T084847
    """
    with open_store() as store:
        matches = forgetting.matching(store, checkpoint)
        id = forgetting.remove(store, matches)
    if id is None:
        raise NotFound(f"no checkpoint {checkpoint!r}; see `casfs checkpoint list`")
    print_removed(id, [f"{match.name}@{match.id}" for match in matches])


@click.command()
@click.argument("name")
@keep_options
@click.option("--dry-run", is_flag=True, help="Print what would be removed; change nothing.")
@json_option
def forget(name: str, dry_run: bool, **policy: int | None) -> None:
    """Remove the checkpoints of NAME but those that a policy keeps, as `restic forget` does.

    Kept is the newest of each of the last N hours, days, … that have a checkpoint, by local
    time. `casfs undo --store` restores the rest until gc deletes it.

    \b
    casfs checkpoint forget work --keep-last 3 --keep-daily 7 --keep-weekly 5 --dry-run
    """
    counts = kept(policy)
    if not counts:
        raise Usage("give what to keep: --keep-last N, --keep-daily N, …")
    with open_store() as store:
        decisions = forgetting.decide(store, name, counts)
        gone = [decision.checkpoint for decision in decisions if not decision.reasons]
        id = None if dry_run else forgetting.remove(store, gone)
    rows = [
        (
            "keep" if decision.reasons else "remove",
            f"{name}@{decision.checkpoint.id}",
            ", ".join(decision.reasons),
        )
        for decision in decisions
    ]
    value = {
        "removal": id,
        "dryRun": dry_run,
        "keep": [
            {"id": decision.checkpoint.id, "reasons": decision.reasons}
            for decision in decisions
            if decision.reasons
        ],
        "remove": [checkpoint.id for checkpoint in gone],
    }
    echo_table(value, headers="ACTION CHECKPOINT REASONS", rows=rows, whole="ACTION CHECKPOINT")
    if wants_json():
        return
    if dry_run:
        click.echo(f"would forget {len(gone)} checkpoints", err=True)
    elif id is not None:
        way_back = "`casfs undo --store` restores them until gc deletes them"
        click.echo(f"{id} removed {len(gone)} checkpoints; {way_back}", err=True)
