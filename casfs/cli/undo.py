"""`casfs undo`: brings back what was removed, or what was overwritten in a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from casfs.checkpoints import checkpoint, overwritten
from casfs.checkpoints.create import create_before_restore
from casfs.checkpoints.overwritten import Overwritten
from casfs.cli.common import open_store
from casfs.cli.json_values import moment
from casfs.cli.output import echo_result, json_option, say_incomplete, wants_json
from casfs.cli.removal import listed
from casfs.cli.restore import print_aside, print_failed
from casfs.cli.table import Moment, echo_table
from casfs.errors import Usage
from casfs.rewind import rewind_files
from casfs.store import removals
from casfs.store.removals import Removal
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore import RestoreOptions, RestoreResult, restore
from casfs.trees.restore.target import Target


@click.command()
@click.argument("removal", required=False, metavar="[REMOVAL|NAME|DIR]")
@click.option("--list", "listing", is_flag=True, help="List what can be restored instead.")
@json_option
def undo(removal: str | None, listing: bool) -> None:
    """Take back the last `rm` or `forget`, or what a restore or an apply overwrote last.

    Or the one that is named: REMOVAL, a NAME that was removed, or a directory. A removal can be
    taken back until `casfs gc` has run, a grace period after it. An undo of files keeps what you
    have changed since, names what it cannot bring back, and is undone by another one.

    \b
    casfs undo --list
    casfs undo work
    casfs undo ./project
    """
    if listing and removal is not None:
        raise Usage("give --list, or what to restore")
    with open_store() as store:
        if listing:
            _list(store)
        elif files := _overwritten(store, removal):
            is_restored = _restore_files(store, files)
            value = _files_value(files)
            directory = printable(os.fsencode(files.directory))
            said = f"restored to {directory}; `casfs undo` takes that back"
            said = said if is_restored else f"stays to be undone in {directory}"
            echo_result(value, f"{value['removal']} {said}")
        else:
            done = removals.undo(store, removal)
            echo_result(_value(done), f"{done.id} restored {listed(done.names)}")


def _list(store: Store) -> None:
    values = [_value(removal) | {"at": removal.removed_at} for removal in removals.listing(store)]
    values += [
        _files_value(files) | {"at": files.before.created_at}
        for files in overwritten.listing(store)
    ]
    values.sort(key=lambda value: -value["at"])
    if not values and not wants_json():
        click.echo("nothing to undo", err=True)
    rows = [(row["removal"], Moment(row.pop("at")), listed(row["names"])) for row in values]
    echo_table(values, headers="REMOVAL DATE NAMES", rows=rows, whole="REMOVAL")


def _overwritten(store: Store, text: str | None) -> Overwritten | None:
    """Returns the directory whose files are to come back; None where a removal is meant."""
    candidates = overwritten.listing(store)
    if text is None:
        last = removals.listing(store)[:1]
        is_later = bool(candidates) and (
            not last or candidates[0].before.created_at > last[0].removed_at
        )
        return candidates[0] if is_later else None
    for candidate in candidates:
        before = candidate.before
        if (
            text == f"{before.name}@{before.id}"
            or Path(os.path.realpath(text)) == candidate.directory
        ):
            return candidate
    return None


def _restore_files(store: Store, files: Overwritten) -> bool:
    """Brings back what was overwritten, and keeps what was changed since, where it is known what
    the directory held in between. Returns False where nothing could be brought back."""
    before = checkpoint.recorded(store, files.before)
    after = None
    if files.directory.is_dir():
        after = Target(store, files.directory).restored_state()
    done: RestoreResult | None
    if after is None or not store.blobs.info([after.full]):
        done = _overwrite(store, files.directory, before)
    else:
        undone, done = rewind_files.undo(store, files.directory, before, after)
        kept_in = f"{files.before.name}@{files.before.id}"
        for path, reason in sorted(undone.conflicts.items()):
            say_incomplete(
                f"{printable(path)} stays as it is: {reason}; what it was is in {kept_in}"
            )
        if done is None and undone.conflicts:
            return False  # it can be undone once these files are out of the way
    if done is not None:
        print_aside(done.outcome.aside)
        print_failed(done.failed)
    overwritten.forget(store, files)
    return True


def _overwrite(store: Store, directory: Path, state: RecordedState) -> RestoreResult:
    def save(current: RecordedState, _: object = None) -> None:
        create_before_restore(store, current, directory=directory, what="undo")

    options = RestoreOptions(on_local_changes=save, on_delete=save, leaves_out_failed=True)
    return restore(store, state, directory, options)


def _files_value(files: Overwritten) -> dict[str, Any]:
    return {
        "removal": f"{files.before.name}@{files.before.id}",
        "removedAt": moment(files.before.created_at),
        "names": [os.fsdecode(files.directory)],
    }


def _value(removal: Removal) -> dict[str, Any]:
    return {"removal": removal.id, "removedAt": moment(removal.removed_at), "names": removal.names}
