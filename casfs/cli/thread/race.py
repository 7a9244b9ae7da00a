"""Threads side by side: `thread compare` prints their outcomes, `thread race` finds a winner.

A race tests threads one by one in the order in which they ended, as their records have it. The
first that passes is recorded in the head of an idempotency key, whose request is the race, by
compare-and-swap and in one transaction with the checkpoint of `--promote`. So a race has one
winner, however often it is killed and started again, on any machine, and what follows is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from casfs import canonical
from casfs.backend.derived import version_of
from casfs.backend.protocols import Head, HeadName
from casfs.checkpoints import checkpoint
from casfs.checkpoints.create import create_of_state
from casfs.checkpoints.revisions import step_state, step_tree
from casfs.cli.common import open_store, store_root
from casfs.cli.output import echo_json, echo_line, json_option, wants_json
from casfs.cli.run_on_tree import tree_runner
from casfs.cli.table import Cell, Coloured, Short, echo_table
from casfs.cli.thread.changes import apply
from casfs.cli.thread.follow import POLL_INTERVAL_S
from casfs.cli.thread.status_colours import COLOURS
from casfs.digest import hash_bytes
from casfs.errors import CasfsError, Conflict, Usage
from casfs.store import removals
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.threads.state import SUCCEEDED, state
from casfs.threads.threads import RUNNING, SUSPENDED, ThreadId
from casfs.trees.tree import changes

CANCEL_TRIES = 3
ID_CHARS = 8  # of the end of an id: those made at once begin alike
AGENT_FIELDS = ("package", "version", "config")
HEADERS = "ID STATUS STEPS TOKENS TIME FILES EXIT AGENTS"
Row = dict[str, Any]


class _WithCommand(click.Command):
    """A command whose arguments end at `--`; what follows is `ctx.meta["argv"]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        separator = args.index("--") if "--" in args else len(args)
        ctx.meta["argv"] = args[separator + 1 :]
        return super().parse_args(ctx, args[:separator])


@click.command(cls=_WithCommand)
@click.argument("ids", nargs=-1, required=True, metavar="ID... [-- CMD...]")
@json_option
@click.pass_context
def compare(ctx: click.Context, ids: Sequence[str]) -> None:
    """Print the outcomes of threads: status, steps, tokens, time, changed files, the exit code of
    CMD on the last tree, and the agents in which they differ.

    \b
    casfs thread compare 8XKQ 9ABC -- make test
    """
    exits: dict[str, int] = {}
    with open_store() as store:
        thread_ids = list(dict.fromkeys(lookup.find(store, id).id for id in ids))
        for id in thread_ids if ctx.meta["argv"] else ():
            exits[id] = _exit_code(store, id, ctx.meta["argv"])
        rows = [_outcome(store, id, exits) for id in thread_ids]
    _print(rows, rows)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--until", metavar="CMD", help="Shell command that passes in the last tree.")
@click.option("--first-success", is_flag=True, help="The first with return code 0 wins.")
@click.option("--cancel-rest", is_flag=True, help="Cancel the others.")
@click.option("--apply", "directory", metavar="DIR", help="Bring its changes to DIR.")
@click.option("--promote", metavar="NAME", help="Record its last tree as a checkpoint.")
@json_option
@click.pass_context
def race(ctx: click.Context, /, ids: Sequence[str], **options: Any) -> int:
    """Wait for threads; the first that succeeds, and passes CMD, wins. Print its id and all
    outcomes; exit 1 where none passes.

    CMD runs through the action cache in a workspace. A race that was interrupted goes on when it
    is started again. With --json, what `thread apply --json` prints is a line of its own.

    \b
    casfs thread race 8XKQ 9ABC --until "make test" --cancel-rest --apply .
    casfs thread race 8XKQ 9ABC --first-success --promote work
    """
    from engine.runtime import stop_thread

    until = options["until"]
    name = options["promote"]
    directory = options["directory"]
    if bool(until) == options["first_success"]:
        raise Usage("give either --until CMD or --first-success")
    if name is not None:
        checkpoint.check_name(name)
    exits: dict[str, int] = {}
    with open_store() as store:
        thread_ids = list(dict.fromkeys(lookup.find(store, id).id for id in ids))
        won = _winner(store, thread_ids, until=until, name=name, exits=exits)
        for id in thread_ids * CANCEL_TRIES if won and options["cancel_rest"] else ():
            if threads.get(store, id).status in (RUNNING, SUSPENDED):
                with suppress(CasfsError):  # another cancels it too, or the daemon was killed
                    summary = f"cancelled: thread {won['thread']} won the race"
                    stop_thread.request(store_root(), id, "cancel", summary=summary)
        rows = [_outcome(store, id, exits) for id in thread_ids]
    winner = won.get("thread")
    checkpoint_name = won.get("checkpoint")
    if not wants_json():
        echo_line(
            " ".join([winner, "won", *filter(None, [checkpoint_name])]) if winner else "none passed"
        )
    _print({"winner": winner, "checkpoint": checkpoint_name, "threads": rows}, rows)
    if winner and directory is not None:
        return int(ctx.invoke(apply, id=winner, directory=directory))
    return 0 if winner else 1


def _winner(
    store: Store, ids: list[ThreadId], until: str | None, name: str | None, exits: dict[str, int]
) -> Mapping[str, Any]:
    """Waits for the winner; returns its record {thread, checkpoint}, empty where none can pass any
    more. `exits` gets the exit codes of CMD."""
    request = {"race": sorted(ids), "until": until, "promote": name}
    key = HeadName(removals.KEYS + hash_bytes(canonical.encode(request))[:32])
    version_now = version_of(store.backend)
    while True:
        version = version_now()
        contenders = [threads.get(store, id) for id in ids]
        if head := head_kinds.get(store.heads, key):
            return head.record
        ended = [
            thread for thread in contenders if state(thread) == SUCCEEDED and thread.id not in exits
        ]
        if ended:
            first = min(ended, key=lambda thread: (thread.record["updatedAt"], thread.id))
            if until is not None:
                exits[first.id] = _exit_code(store, first.id, ["sh", "-c", until])
                click.echo(f"casfs: {first.id}: CMD exits with {exits[first.id]}", err=True)
            if not exits.get(first.id):
                record: dict[str, str] = {"thread": first.id}
                with suppress(Conflict), store.batch() as batch:  # another process was faster
                    if name is not None:
                        last = step_state(store, first, index=None)
                        message = f"won by thread {first.id}"
                        step = threads.last_step(store, first)
                        applied = [step] if step else []
                        new_checkpoint = create_of_state(
                            store, name, state=last, message=message, batch=batch, applied=applied
                        )
                        record["checkpoint"] = f"{new_checkpoint.name}@{new_checkpoint.id}"
                    batch.swap(key, None, Head(first.record["start"], record))
        elif not any(thread.status == RUNNING for thread in contenders):
            return {}
        while not ended and version_now() == version:
            time.sleep(POLL_INTERVAL_S)


def _exit_code(store: Store, id: ThreadId, argv: Sequence[str]) -> int:
    with tree_runner(store, argv) as run:
        return run(step_state(store, threads.get(store, id), index=None).whole).exit_code


def _outcome(store: Store, id: ThreadId, exits: Mapping[str, int]) -> Row:
    thread = threads.get(store, id)
    first = threads.start(store, thread).payload["workspace"]
    different = changes(store, first, step_tree(store, thread, index=None)) if first else ()
    agents = {}
    for role, hash in threads.agents(store, thread).items():
        package, version, config = map(store.node(hash).payload.get, AGENT_FIELDS)
        agents[role] = f"{package}{version}:{canonical.encode(config).decode()}"
    return {
        "id": id,
        "status": state(thread),
        "steps": threads.length(store, thread),
        "spent": thread.record["spent"],
        "files": first and sum(1 for _ in different),
        "exitCode": exits.get(id),
        "agents": agents,
    }


def _cells(row: Row, roles: Sequence[str]) -> list[Cell]:
    """Returns a row of the table. `roles`: those whose agents are shown."""
    id, status, spent, agents = (row[name] for name in ("id", "status", "spent", "agents"))
    head = [Short(id, id[-ID_CHARS:]), Coloured(status, COLOURS.get(status)), row["steps"]]
    cost = [spent["tokens"], f"{spent['wallMs'] / 1000:.1f} s", row["files"], row["exitCode"]]
    return [*head, *cost, " ".join(f"{role}={agents.get(role)}" for role in roles)]


def _print(value: Any, rows: list[Row]) -> None:
    if wants_json():
        return echo_json(value, pretty=False)
    roles = sorted({role for row in rows for role in row["agents"]})
    differ = [role for role in roles if len({row["agents"].get(role) for row in rows}) > 1]
    return echo_table(
        value=None,
        headers=HEADERS,
        rows=[_cells(row, differ) for row in rows],
        whole="ID STATUS",
    )
