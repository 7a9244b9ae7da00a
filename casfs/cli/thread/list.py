"""The list of threads. Reads the store; needs no daemon."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import click

from casfs.cli.common import Count, open_store
from casfs.cli.json_values import times
from casfs.cli.output import json_option, wants_json, warn
from casfs.cli.table import Age, Coloured, Short, echo_table
from casfs.cli.thread.queue import INTERRUPTED, NO_DAEMON, Queue
from casfs.cli.thread.status_colours import COLOURS
from casfs.directories import projects
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.state import STATES, created_ms
from casfs.threads.summary import listing
from casfs.threads.threads import Thread

MIN_SHORT_CHARS = 6  # of an id's random end
# What the record of a thread in each state contains, for the store to look for; nothing of a
# broken one is sure.
SESSION = '"cause":"session"'
RECORDS_OF = {
    "running": ('"status":"running"', SESSION),
    "queued": ('"status":"running"',),
    INTERRUPTED: ('"status":"running"',),
    "suspended": ('"status":"suspended"',),
    "open": (SESSION,),
    "closed": (SESSION,),
    "succeeded": ('"status":"ended"',),
    "failed": ('"returnCode":1',),
    "stopped": ('"returnCode":2',),
    "cancelled": ('"status":"cancelled"',),
    "broken": ("",),
}
MAX_COMPARED = 1000
CHARS_OF_MANY = 10


@click.command("list")
@click.option(
    "--status",
    "states",
    type=click.Choice((*STATES, INTERRUPTED)),
    multiple=True,
    help="Only these.",
)
@click.option("--workflow", metavar="NAME", help="Only threads of this workflow.")
@click.option("--project", metavar="DIR", help="Only threads of this project.")
@click.option("--archived", is_flag=True, help="Only archived ones, which others leave out.")
@click.option("--limit", type=Count(1), metavar="N", help="Only the newest N.")
@json_option
def list_(
    states: tuple[str, ...],
    workflow: str | None,
    project: str | None,
    archived: bool,
    limit: int | None,
) -> None:
    """List the threads, pinned ones first, then the newest. The end of an id names a thread.

    \b
    casfs thread list --status failed --status suspended
    casfs thread list --project .
    """
    directories = None if project is None else projects.named(project)
    with open_store() as store:
        queue = Queue(store)
        records = [record for status in states for record in RECORDS_OF[status]]
        matching = (
            thread
            for thread in threads.listed_first(store, records)
            if thread.is_archived == archived
            and (not states or queue.state(thread) in states)
            and (workflow is None or thread.fields.get("workflow") == workflow)
            and (directories is None or _is_of(store, thread, directories))
        )
        listed = list(islice(matching, limit))
        of_threads = [projects.of_thread(store, thread) for thread in listed]
        values = [
            {**listing(store, thread), **queue.fields(thread), **projects.json_fields(own)}
            for thread, own in zip(listed, of_threads, strict=True)
        ]
        short = _short_chars(store)
    rows = [
        (
            Short(value["id"], value["id"][-short:]),
            Coloured(value["status"], COLOURS.get(value["status"])),
            value["role"],
            Age(created_ms(thread.id)),
            value["task"],
            value["name"],
            None if own is None else own.name,
            queue.place_text(thread),
        )
        for thread, value, own in zip(listed, values, of_threads, strict=True)
    ]
    echo_table(
        times(values),
        headers="ID STATUS ROLE AGE TASK NAME PROJECT QUEUE",
        rows=rows,
        whole="ID STATUS",
    )
    if not wants_json() and any(value["status"] == INTERRUPTED for value in values):
        warn(NO_DAEMON)


def _is_of(store: Store, thread: Thread, directories: Sequence[Path]) -> bool:
    project = projects.of_thread(store, thread)
    return project is not None and project.directory in directories


def _short_chars(store: Store) -> int:
    """Returns how many characters at the end of an id are enough to tell all threads apart. Of
    many threads not all are read: those characters are random, 5 bits each."""
    ids = [thread.id for thread in islice(threads.newest_first(store), MAX_COMPARED)]
    if len(ids) == MAX_COMPARED:
        return CHARS_OF_MANY
    count = MIN_SHORT_CHARS
    while count < threads.ID_LENGTH and len({id[-count:] for id in ids}) < len(ids):
        count += 1
    return count
