"""`casfs undo` and `casfs redo`: what casfs has written into a directory is taken back, or done
once more; what was removed from the store is brought back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from casfs.cli.common import open_store
from casfs.cli.diff_output import change_json
from casfs.cli.json_values import moment
from casfs.cli.output import (
    echo,
    echo_json,
    echo_result,
    json_option,
    say_incomplete,
    wants_json,
    warn,
)
from casfs.cli.progress import progress
from casfs.cli.removal import listed
from casfs.cli.restore import aside_json, print_aside, print_failed
from casfs.cli.table import Moment, date, echo_table
from casfs.cli.undone import print_undone, repositories_json
from casfs.directories import operations
from casfs.directories.operations import Log, Operation
from casfs.errors import NotFound, Usage
from casfs.rewind import take_back
from casfs.rewind.take_back import Reversal
from casfs.sessions import caller
from casfs.store import removals
from casfs.store.removals import Removal
from casfs.store.store import Store
from casfs.system.paths import printable

MAX_ELSEWHERE = 3  # directories that are named
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be changed.")


@click.command()
@click.argument("what", required=False, metavar="[N|DIR|REMOVAL|NAME]")
@click.option("--list", "listing", is_flag=True, help="List what was done here, newest first.")
@click.option("--store", "of_store", is_flag=True, help="The last `rm` or `forget`, or list these.")
@dry_run_option
@json_option
def undo(what: str | None, listing: bool, of_store: bool, dry_run: bool) -> int:
    """Take back the last restore, apply or rewind of the directory that you are in.

    Again: the one before. What you have changed since stays, line by line; where you have changed
    the same lines, the file stays as it is and is named (exit 1). `casfs redo` does it once more.
    N is one operation of the list, DIR another directory. What `rm` or `forget` removed from the
    store comes back by --store, or by its name, until `casfs gc` has run, a grace period after it.

    \b
    casfs undo --list
    casfs undo --dry-run
    casfs undo 3
    casfs undo work@20261122
    """
    if listing and what is not None and not os.path.isdir(what):
        raise Usage("give --list, or what to take back")
    with open_store() as store:
        if of_store or (what is not None and not _is_operation(what)):
            _undo_removal(store, what, listing=listing, dry_run=dry_run)
            return 0
        directory = Path(what if what is not None and not what.isdecimal() else ".")
        if listing:
            _list(store, directory)
            return 0
        actor = caller.actor(store, os.environ)
        path, log = _log(store, directory, actor)
        if what is not None and what.isdecimal():
            operation, is_again = log.meant(int(what))
        else:
            newest, is_again = log.to_undo(actor), False
            if newest is None:
                raise _nothing(store, path, actor)
            operation = newest
        if not dry_run:
            store.check_writable()
        return _reverse(store, path, operation, actor, is_again=is_again, dry_run=dry_run)


@click.command()
@click.argument("directory", required=False)
@dry_run_option
@json_option
def redo(directory: str | None, dry_run: bool) -> int:
    """Do once more what the last `casfs undo` has taken back here; again: the one before it.

    What you have changed since stays. A restore, an apply or a rewind after the undo ends it.

    \b
    casfs redo
    """
    with open_store() as store:
        actor = caller.actor(store, os.environ)
        path, log = _log(store, Path(directory or "."), actor)
        operation = log.to_redo(actor)
        if operation is None:
            raise NotFound(f"{path}: nothing was taken back since the last operation")
        if not dry_run:
            store.check_writable()
        return _reverse(store, path, operation, actor, is_again=True, dry_run=dry_run)


def _is_operation(text: str) -> bool:
    is_number = text.isdecimal() and len(text) <= operations.NUMBER_DIGITS
    return is_number or os.path.isdir(text)


# -- operations of a directory ----------------------------------------------------------------


def _log(store: Store, directory: Path, actor: str) -> tuple[Path, Log]:
    held = _innermost(store, directory)
    if held is None:
        raise _nothing(store, Path(os.path.abspath(directory)), actor)
    return held


def _innermost(store: Store, directory: Path) -> tuple[Path, Log] | None:
    try:
        return operations.innermost(store, directory)
    except OSError as error:
        raise NotFound(f"{directory}: {error.strerror}") from None


def _nothing(store: Store, directory: Path, actor: str) -> NotFound:
    """Returns the error that names what could be meant."""
    elsewhere = [
        str(operation.path)
        for operation in operations.logs(store)
        if operation.path != directory and operation.actor == actor
    ]
    meant = [f"`casfs undo {path}`" for path in elsewhere[:MAX_ELSEWHERE]]
    if removed := removals.listing(store)[:1]:
        meant.append(f"`casfs undo --store` (removed: {listed(removed[0].names)})")
    hint = f"; perhaps {', '.join(meant)}" if meant else ""
    return NotFound(f"nothing to undo in {directory}{hint}")


def _reverse(
    store: Store, path: Path, operation: Operation, actor: str, *, is_again: bool, dry_run: bool
) -> int:
    reversal = take_back.plan(store, path, operation, is_again=is_again)
    if not wants_json():
        _print_plan(reversal, dry_run=dry_run)
    done = None
    if not dry_run:
        what = "doing again" if is_again else "taking back"
        with progress(what, "files", len(reversal.undone.changed)) as update:
            done = take_back.do(store, reversal, actor, update)
    failed = {} if done is None else done.failed
    conflicts = reversal.undone.conflicts
    if wants_json():
        aside = {} if done is None else done.outcome.aside
        value = {
            **_about(operation),
            "directory": os.fspath(path),
            "dryRun": dry_run,
            "changes": [
                change_json(reversal.store, change) for change in reversal.undone.changed_files
            ],
            "repositories": repositories_json(reversal.undone),
            "conflicts": {printable(name): reason for name, reason in conflicts.items()},
            "failed": {printable(name): reason for name, reason in failed.items()},
            "aside": aside_json(aside),
        }
        echo_json(value)
    elif done is not None:
        print_aside(done.outcome.aside)
        print_failed(failed)
        echo(f"`casfs {'undo' if is_again else 'redo'}` takes that back")
    return int(bool(conflicts or failed))


def _print_plan(reversal: Reversal, *, dry_run: bool) -> None:
    operation = reversal.operation
    if operation.path != reversal.directory:
        warn(f"{reversal.directory}: it was at {operation.path}")
    for path, reason in sorted(reversal.undone.conflicts.items()):
        say_incomplete(f"{printable(path)} stays as it is: {reason}")
    done = "done once more" if reversal.is_again else "taken back"
    what = f"{operation.number}, {_words(operation)} of {date(operation.at_ms)}"
    if not reversal.undone.changed:
        stays = " by this" if reversal.undone.conflicts else ""
        echo(f"{reversal.directory}: nothing to change{stays}: {what}")
        return
    would = "would be " if dry_run else ""
    echo(f"{reversal.directory}: {would}{done}: {what}")
    print_undone(reversal.store, reversal.undone)


def _list(store: Store, directory: Path) -> None:
    held = _innermost(store, directory)
    log = () if held is None else held[1].operations
    if not log and not wants_json():
        click.echo(f"nothing was done in {os.path.abspath(directory)}", err=True)
    rows = [
        (
            f"{operation.number}",
            Moment(operation.at_ms),
            operation.actor,
            _words(operation),
            _state(operation),
        )
        for operation in log
    ]
    values = [_value(operation) for operation in log]
    echo_table(values, headers="N DATE BY OPERATION STATE", rows=rows, whole="N DATE")


def _words(operation: Operation) -> str:
    return f"{operation.verb.value} {operation.argument}"


def _state(operation: Operation) -> str:
    if operation.is_taken_back:
        return f"taken back but for {operation.stays}" if operation.stays else "taken back"
    return "" if operation.is_done else "interrupted"


def _about(operation: Operation) -> dict[str, Any]:
    return {
        "operation": operation.number,
        "directory": os.fspath(operation.path),
        "verb": operation.verb.value,
        "argument": operation.argument,
        "actor": operation.actor,
        "at": moment(operation.at_ms),
    }


def _value(operation: Operation) -> dict[str, Any]:
    return {
        **_about(operation),
        "takenBack": operation.is_taken_back,
        "interrupted": not operation.is_done,
        "left": operation.left,
        "stays": operation.stays,
    }


# -- removals of the store --------------------------------------------------------------------


def _undo_removal(store: Store, text: str | None, *, listing: bool, dry_run: bool) -> None:
    if listing:
        _list_removals(store)
        return
    if dry_run:
        raise Usage(
            "--dry-run is for a directory; `casfs undo --store --list` names what comes back"
        )
    done = removals.undo(store, text)
    echo_result(_removal_value(done), f"{done.id} restored {listed(done.names)}")


def _list_removals(store: Store) -> None:
    known = removals.listing(store)
    values = [_removal_value(removal) for removal in known]
    if not values and not wants_json():
        click.echo("nothing to undo", err=True)
    rows = [(removal.id, Moment(removal.removed_at), listed(removal.names)) for removal in known]
    echo_table(values, headers="REMOVAL DATE NAMES", rows=rows, whole="REMOVAL")


def _removal_value(removal: Removal) -> dict[str, Any]:
    return {"removal": removal.id, "removedAt": moment(removal.removed_at), "names": removal.names}
