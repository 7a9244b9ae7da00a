"""The kinds of heads that travel between stores: their names, types and records."""

from __future__ import annotations

import re
from dataclasses import dataclass

from casfs import canonical, threads
from casfs.backend.protocols import MAX_RECORD_BYTES, Head, HeadName
from casfs.checkpoints import checkpoint
from casfs.digest import NodeHash, is_hash
from casfs.errors import Invalid
from casfs.nodes.registry import HEADS as SCHEMAS

WORKFLOWS = "workflows/"
NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
CHECKPOINT_ID = "[0-9]{8}T[0-9]{6}[.][0-9]{3}Z-[0-9a-f]{8}"
PORTABLE_STATUSES = (threads.SUSPENDED, threads.ENDED, threads.CANCELLED)


@dataclass(frozen=True, slots=True)
class HeadKind:
    """The heads below one prefix: the pattern of their names, the types of the nodes they
    lead to, and the fields that a listing reads from their records."""

    prefix: str
    name: re.Pattern[str]
    types: tuple[str, ...]
    record: dict[str, type]


HEAD_KINDS = (
    HeadKind(
        threads.HEADS,
        re.compile("[0-9A-HJKMNP-TV-Z]{26}"),
        ("thread-start", "thread-step", "thread-end"),
        {"status": str, "start": str, "workflow": str, "updatedAt": int},
    ),
    HeadKind(
        checkpoint.HEADS,
        re.compile(f"{NAME}/{CHECKPOINT_ID}"),
        ("checkpoint",),
        {"root": str, "createdAt": int, "message": str},
    ),
    HeadKind(WORKFLOWS, re.compile(NAME), ("workflow",), {}),
    HeadKind(SCHEMAS, re.compile("[a-z][a-z0-9-]{0,63}"), ("schema",), {}),
)


def allowed_types(name: HeadName) -> tuple[str, ...]:
    """Returns the types of nodes that a head of this name may lead to; empty: any."""
    return next((kind.types for kind in HEAD_KINDS if name.startswith(kind.prefix)), ())


def parse_foreign_head(value: object) -> tuple[HeadName, Head]:
    """Parses {name, hash, record}, a head from another store, to (name, head).

    Raises Invalid for a malformed head, and for one that cannot leave its store.
    """
    if not isinstance(value, dict) or value.keys() != {"name", "hash", "record"}:
        raise Invalid("a head is an object of name, hash and record")
    name, hash, record = value["name"], value["hash"], value["record"]
    kind = next((kind for kind in HEAD_KINDS if str(name).startswith(kind.prefix)), None)
    if kind is None or not kind.name.fullmatch(str(name)[len(kind.prefix) :]):
        raise Invalid(f"an export cannot bring in the head {name!r}")
    if not is_hash(hash) or not isinstance(record, dict):
        raise Invalid(f"the head {name}: hash or record missing")
    for key, wanted in kind.record.items():
        if type(record.get(key)) is not wanted:
            raise Invalid(f"the head {name}: its record has no {key}")
    if kind.prefix == threads.HEADS and record["status"] not in PORTABLE_STATUSES:
        raise Invalid(f"the thread {name} is {record['status']}; it must be suspended or ended")
    if len(canonical.encode(record)) > MAX_RECORD_BYTES:
        raise Invalid(f"the head {name}: its record is over {MAX_RECORD_BYTES} bytes")
    return HeadName(name), Head(NodeHash(hash), record)
