"""What a person can mean by a root: the heads of a store by the names people use for them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import checkpoint, threads
from .backend import Head
from .errors import CasfsError, Conflict, Invalid, NotFound, Refused
from .registry import HEADS as SCHEMAS
from .store import Store

WORKFLOWS = "workflows/"
PORTABLE = (threads.HEADS, checkpoint.HEADS, WORKFLOWS, SCHEMAS)
HASH = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[a-z]+/[A-Za-z0-9][A-Za-z0-9._/-]{0,200}\Z")


def targets(head: Head) -> list[str]:
    """Every hash that a head holds: where it points, and what its record mentions."""
    found = [head.hash]
    stack: list[object] = [head.record]
    while stack:
        value = stack.pop()
        if isinstance(value, str) and HASH.fullmatch(value):
            found.append(value)
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            stack += value.values()
    return found


def is_portable(name: object) -> bool:
    """May a head of this name travel between stores?"""
    return isinstance(name, str) and name.startswith(PORTABLE) and NAME.match(name) is not None


def roots(store: Store, texts: list[str]) -> tuple[list[str], list[tuple[str, Head]]]:
    """(hashes, heads) that the texts mean: a thread's id, a workflow's name, a checkpoint
    NAME[@ID], a head's full name, or any hash.

    Raises NotFound, Conflict where a text means two things, Refused for a running thread.
    """
    hashes: list[str] = []
    heads: list[tuple[str, Head]] = []
    for text in texts:
        found = list(_named(store, text))
        if len(found) > 1:
            both = ", ".join(name for name, _ in found)
            raise Conflict(f"{text} is ambiguous: {both}; give the whole name")
        if found:
            heads += found
        else:
            hashes.append(_hash(store, text))
    for name, head in heads:
        if head.record.get("status") == threads.RUNNING and name.startswith(threads.HEADS):
            raise Refused(f"{name} is running; wait until it rests, or cancel it")
    return hashes, [*heads, *_types(store)]


def _named(store: Store, text: str) -> Iterator[tuple[str, Head]]:
    """The heads that a text may mean."""
    names = [text] if "/" in text else [WORKFLOWS + text]
    if "/" not in text:
        for find in (_thread, _checkpoint):
            try:
                names.append(find(store, text))
            except (NotFound, Invalid):
                continue
    for name in names:
        head = store.heads.get(name)
        if head is not None:
            yield name, head


def _thread(store: Store, text: str) -> str:
    return threads.expand(store, text).name


def _checkpoint(store: Store, text: str) -> str:
    found = checkpoint.find(store, text)
    return f"{checkpoint.HEADS}{found.name}/{found.id}"


def _hash(store: Store, text: str) -> str:
    try:
        return store.expand(text)
    except CasfsError as error:
        raise NotFound(f"{text!r} is no thread, checkpoint, workflow or hash here") from error


def _types(store: Store) -> list[tuple[str, Head]]:
    """The types that a user or an agent registered: nodes of them may travel along."""
    found = store.heads.list(SCHEMAS)
    return [(name, head) for name, head in found if not head.record.get("builtin")]
