"""What is attached to a store, and whether it speaks: for listings and `casfs status`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from casfs.attach import agents, attachments, spool
from casfs.attach.attachments import Attachment
from casfs.directories import projects
from casfs.store.store import Store
from casfs.system.clock import moment
from casfs.threads import sessions
from casfs.threads.threads import Thread

MAX_SESSIONS = 1000  # that are searched for those of an attachment


def listing(store: Store, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns as JSON what is attached, when it last spoke (in ms), what is wrong with it, and what
    the spool holds. `env`: in which agents are started. Raises Invalid where the list of it is
    damaged."""
    known = attachments.load(store.root)
    lost = spool.missed(store.root)
    return {
        "attached": [_state(store, attachment) for attachment in known.attached],
        "elsewhere": list(_elsewhere(known.attached, env)),
        "paused": list(known.paused),
        "waiting": len(spool.names(store.root)),
        "setAside": spool.set_aside_count(store.root),
        "lostFirstAt": lost and lost[0],
        "lostLastAt": lost and lost[1],
    }


def warnings(value: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a person should know of a `casfs.transcripts.unheard.listing`, a line each."""
    for attached in value["attached"]:
        if attached["fault"]:
            yield f"{attached['agent']} in {attached['file']}: {attached['fault']}"
    yield from value["elsewhere"]
    yield from value["unheard"]
    if value["lostFirstAt"]:
        since, until = moment(value["lostFirstAt"]), moment(value["lostLastAt"])
        yield f"what agents reported from {since} to {until} is lost: the disk was full"
    if value["setAside"]:
        yield f"{value['setAside']} reports could not be read; they are in spool/aside of the store"


def _elsewhere(attached: Sequence[Attachment], env: Mapping[str, str]) -> Iterator[str]:
    """Yields a line for each agent that is attached for all projects, but reads other settings in
    this environment."""
    of_user = [attachment for attachment in attached if attachment.directory is None]
    files = {attachment.file for attachment in of_user}
    for name in dict.fromkeys(attachment.agent for attachment in of_user):
        agent = agents.AGENTS[name]
        file = str(agent.settings(None, env))
        if file not in files:
            yield f"{name} reads {file} here, which has no hooks: `casfs attach {name} --user`"


def _state(store: Store, attachment: Attachment) -> dict[str, Any]:
    recorded = _sessions(store, attachment)
    last = max((thread.fields for thread in recorded), key=itemgetter("updatedAt"), default=None)
    projects_of_all = {projects.of_thread(store, thread) for thread in recorded}
    return {
        "agent": attachment.agent,
        "directory": attachment.directory,
        "file": attachment.file,
        "attachedAt": attachment.attached_ms,
        "sessions": len(recorded),
        "projects": len({project.directory for project in projects_of_all if project}),
        "lastSpokeAt": None if last is None else last["updatedAt"],
        "fault": _fault(store, attachment) or (last and last["session"].get("fault")),
    }


def _sessions(store: Store, attachment: Attachment) -> list[Thread]:
    """Returns those of the newest MAX_SESSIONS that are of an attachment."""
    return [
        thread
        for thread, about in islice(sessions.readable(store), MAX_SESSIONS)
        if about["agent"] == attachment.agent and _is_in(about["directory"], attachment)
    ]


def _is_in(directory: str, attachment: Attachment) -> bool:
    above = attachment.directory
    return above is None or Path(directory).is_relative_to(above)


def _fault(store: Store, attachment: Attachment) -> str | None:
    if attachment.directory is not None and not Path(attachment.directory).is_dir():
        return "the project is gone; `casfs detach` forgets it"
    reported = attachments.reported_events(store.root, attachment)
    if reported is None:
        return "the settings are not what the agent can read; mend them, or `casfs detach`"
    wanted = set(agents.AGENTS[attachment.agent].events)
    if missing := wanted - reported:
        return f"no hook for {', '.join(sorted(missing))}; detach, and attach again"
    return None
