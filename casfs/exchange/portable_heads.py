"""Heads that travel between stores: what an import takes over of one, and what it refuses.

A thread arrives without the processes of its old store: no process id, no token by which processes
are found, calls only to threads that come with it, and none of its files that are local.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from casfs import canonical
from casfs.backend.protocols import MAX_RECORD_BYTES, Head, HeadName
from casfs.checkpoints import checkpoint
from casfs.digest import NodeHash, is_hash
from casfs.errors import Corrupt, Invalid
from casfs.exchange import arrivals
from casfs.exchange.arrivals import WORKFLOWS
from casfs.store import local_trees
from casfs.store.nodes import head_kinds, node
from casfs.system.clock import moment_id, now_ms
from casfs.threads import threads
from casfs.trees.recorded_state import HERE_ONLY

PORTABLE = (threads.HEADS, checkpoint.HEADS, WORKFLOWS, "schemas/")
PORTABLE_STATUSES = (threads.SUSPENDED, threads.ENDED, threads.CANCELLED)
PROCESS_OF_SESSION = ("boot", "host", "identity")
MAX_CLOCK_SKEW_MS = 86_400_000  # of the store that an archive comes from


def allowed_types(name: HeadName) -> tuple[str, ...]:
    """Returns the types of nodes that a head of this name may lead to; empty: any."""
    kind = head_kinds.kind_of(name)
    return () if kind is None else kind.types


def is_portable(name: HeadName) -> bool:
    return name.startswith(PORTABLE)


def parse_foreign_head(value: object) -> tuple[HeadName, Head]:
    """Parses {name, hash, record}, a head from another store, to (name, head).

    Raises Invalid for a malformed head, and for one that cannot leave its store.
    """
    if not isinstance(value, dict) or value.keys() != {"name", "hash", "record"}:
        raise Invalid("a head is an object of name, hash and record")
    name = value["name"]
    hash = value["hash"]
    record = value["record"]
    if not isinstance(name, str) or not name.startswith((*PORTABLE, local_trees.HEADS)):
        raise Invalid(f"an export cannot bring in the head {name!r}")
    if not is_hash(hash) or not isinstance(record, dict):
        raise Invalid(f"the head {name}: hash or record missing")
    head = Head(NodeHash(hash), record)
    if fault := head_kinds.fault(name, head):
        raise Invalid(f"an export cannot bring in the head {name!r}: {fault}")
    if name.startswith(threads.HEADS) and record["status"] not in PORTABLE_STATUSES:
        raise Invalid(f"the thread {name} is {record['status']}; it must be suspended or ended")
    if len(canonical.encode(record)) > MAX_RECORD_BYTES:
        raise Invalid(f"the head {name}: its record is over {MAX_RECORD_BYTES} bytes")
    return HeadName(name), head


def is_future(head: Head) -> bool:
    """Would it stay the newest of its name, whatever is recorded after it?"""
    latest = max(head.record.get("createdAt", 0), head.record.get("updatedAt", 0))
    return bool(latest > now_ms() + MAX_CLOCK_SKEW_MS)


def without_processes(name: HeadName, head: Head, head_names: Collection[str]) -> Head:
    """Returns a head as it leaves its store, or arrives in another, together with the heads
    `head_names`: a thread without processes, and with links only to threads among them; a workflow
    with its default agents alone, a schema with nothing that says it is built in."""
    if name.startswith(WORKFLOWS):
        agents = head.record.get("agents")
        return Head(head.hash, {"agents": agents} if agents else {})
    if name.startswith("schemas/"):
        return Head(head.hash, {"builtin": False})
    record = arrivals.without_marks(name, head.record)
    if not name.startswith(threads.HEADS):
        return Head(head.hash, record)

    def together(ids: list[str]) -> list[str]:
        return [id for id in ids if f"{threads.HEADS}{id}" in head_names]

    if intent := record.get("intent"):
        local_fields = {
            "pid": None,
            "pidStart": None,
            "run": None,
            "calls": together(intent.get("calls", [])),
        }
        kept_fields = {key: value for key, value in intent.items() if key not in HERE_ONLY}
        record["intent"] = {**kept_fields, **local_fields}
    for of_this_machine in ("ignored", *threads.FIELDS_OF_THIS_STORE):
        record.pop(of_this_machine, None)
    if session := record.get("session"):
        elsewhere = {key: value for key, value in session.items() if key not in PROCESS_OF_SESSION}
        record["session"] = {**elsewhere, "pid": 0, "pidStart": None}
    if "children" in record:
        record["children"] = together(record["children"])
    if record.get("parent"):
        record["parent"] = next(iter(together([record["parent"]])), None)
    return Head(head.hash, record)


def mismatch(name: HeadName, head: Head, data: bytes) -> str | None:
    """Returns how the name or record of a sound head contradicts its node, of which these are the
    bytes; None where it does not, and where the node is not of a type that it may lead to."""
    try:
        return _mismatch(
            name, head.hash, record=head.record, payload=node.decode(head.hash, data)[1]
        )
    except (Corrupt, KeyError, TypeError, AttributeError):  # found by the check of its type
        return None


def _mismatch(
    name: str, hash: str, record: Mapping[str, Any], payload: Mapping[str, Any]
) -> str | None:
    name = arrivals.own_name(HeadName(name), record)
    if name.startswith(WORKFLOWS) and name != WORKFLOWS + payload["name"]:
        return "its name is not that of its node"
    if name.startswith(checkpoint.HEADS):
        filed, _, id = name[len(checkpoint.HEADS) :].partition("/")
        for key in ("root", "createdAt"):
            if record[key] != payload[key]:
                return f"its record has another {key} than its node"
        if filed != payload["name"] or id != moment_id(payload["createdAt"], hash):
            return "its name is not that of its node"
    if name.startswith(threads.HEADS):
        if record["start"] not in (hash, payload.get("start")):
            return "its record has another start than its node"
        if (record["status"] in (threads.ENDED, threads.CANCELLED)) != ("returnCode" in payload):
            return f"its record says {record['status']}, but its node does not"
        if "returnCode" in payload and record.get("returnCode") not in (
            None,
            payload["returnCode"],
        ):
            return "its record has another returnCode than its node"
        index = payload.get("index", 0) + 1
        if (record.get("intent") or {}).get("index", index) != index:
            return f"its pending step is not {index}"
    return None
