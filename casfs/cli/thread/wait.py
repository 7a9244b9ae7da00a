"""`--wait` of the commands that run a thread."""

from __future__ import annotations

import click

from casfs import threads
from casfs.cli.common import open_store, store_root
from casfs.cli.json_values import times
from casfs.cli.output import echo_json
from casfs.cli.thread.show import cache_hit, head_fields
from casfs.errors import CasfsError, Suspended
from casfs.threads import ENDED, SUSPENDED, ThreadId


def wait_until_over(ctx: click.Context, id: ThreadId, as_json: bool, done: int = 0) -> int:
    """Waits until the thread ends or is suspended; prints the cache hits of steps after `done`.
    Raises Suspended, or CasfsError for a return code other than 0."""
    from casfs import daemon_socket

    daemon_socket.request(store_root(ctx), "wait", id=id)
    with open_store(ctx) as store:
        found = threads.get(store, id)
        end = threads.end(store, found)
        for node in threads.last_steps(store, found, None, done):
            if "cached" in node.payload:
                step = f"step {node.payload['index']} {node.payload['role']}"
                click.echo(f"casfs: {step}: {cache_hit(node.payload['cached'])}", err=True)
    if as_json:
        echo_json(times(head_fields(found)))
    if found.status == SUSPENDED:
        reason = found.record["reason"]
        raise Suspended(f"thread {id} is suspended: {reason}; use `casfs thread resume`")
    if found.status != ENDED or end is None or end.payload["returnCode"] != 0:
        how = end.payload["summary"] if end else "no end"
        raise CasfsError(f"thread {id} is {found.status}: {how}")
    return 0
