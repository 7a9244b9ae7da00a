"""What forms ask of the daemon. Nothing here writes the store.

Each answers with a redirect to the form's `back`; an error of the daemon, or that none runs, is an
error page of one line.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from casfs import daemon_socket
from casfs.errors import Refused
from casfs.web.site import Call


def resume(call: Call) -> Response:
    """Resumes a suspended thread; `input` answers its question, `hint` goes to the next attempt."""
    given = {name: call.form.get(name) or None for name in ("input", "hint")}
    ask(call, "resume", id=call.path["id"], **given)
    return call.back()


def cancel(call: Call) -> Response:
    ask(call, "cancel", id=call.path["id"])
    return call.back()


def ask(call: Call, op: str, **arguments: Any) -> Any:
    """Sends a request to the daemon; returns its answer. Raises NoDaemon, and what it answers."""
    root = call.store.root
    if root is None:
        raise Refused("a store in memory has no daemon")
    return daemon_socket.request(root, op, **arguments)
