"""`thread race`: the first of several threads that passes a test wins.

They are tested one by one in the order in which they ended, as their records have it. The winner
is recorded in the head of an idempotency key, whose request is the race: its threads, test and
checkpoint. That head is created by compare-and-swap, and in the same transaction the checkpoint of
`--promote`; so a race has one winner, however often it is killed and started again, on any machine,
and what follows may be done again.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from casfs import canonical, removals, thread_lookup, threads
from casfs.backend.derived import version_of
from casfs.backend.protocols import Head, HeadName
from casfs.checkpoints import checkpoint
from casfs.checkpoints.create import create_of_tree
from casfs.cli.common import json_option, open_store
from casfs.cli.output import echo_json, echo_line
from casfs.cli.run_on_tree import run_on_tree
from casfs.cli.thread.changes import apply_changes, print_applied
from casfs.cli.thread.compare import echo_outcomes, outcomes
from casfs.cli.thread.follow import POLL_INTERVAL_S
from casfs.digest import hash_bytes
from casfs.errors import CasfsError, Conflict, NotFound, Usage
from casfs.nodes import head_kinds
from casfs.revisions import step_tree
from casfs.store import Store
from casfs.thread_state import SUCCEEDED, says, state
from casfs.threads import RUNNING, SUSPENDED, Thread, ThreadId

CANCEL_TRIES = 5


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--until", "command", metavar="CMD", help="Exits with 0 in the winner's last tree.")
@click.option("--first-success", is_flag=True, help="The first with return code 0 wins.")
@click.option("--cancel-rest", is_flag=True, help="Cancel the others.")
@click.option("--apply", "directory", metavar="DIR", help="Bring its changes to DIR.")
@click.option("--promote", metavar="NAME", help="Record its last tree as a checkpoint.")
@json_option
@click.pass_context
def race(
    ctx: click.Context,
    ids: tuple[str, ...],
    command: str | None,
    first_success: bool,
    cancel_rest: bool,
    directory: str | None,
    promote: str | None,
    as_json: bool,
) -> int:
    """Wait for threads; the first that succeeds, and passes CMD, wins. Print its id and all
    outcomes; exit 1 where none passes.

    CMD runs through the action cache in a workspace of the thread's last tree. A race that was
    interrupted goes on when it is started again.

    \b
    casfs thread race 8XKQ 9ABC --until "make test" --cancel-rest --apply .
    casfs thread race 8XKQ 9ABC --first-success --promote work
    """
    try:
        argv = shlex.split(command or "")
    except ValueError as error:
        raise Usage(f"--until {command}: {error}") from None
    if bool(argv) == first_success:
        raise Usage("give either --until CMD or --first-success")
    if promote is not None:
        checkpoint.check_name(promote)
    with open_store(ctx) as store:
        race = _Race(store, [thread_lookup.find(store, id).id for id in ids], argv, promote)
        won = race.winner()
        value: dict[str, Any] = {"winner": won and won.id, "checkpoint": None, "applied": None}
        if won is not None:
            value["checkpoint"] = race.checkpoint
            if cancel_rest:
                race.cancel_others(won)
            if directory is not None:
                value["applied"] = apply_changes(store, won.id, directory)
        value["threads"] = outcomes(store, race.threads(), race.exits)
    if as_json:
        echo_json(value)
    elif won is None:
        echo_line("none passed")
    else:
        echo_line(" ".join(filter(None, [won.id, "won", value["checkpoint"]])))
        if value["applied"]:
            print_applied(value["applied"])
    if not as_json:
        echo_outcomes(value["threads"])
    return 0 if won and not (value["applied"] and value["applied"]["conflicts"]) else 1


class _Race:
    """`exits`: exit codes of the test so far, by thread; `checkpoint`: of the winner, NAME@ID."""

    def __init__(
        self, store: Store, ids: Sequence[ThreadId], argv: list[str], promote: str | None
    ) -> None:
        self._store = store
        self._ids = list(dict.fromkeys(ids))
        self._argv = argv
        self._promote = promote
        request = {"race": sorted(self._ids), "until": argv, "promote": promote}
        self._key = HeadName(removals.KEYS + hash_bytes(canonical.encode(request))[:32])
        self._failed: set[ThreadId] = set()
        self.exits: dict[str, int] = {}
        self.checkpoint: str | None = None

    def threads(self) -> list[Thread]:
        return [threads.get(self._store, id) for id in self._ids]

    def winner(self) -> Thread | None:
        """Waits for it; returns None where none can pass any more."""
        version_now = version_of(self._store.backend)
        while (won := self._recorded()) is None:
            version, now = version_now(), self.threads()
            ended = [one for one in now if state(one) == SUCCEEDED and one.id not in self._failed]
            if ended:
                first = min(ended, key=lambda one: (one.record["updatedAt"], one.id))
                if self._passes(first):
                    self._record(first)
                else:
                    self._failed.add(first.id)
            elif not any(one.status == RUNNING for one in now):
                return None
            while not ended and version_now() == version:
                time.sleep(POLL_INTERVAL_S)
        return won

    def _recorded(self) -> Thread | None:
        head = head_kinds.get(self._store.heads, self._key)
        if head is None:
            return None
        self.checkpoint = head.record.get("checkpoint")
        with suppress(NotFound):  # it was removed
            return threads.get(self._store, head.record["thread"])
        return None

    def _passes(self, thread: Thread) -> bool:
        said = f"casfs: thread {thread.id} {says(thread)}"
        if self._argv:
            code = run_on_tree(self._store, step_tree(self._store, thread, None), self._argv)
            self.exits[thread.id] = code
            said += f"; CMD exits with {code}"
        click.echo(said, err=True)
        return not self.exits.get(thread.id)

    def _record(self, won: Thread) -> None:
        """Records the winner, unless another process was faster."""
        old = self._store.heads.get(self._key)
        with suppress(Conflict), self._store.batch() as batch:
            record: dict[str, str] = {"thread": won.id}
            if self._promote is not None:
                root, message = step_tree(self._store, won, None), f"won by thread {won.id}"
                made = create_of_tree(self._store, self._promote, root, message, batch)
                record["checkpoint"] = f"{made.name}@{made.id}"
            batch.swap(self._key, old, Head(won.record["start"], record))

    def cancel_others(self, won: Thread) -> None:
        for id in self._ids:
            if id != won.id:
                self._cancel(id)

    def _cancel(self, id: ThreadId) -> None:
        """Cancels a thread that is not over, together with whoever else does; again where the
        daemon went away."""
        from engine.runtime import stop_thread

        assert self._store.root is not None
        for tries_left in reversed(range(CANCEL_TRIES)):
            if threads.get(self._store, id).status not in (RUNNING, SUSPENDED):
                return
            try:
                stop_thread.request(self._store.root, id, "cancel")
            except CasfsError:
                if not tries_left:
                    raise
                time.sleep(POLL_INTERVAL_S)
