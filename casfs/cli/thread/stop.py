"""Commands that end or suspend a thread: by the daemon, or on the store where none runs."""

from __future__ import annotations

import click

from casfs.cli.common import open_store, store_root
from casfs.cli.output import echo_result, json_option
from casfs.system import daemon_socket, reserve
from casfs.threads import lookup


@click.command()
@click.argument("id")
@json_option
def cancel(id: str) -> None:
    """End a thread and its callees with return code 130.

    \b
    casfs thread cancel 01K2
    """
    _stop("cancel", id=id)


@click.command()
@click.argument("id")
@json_option
def suspend(id: str) -> None:
    """Suspend a running thread and its callees; its pending step is run again on resume.

    \b
    casfs thread suspend 01K2
    """
    _stop("suspend", id=id)


def _stop(op: str, id: str) -> None:
    """Asks the daemon, or does it on the store where no daemon runs."""
    root = store_root()
    with reserve.released(root):
        with open_store() as store:
            thread = lookup.find(store, id)
        # As `stop_thread.request`, but the engine is imported only where no daemon runs.
        if daemon_socket.runs(root):
            daemon_socket.request(root, op, id=thread.id)
        else:
            from engine.runtime import stop_thread

            stop_thread.without_daemon(root, thread.id, stop_thread.ACTIONS[op])
    echo_result({"id": thread.id}, thread.id)
