"""Shows what sessions of agents hold, and asks, before they leave the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import click

from casfs.backend.protocols import Head, HeadName
from casfs.cli.output import warn
from casfs.cli.terminal import is_asked
from casfs.errors import Refused
from casfs.remotes.heads import is_session
from casfs.store.store import Store
from casfs.system.sizes import readable


def agree(
    store: Store,
    heads: Mapping[HeadName, Head],
    *,
    yes: bool,
    verb: str,
    roots: Collection[str] = (),
) -> None:
    """Raises Refused where a person does not want sessions to leave, or cannot be asked and has not
    said --yes: those among `heads`, and those of which `roots` are nodes."""
    if not roots and not any(is_session(head) for head in heads.values()):
        return
    from engine.sessions import disclosure

    concerned = {**heads, **disclosure.heads_with(store, roots)}
    sessions = list(disclosure.of_heads(store, concerned))
    if not sessions:
        return
    for session in sessions:
        counts = f"{session.prompts} prompts, {session.calls} calls, {readable(session.bytes)}"
        warn(f"session {session.thread} of {session.agent} in {session.directory}: {counts}")
        in_clear = ", ".join(session.in_clear) or "no other"
        warn(f"  secrets that are redacted in it: {session.redacted}; found in it: {in_clear}")
    if yes:
        return
    if not is_asked():
        raise Refused(f"sessions hold what was typed and read there; --yes to {verb} them")
    if not click.confirm(f"{verb.capitalize()} them?", default=False, err=True):
        raise Refused("nothing has left the store")
