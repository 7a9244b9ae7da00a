"""`--wait` of the commands that run a thread: what it does, on stderr, until it is over."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from casfs import threads
from casfs.cli import output
from casfs.cli.common import open_store, store_root
from casfs.cli.json_values import times
from casfs.cli.output import echo_json
from casfs.cli.thread.follow import Finished, Output, Started, follow
from casfs.cli.thread.show import attempt_note, cache_hit, head_fields, seconds
from casfs.errors import CasfsError, Suspended
from casfs.nodes.node import Node
from casfs.prompts import content_text
from casfs.store import Store
from casfs.thread_state import says
from casfs.threads import ENDED, SUSPENDED, Thread, ThreadId

AGAIN = "`casfs thread resume {id}` grants as much again"
WAYS_OUT = {
    "human": "answer with `casfs thread resume {id} --input TEXT`",
    "rule": "`casfs thread fork {id} --workflow NEW` goes on under mended rules",
    "rounds": AGAIN,
    "budget": AGAIN,
}
RETRY = (
    "see `casfs thread log {id}`; `casfs thread resume {id}` tries again, --agent ROLE=NAME with "
    "another agent"
)


def wait_until_over(ctx: click.Context, id: ThreadId, as_json: bool, done: int = 0) -> int:
    """Waits until the thread ends or is suspended; reports the steps after `done`. Raises
    Suspended, or CasfsError for a return code other than 0."""
    waiting = _Waiting(store_root(ctx), id)
    try:
        with open_store(ctx) as store:
            found = threads.get(store, id)
            for event in follow(store, found, None, done, lambda now: waiting.over):
                match event:
                    case Started(fields) if not as_json:
                        _report(fields, f"started{attempt_note(fields)}")
                    case Output(_, text) if not as_json:
                        click.echo(output.escape(text), nl=False, err=True)
                    case Finished(node, shown):
                        _report_step(store, node, shown, as_json)
    except KeyboardInterrupt:
        click.echo(
            f"\ncasfs: thread {id} goes on; `casfs thread log {id} --follow` follows it, "
            f"`casfs thread cancel {id}` ends it",
            err=True,
        )
        raise
    waiting.check()
    with open_store(ctx) as store:
        return _result(store, threads.get(store, id), as_json)


class _Waiting:
    """Waits for the daemon's answer, in an OS thread of its own."""

    def __init__(self, root: Path, id: ThreadId) -> None:
        self._root, self._id = root, id
        self._error: CasfsError | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raises what the request raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        from casfs import daemon_socket

        try:
            daemon_socket.request(self._root, "wait", id=self._id)
        except CasfsError as error:
            self._error = error


def _report(step: Mapping[str, Any], what: str) -> None:
    line = f"casfs: step {step['index']} {step['role']}: {what}"
    click.echo(output.escape(line, one_line=True), err=True)


def _report_step(store: Store, node: Node, shown: str, as_json: bool) -> None:
    """`shown`: the beginning of its output, which was printed as it came."""
    step = node.payload
    text = content_text(store, step["content"])
    if shown and text.startswith(shown) and not as_json:
        rest = output.escape(text[len(shown) :])
        click.echo(rest, nl=not text.endswith("\n"), err=True)
    if "cached" in step:
        _report(step, cache_hit(step["cached"]))
    elif not as_json:
        _report(step, f"finished, {seconds(step)}")


def _result(store: Store, found: Thread, as_json: bool) -> int:
    end = threads.end(store, found)
    if as_json:
        echo_json(times(head_fields(found)))
    if found.status == SUSPENDED:
        way = WAYS_OUT.get(found.record["cause"] or "", RETRY).format(id=found.id)
        raise Suspended(f"thread {found.id} is suspended: {found.record['reason']}; {way}")
    if found.status != ENDED or end is None or end.payload["returnCode"] != 0:
        how = end.payload["summary"] if end else "no end"
        raise CasfsError(f"thread {found.id} {says(found)}: {how}")
    return 0
