"""What a person can mean: roots by the names that people use for them, types by theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from casfs import canonical, threads
from casfs.backend.derived import count_by_type, of_types
from casfs.backend.protocols import MAX_RECORD_BYTES, BlobInfo, Head
from casfs.checkpoints import checkpoint
from casfs.digest import is_hash
from casfs.errors import CasfsError, Conflict, Invalid, NotFound, Refused
from casfs.nodes.registry import HEADS as SCHEMAS
from casfs.store import Store

WORKFLOWS = "workflows/"
NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
TIMES = "[0-9]{8}T[0-9]{6}[.][0-9]{3}Z-[0-9a-f]{8}"
RESTING = (threads.SUSPENDED, threads.ENDED, threads.CANCELLED)


@dataclass(frozen=True, slots=True)
class Kind:
    """The heads below one prefix: what their names look like, the types that they lead to,
    and what a listing wants to find in their records."""

    prefix: str
    name: re.Pattern[str]
    types: tuple[str, ...]
    record: dict[str, type]


KINDS = (
    Kind(
        threads.HEADS,
        re.compile("[0-9A-HJKMNP-TV-Z]{26}"),
        ("thread-start", "thread-step", "thread-end"),
        {"status": str, "start": str, "workflow": str, "updatedAt": int},
    ),
    Kind(
        checkpoint.HEADS,
        re.compile(f"{NAME}/{TIMES}"),
        ("checkpoint",),
        {"root": str, "createdAt": int, "message": str},
    ),
    Kind(WORKFLOWS, re.compile(NAME), ("workflow",), {}),
    Kind(SCHEMAS, re.compile("[a-z][a-z0-9-]{0,63}"), ("schema",), {}),
)


def kinds(name: str) -> tuple[str, ...]:
    """The types that a head of this name may lead to; empty for any."""
    return next((kind.types for kind in KINDS if name.startswith(kind.prefix)), ())


def travelled(value: object) -> tuple[str, Head]:
    """(name, head) of a head that comes from another store, {name, hash, record}.

    Raises Invalid where such a head cannot travel, or is malformed.
    """
    if not isinstance(value, dict) or value.keys() != {"name", "hash", "record"}:
        raise Invalid("a head is an object of name, hash and record")
    name, hash, record = value["name"], value["hash"], value["record"]
    kind = next((kind for kind in KINDS if str(name).startswith(kind.prefix)), None)
    if kind is None or not kind.name.fullmatch(str(name)[len(kind.prefix) :]):
        raise Invalid(f"an export cannot bring in the head {name!r}")
    if not is_hash(hash) or not isinstance(record, dict):
        raise Invalid(f"the head {name} has no hash, or no record")
    for key, wanted in kind.record.items():
        if type(record.get(key)) is not wanted:
            raise Invalid(f"the head {name}: its record has no {key}")
    if kind.prefix == threads.HEADS and record["status"] not in RESTING:
        raise Invalid(f"the thread {name} is {record['status']}; it cannot travel like that")
    if len(canonical.encode(record)) > MAX_RECORD_BYTES:
        raise Invalid(f"the head {name}: its record is over {MAX_RECORD_BYTES} bytes")
    return name, Head(hash, record)


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
        if not kinds(name):
            raise Refused(f"{name} is of this store alone; give its hash {head.hash}")
    return hashes, list(dict([*heads, *_types(store)]).items())


def of_type(store: Store, name: str) -> Iterator[tuple[str, BlobInfo]]:
    """All nodes of a type by its name, whichever version of its schema they have."""
    hashes = {store.registry.head(name).hash}
    hashes |= {hash for hash in count_by_type(store.blobs) if store.registry.name(hash) == name}
    return of_types(store.blobs, hashes)


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
        raise NotFound(f"no thread, checkpoint, workflow or hash {text!r}") from error


def _types(store: Store) -> list[tuple[str, Head]]:
    """The types that a user or an agent registered: nodes of them may travel along."""
    found = store.heads.list(SCHEMAS)
    return [(name, head) for name, head in found if not head.record.get("builtin")]
