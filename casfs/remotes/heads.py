"""Heads that travel by a remote: which names a person means, how one leaves, which may move."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from casfs.backend.protocols import Head, HeadName
from casfs.checkpoints import checkpoint
from casfs.errors import Conflict, Invalid, NotFound
from casfs.exchange import arrivals
from casfs.exchange.arrivals import WORKFLOWS
from casfs.exchange.portable_heads import is_future, parse_foreign_head, without_processes
from casfs.maintenance import names
from casfs.store import local_trees
from casfs.store.nodes import head_kinds
from casfs.store.removals import label
from casfs.store.store import Store
from casfs.threads import threads

RUNNING = "it was running in another store when it was pushed from there"
UNKNOWN = "unknown"  # causes, see `casfs.threads.threads`
CALLER = "caller"
MIN_PART_CHARS = 4
Name = TypeVar("Name", bound=str)


def of_store(store: Store, texts: Iterable[str]) -> dict[HeadName, Head]:
    """Returns the heads that texts name, as they leave the store: all checkpoints of a NAME,
    NAME@ID, a thread with those that it called, a workflow; and the store's own schemas. Raises
    NotFound, Conflict (ambiguous), Invalid for a text that names no head."""
    named_heads: dict[HeadName, Head] = {}
    for text in texts:
        all = dict(head_kinds.sound(store.heads, f"{checkpoint.HEADS}{text}/"))
        if "/" in text or not all:
            hashes, heads = names.roots(store, [text], running=True)
            if hashes:
                raise Invalid(f"{text} has no name; push a checkpoint, a thread or workflows/NAME")
            all = dict(heads)
        named_heads |= all
    named_heads = arrivals.leaving(named_heads.items())
    return {
        name: without_processes(name, _at_rest(name, head, named_heads), named_heads)
        for name, head in named_heads.items()
    }


def all_names(store: Store, *, with_sessions: bool = False) -> list[str]:
    """Returns the names of all checkpoints, threads and workflows, for `of_store`; none that is
    another's, ORIGIN.NAME. Sessions of outside agents hold all that a person typed and read there,
    so they and what they have called are left out unless `with_sessions`."""
    kinds = (checkpoint.HEADS, threads.HEADS, WORKFLOWS)
    named_heads = [
        named_head for kind in kinds for named_head in head_kinds.sound(store.heads, kind)
    ]
    private = set() if with_sessions else _of_sessions(dict(named_heads))
    return [
        name
        for name, head in named_heads
        if name not in private and not arrivals.is_alias(name, head)
    ]


def sessions_besides(store: Store, wanted: Collection[str]) -> int:
    """Returns how many sessions there are besides those that are wanted."""
    named_heads = head_kinds.sound(store.heads, threads.HEADS)
    return sum(is_session(head) and name not in wanted for name, head in named_heads)


def _of_sessions(named_heads: Mapping[HeadName, Head]) -> set[HeadName]:
    """Returns the names of sessions, and of the threads that they have called."""
    sessions = [name for name, head in named_heads.items() if is_session(head)]
    records = {name: head.record for name, head in named_heads.items()}
    return set(with_called(sessions, records))


def with_called(names: Iterable[Name], records: Mapping[Name, Mapping[str, Any]]) -> list[Name]:
    """Returns names, and those of the threads that they have called, of which these are the
    records, each once."""
    called: dict[str, list[Name]] = {}
    for name, record in records.items():
        if name.startswith(threads.HEADS):
            called.setdefault(f"{threads.HEADS}{record.get('parent')}", []).append(name)
    family = list(names)
    for name in family:  # which grows
        family += called.pop(name, ())
    return list(dict.fromkeys(family))


def is_session(head: Head) -> bool:
    return head.record.get("cause") == threads.SESSION


def _at_rest(name: HeadName, head: Head, leaving_names: Collection[str]) -> Head:
    """A running thread leaves as a suspended one: no other daemon runs it by itself."""
    if not name.startswith(threads.HEADS) or head.record["status"] != threads.RUNNING:
        return head
    called = (
        f"{threads.HEADS}{head.record.get('parent')}" in leaving_names
    )  # is resumed with its caller
    cause = CALLER if called else UNKNOWN
    state = {"status": threads.SUSPENDED, "reason": RUNNING, "cause": cause}
    return Head(head.hash, {**head.record, **state})


def parsed(name: str, ref: Mapping[str, Any]) -> Head:
    """Returns a ref of a remote as a head. Raises Invalid where no store has such a one."""
    value = {"name": name, "hash": ref["hash"], "record": ref["record"]}
    head = parse_foreign_head(value)[1]
    if is_future(head):
        raise Invalid(f"{name}: its time is in the future")
    return head


def of_remote(refs: Mapping[str, Any], texts: Collection[str]) -> list[str]:
    """Returns the names of the refs that texts name, all for none: as `of_store`, but by what the
    remote has. Raises NotFound, Conflict (ambiguous)."""
    if not texts:
        return list(refs)
    matched_names = [name for text in texts for name in _matching(refs, text)]
    return with_called(matched_names, {name: ref["record"] for name, ref in refs.items()})


def _matching(refs: Mapping[str, Any], text: str) -> list[str]:
    name, _, id = text.partition("@")
    whole = [ref_name for ref_name in (text, WORKFLOWS + text) if ref_name in refs]
    named = [
        ref_name
        for ref_name in _some(refs, threads.HEADS)
        if refs[ref_name]["record"].get("name") == text
    ]
    parts = _some(refs, f"{checkpoint.HEADS}{name}/{id}") if id else []
    if len(text) >= MIN_PART_CHARS:
        parts += _some(refs, f"{threads.HEADS}{text.upper()}")
    if matches := whole or _some(refs, f"{checkpoint.HEADS}{text}/"):
        return matches
    matches = named or parts
    if not matches:
        raise NotFound(f"the remote has no {text!r}; see `casfs remote ls`")
    if len(matches) > 1:
        raise Conflict(
            f"{text} is ambiguous: {', '.join(map(label, matches[:3]))}; give more of it"
        )
    return matches


def _some(refs: Mapping[str, Any], prefix: str) -> list[str]:
    return [name for name in refs if name.startswith(prefix)]


def may_replace(store: Store, name: str, new: str, old: str) -> bool:
    """May a push replace what a name stands for in a remote by what it stands for here?"""
    if name.startswith(local_trees.HEADS):
        return True  # of equal nodes the newest local tree counts, as in a store
    if name.startswith(WORKFLOWS):
        return new == old or _was_before(store, name, old)
    return arrivals.is_ahead(store, name, new=new, old=old)


def _was_before(store: Store, name: str, hash: str) -> bool:
    """Did a head of this store stand for a hash, as far as the journal goes back?"""
    after = 0
    while moves := store.heads.moves(after):
        if any((move.name, move.hash) == (name, hash) for move in moves):
            return True
        after = moves[-1].seq
    return False
