"""Sessions of attached agents whose transcripts grow while their hooks say nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from casfs.attach import attachments, spool, state
from casfs.attach.agents import AGENTS
from casfs.attach.attachments import Attachments
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.threads import sessions
from casfs.transcripts import json_lines, transcript_files

MAX_TRANSCRIPTS = 20  # of an agent: its newest
HEAD_BYTES = 1 << 16
SILENT_MS = 30_000  # a hook speaks before its agent writes, or just after


def listing(store: Store, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns `casfs.attach.state.listing` with the sessions that are not heard. Raises Invalid."""
    return {**state.listing(store, env), "unheard": list(warnings(store, env))}


def warnings(store: Store, env: Mapping[str, str]) -> Iterator[str]:
    """Yields a line for each session that was written to after it was last heard of. `env`: in
    which agents are started. Raises Invalid where the list of what is attached is damaged."""
    known = attachments.load(store.root)
    # What waits there is heard, and will be recorded.
    if spool.names(store.root):
        return
    newest = islice(sessions.readable(store), state.MAX_SESSIONS)
    heard = {about["id"]: thread.fields["updatedAt"] for thread, about in newest}
    attached = {attachment.agent for attachment in known.attached}
    for agent in sorted(attached & transcript_files.PATTERNS.keys()):
        home = AGENTS[agent].home(env)
        for path in transcript_files.find(agent, home)[-MAX_TRANSCRIPTS:]:
            with suppress(CasfsError, OSError):  # it is being deleted, or of another form
                written_ms = path.stat().st_mtime_ns // 1_000_000
                head = json_lines.parsed(json_lines.read_head(path, HEAD_BYTES))
                id, directory = transcript_files.ABOUT[agent](path, head)
                since = max(heard.get(id, 0), _attached_ms(known, agent, directory))
                if written_ms > since + SILENT_MS:
                    yield _warning(agent, id, directory)


def _warning(agent: str, id: str, directory: str) -> str:
    why = f"it reads them when it starts, so end session {id} and resume it"
    if note := AGENTS[agent].note:
        why += f"; {note}"
    return f"{agent} works in {directory}, and its hooks say nothing: {why}"


def _attached_ms(known: Attachments, agent: str, directory: str) -> int:
    """Returns since when an agent is attached in a directory; a time that never comes where it is
    not, or is not to be heard."""
    times = [
        attachment.attached_ms
        for attachment in known.attached
        if attachment.agent == agent
        and (attachment.directory is None or Path(directory).is_relative_to(attachment.directory))
    ]
    is_heard = times and not known.is_paused(os.path.normpath(directory))
    return min(times) if is_heard else 1 << 62
