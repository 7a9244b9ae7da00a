"""`--wait` of the commands that run a thread: what it does, on stderr, until it is over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import click

from casfs.agents import HUMAN
from casfs.cli.common import open_store
from casfs.cli.json_values import times
from casfs.cli.output import echo_json, wants_json
from casfs.cli.thread.follow import Event, follow
from casfs.cli.thread.screen import Screen
from casfs.errors import CasfsError, Suspended
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.state import says
from casfs.threads.summary import head_fields
from casfs.threads.threads import ENDED, SUSPENDED, Thread, ThreadId

Show = Callable[[Event], None]
AGAIN = "`casfs thread resume {id}` grants as much again"
WAYS_OUT = {
    HUMAN: "answer with `casfs thread resume {id} --input TEXT`",
    "rule": "`casfs thread fork {id} --workflow NEW` goes on under mended rules",
    "rounds": AGAIN,
    "budget": AGAIN,
}
RETRY = (
    "see `casfs thread log {id}`; `casfs thread resume {id}` tries again, --agent ROLE=NAME with "
    "another agent"
)


def wait_until_over(id: ThreadId, done: int = 0) -> int:
    """Waits until the thread ends or is suspended; reports the steps after `done`. Raises
    Suspended, or CasfsError for a return code other than 0."""
    with open_store() as store:
        screen = Screen(store, threads.get(store, id), err=True)
        show = (lambda event: None) if wants_json() else screen.show
        watch(store, id, done=done, screen=screen, show=show, back=f"thread log {id} --follow")
        thread = threads.get(store, id)
        if wants_json():
            echo_json(times(head_fields(thread)))
        check_result(store, thread)
    return 0


def watch(store: Store, id: ThreadId, done: int, screen: Screen, show: Show, back: str) -> None:
    """Shows the events of a thread after its step `done`, until it ends or is suspended. When a
    person interrupts it, says that the thread goes on, and the command `back`. Raises NoDaemon."""
    failed: list[CasfsError] = []

    def wait() -> None:
        from casfs.system import daemon_socket

        try:
            daemon_socket.request(store.root, "wait", id=id)
        except CasfsError as error:
            failed.append(error)

    def over(thread: Thread) -> bool:
        screen.tick(thread)
        return not waiting.is_alive()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    try:
        thread = threads.get(store, id)
        for event in follow(store, thread, after=done, over=over, attempt=screen.attempt):
            show(event)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the next one ends this at once
        ways = f"`casfs {back}` follows it, `casfs thread cancel {id}` ends it"
        click.echo(f"\ncasfs: thread {id} goes on; {ways}", err=True)
        raise
    screen.clear()
    if failed:
        raise failed[0]


def check_result(store: Store, thread: Thread) -> None:
    """Raises Suspended, or CasfsError for a return code other than 0, with the ways out."""
    from engine.threads import call_stack

    end = threads.end(store, thread)
    if thread.status == SUSPENDED:
        waits = call_stack.awaited_children(store, thread)
        cause = HUMAN if waits and waits[-1].record["cause"] == HUMAN else thread.record["cause"]
        way = WAYS_OUT.get(cause or "", RETRY).format(id=thread.id)
        raise Suspended(f"thread {thread.id} is suspended: {thread.record['reason']}; {way}")
    if thread.status != ENDED or end is None or end.payload["returnCode"] != 0:
        how = end.payload["summary"] if end else "no end"
        raise CasfsError(f"thread {thread.id} {says(thread)}: {how}")
