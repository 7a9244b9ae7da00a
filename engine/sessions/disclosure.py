"""What leaves with the sessions of agents: what a person is shown before they are sent.

A session holds all that was typed into the agent and all that it read. What was known to be secret
when it was recorded is redacted; what is known by now, or what the scanner finds, is named here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from casfs import canonical
from casfs.agents.secret_marks import MARKS
from casfs.agents.secrets import Secrets
from casfs.backend.protocols import Head, HeadName, targets
from casfs.remotes.heads import is_session, with_called
from casfs.scanner import scan
from casfs.sessions import session_steps
from casfs.store import graph, local_trees
from casfs.store.referrers import Referrers
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.threads.threads import Thread
from casfs.trees.recorded_state import RecordedState
from engine.secrets import redaction

WORK = ("directory", "times")  # the files of the project, which are sent as any checkpoint's
KNOWN = "value of a private file"


class Disclosure(NamedTuple):
    """What a session discloses, with its subagents. `bytes`: of the texts; `redacted`: how many
    secrets are redacted in them; `in_clear`: what is not, kinds of the scanner or KNOWN, each
    once."""

    thread: str
    agent: str
    directory: str
    prompts: int
    calls: int
    bytes: int
    redacted: int
    in_clear: list[str]


def of_heads(store: Store, heads: Mapping[HeadName, Head]) -> Iterator[Disclosure]:
    """Yields what each session among heads would disclose. Raises NotFound, Corrupt."""
    records = {name: head.record for name, head in heads.items()}
    for name, head in heads.items():
        if is_session(head):
            family = with_called([name], records)
            roots = [root for member in family for root in targets(heads[member])]
            yield _of_session(store, threads.of_head(name, head), roots)


def heads_with(store: Store, roots: Iterable[str]) -> dict[HeadName, Head]:
    """Returns the heads of the sessions that nodes or blobs are part of, without the files of a
    project: those leave as any checkpoint's."""
    heads = {thread.name: thread.head for thread in sessions.newest_first(store)}
    if not heads:  # no index is made for nothing
        return {}
    owners = local_trees.owners(store)
    candidates = [owner for root in roots for owner in (root, *owners.get(root, ()))]
    above = _referring_to(store, [hash for hash in candidates if not _is_work(store, hash)])
    return {name: head for name, head in heads.items() if not above.isdisjoint(targets(head))}


def _referring_to(store: Store, hashes: list[str]) -> set[str]:
    """Returns these and all nodes that refer to them, but for those that only name files."""
    if not hashes:  # as of a tree: the index need not be brought up to date
        return set()
    with Referrers(store) as index:
        index.catch_up()
        waiting = [*hashes]
        above: set[str] = set()
        while waiting:
            hash = waiting.pop()
            if hash not in above and not _is_work(store, hash):
                above.add(hash)
                waiting += index.iterate(hash)
    return above


def _is_work(store: Store, hash: str) -> bool:
    info = store.blobs.info([hash]).get(hash)
    return info is not None and info.type is not None and store.registry.name(info.type) in WORK


def _of_session(store: Store, thread: Thread, roots: Iterable[str]) -> Disclosure:
    about = sessions.about(store, thread)
    steps = session_steps.load(store, thread)
    calls = [call for step in steps for call in step.calls]
    states = [state for call in calls[-1:] for state in (call.before, call.after) if state]
    known = _known_values(store, states or [step.before for step in steps[-1:] if step.before])
    size = 0
    marks: set[bytes] = set()
    in_clear: set[str] = set()
    for text in _texts(store, roots):
        size += len(text)
        marks.update(match[0].encode() for match in MARKS.finditer(text.decode("utf-8", "replace")))
        in_clear.update(finding.kind for finding in scan(text))
        if known and known.redact_values_in_bytes(text) != text:
            in_clear.add(KNOWN)
    return Disclosure(
        thread.id,
        about["agent"],
        about["directory"],
        prompts=len(steps),
        calls=len(calls),
        bytes=size,
        redacted=len(marks),
        in_clear=sorted(in_clear),
    )


def _known_values(store: Store, states: Iterable[RecordedState]) -> Secrets:
    values = (redaction.values_in_private_files(store, state, {}) for state in states)
    return Secrets({}, [value for group in values for value in group])


def _texts(store: Store, roots: Iterable[str]) -> Iterator[bytes]:
    """Yields all that is reachable but the work."""
    stack = [*roots]
    seen = set(stack)
    while stack:
        hash = stack.pop()
        if store.blobs.info([hash])[hash].type is None:
            yield store.get(hash)
            continue
        node = store.node(hash)
        if node.type not in WORK:
            yield canonical.encode(node.payload)
            new = [ref for ref in graph.node_refs(store, hash) if ref not in seen]
            seen.update(new)
            stack += new
