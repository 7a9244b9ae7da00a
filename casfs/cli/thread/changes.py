"""What a thread changed: `thread diff` shows it, `thread apply` brings it to a directory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from casfs.checkpoints.revisions import step_state
from casfs.cli.applied import report_applied
from casfs.cli.common import open_store
from casfs.cli.diff import DiffFormat, format_options, print_state_diff
from casfs.cli.output import echo_result, json_option, warn
from casfs.digest import NodeHash
from casfs.errors import Usage
from casfs.sessions import caller
from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.threads.threads import Thread
from casfs.trees.git import fetch_branches
from casfs.trees.git.fetch_branches import FetchedBranch
from casfs.trees.recorded_state import RecordedState

MAX_NAMED = 20
SHORT_ID = 12  # of a commit
STEPS = re.compile(r"(?P<id>@last|[^@]+)(@((?P<first>\d*)\.\.(?P<last>\d*)|(?P<upto>\d+)))?")


@click.command()
@click.argument("id", metavar="ID[@A..B]")
@format_options
def diff(id: str, format: DiffFormat) -> None:
    """Print what a thread changed in its workspace: all, up to a step, or from step A to step B.

    \b
    casfs thread diff 8XKQ --patch
    casfs thread diff 8XKQ@2..3 --stat
    """
    with open_store() as store:
        _, old, new, _ = _steps(store, id)
        print_state_diff(store, old, new=new, format=format)


@click.command()
@click.argument("id", metavar="ID[@A..B]")
@click.argument("directory", default=".")
@click.option("--check", is_flag=True, help="Print what would be changed; change nothing.")
@click.option("--commits", is_flag=True, help="Bring its git commits, as branches, and no files.")
@json_option
def apply(id: str, directory: str, check: bool, commits: bool) -> int:
    """Bring what a thread changed to DIRECTORY (the working directory), by a three-way merge.

    Exit 1 where both changed the same: in text the conflict is marked as by git, and each is
    named. `casfs undo` takes it back. Exit 4 while a file to be merged has the conflict markers of
    a former apply. --commits fetches the commits that agents made there into the repository
    DIRECTORY, onto branches casfs/ID/BRANCH: what is checked out stays as it is.

    \b
    casfs thread apply 8XKQ --check
    casfs thread apply 8XKQ@3 ./project
    casfs thread apply 8XKQ --commits && git merge casfs/01JD…/main
    """
    from casfs.trees.restore.apply import apply as apply_changes

    with open_store() as store:
        thread, old, new, step = _steps(store, id)
        if commits:
            branches = fetch_branches.fetch(
                store,
                old,
                new=new,
                directory=Path(directory),
                prefix=f"casfs/{thread.id}",
                env=os.environ,
                check=check,
            )
            _print_branches(branches, {"thread": thread.id, "directory": directory, "check": check})
            return 0
        has_commits = fetch_branches.has_new(store, old, new)
        done = apply_changes(
            store,
            old,
            new=new,
            directory=Path(directory),
            label=f"thread {thread.id}",
            actor=caller.actor(store, os.environ),
            step=step,
            check=check,
        )
    if has_commits:
        warn("its git commits were left out; --commits brings them")
    return report_applied(done, {"thread": thread.id}, directory, check=check)


def _print_branches(branches: list[FetchedBranch], source: dict[str, Any]) -> None:
    lines = []
    for branch in branches:
        count = "" if branch.commits is None else f": {branch.commits} commits"
        lines.append(f"{branch.name}{count} ({branch.tip[:SHORT_ID]})")
        if branch.private:
            files = ", ".join(branch.private[:MAX_NAMED])
            warn(f"{branch.name} has files that are private in the thread: {files}")
    value = {**source, "branches": [branch._asdict() for branch in branches]}
    echo_result(value, "\n".join(lines) or "no commits to bring")


def _steps(store: Store, text: str) -> tuple[Thread, RecordedState, RecordedState, NodeHash | None]:
    """Returns the thread, its states before and after the steps that `text` names, and the last of
    these."""
    parts = STEPS.fullmatch(text)
    if parts is None:
        raise Usage(f"{text!r}: give a thread's ID, ID@STEP, or ID@A..B")
    thread = lookup.find(store, parts["id"])
    named = parts["last"] or parts["upto"]
    last = int(named) if named else threads.length(store, thread)
    old, new = (step_state(store, thread, index) for index in (int(parts["first"] or 0), last))
    return thread, old, new, threads.step_at(store, thread, last).hash if last else None
