"""What forms ask of the daemon. Nothing here writes the store.

Each answers with a redirect to the form's `back`; an error of the daemon, or that none runs, is an
error page of one line.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from casfs.agents import notation
from casfs.errors import Invalid
from casfs.system import daemon_socket
from casfs.threads.threads import FLAGS, NAME
from casfs.web.site import Call, is_number


def resume(call: Call) -> Response:
    """Resumes a suspended thread; `input` answers its question, `hint` goes to the next attempt."""
    ask(call, "resume", id=call.path["id"], **_given(call, "input", "hint"), **_agents(call))
    return call.back()


def cancel(call: Call) -> Response:
    ask(call, "cancel", id=call.path["id"])
    return call.back()


def label(call: Call) -> Response:
    """Sets the name of a thread, and whether it is pinned or archived: the fields of the form."""
    labels: dict[str, Any] = {flag: call.form[flag] == "yes" for flag in FLAGS if flag in call.form}
    if NAME in call.form:
        labels[NAME] = call.form[NAME].strip()
    ask(call, "label", id=call.path["id"], **labels)
    return call.back()


def fork(call: Call) -> Response:
    """Starts a thread from a step of another, and shows it."""
    step = call.form.get("at", "")
    if not is_number(step):
        raise Invalid("after which step? Give its number, 0 for the start")
    fields = _given(call, "hint", "workflow")
    answer = ask(call, "fork", id=call.path["id"], at=int(step), **fields, **_agents(call))
    return RedirectResponse(f"/threads/{quote(answer['id'])}", 303)


def compact(call: Call) -> Response:
    """Replaces the context before the next step by a summary: a text, or one that an agent
    writes."""
    fields = _given(call, "text", "agent")
    if (fields["text"] is None) == (fields["agent"] is None):
        raise Invalid("give either the summary, or the agent that writes it")
    agent = None if fields["agent"] is None else notation.parse(fields["agent"])
    ask(call, "compact", id=call.path["id"], text=fields["text"], agent=agent)
    return call.back(f"/threads/{quote(call.path['id'])}")


def promote(call: Call) -> Response:
    """Makes a checkpoint of a tree, and shows it."""
    fields = {name: call.form.get(name, "").strip() for name in ("name", "tree", "message")}
    answer = ask(call, "checkpoint", **fields)
    return RedirectResponse(f"/nodes/{quote(answer['hash'])}", 303)


def _given(call: Call, *names: str) -> dict[str, str | None]:
    return {name: call.form.get(name, "").strip() or None for name in names}


def _agents(call: Call) -> dict[str, Any]:
    """Returns the argument of a request that gives an agent to a role; none for an empty field."""
    text = call.form.get("agent", "").strip()
    return {"agents": {call.form.get("role", ""): notation.parse(text)}} if text else {}


def ask(call: Call, op: str, **arguments: Any) -> Any:
    """Sends a request to the daemon; returns its answer. Raises NoDaemon, and what it answers."""
    return daemon_socket.request(call.store.root, op, **arguments)
