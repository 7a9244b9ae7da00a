"""Checks one blob: its bytes, and as a node its form, schema, refs and place in a thread.

A node is never judged by a schema that is itself damaged or lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from casfs import canonical
from casfs.backend.derived import repairable
from casfs.backend.protocols import META, BlobInfo
from casfs.digest import NodeHash
from casfs.errors import CasfsError, Corrupt, CorruptBlob, Invalid, NotFound, Purged
from casfs.store import tombstones
from casfs.store.nodes import node
from casfs.store.nodes.node import CHECKS, Node, check_targets
from casfs.store.store import Store

LOST_TYPE = "lost type"
NO_TOMBSTONE = "no tombstone"


@dataclass(slots=True)
class Fault:
    """`hash`: the damaged or missing blob, or None. `takes`: names of the affected heads."""

    kind: str
    hash: str | None
    message: str
    takes: list[str] = field(default_factory=list)


def check_blob(store: Store, hash: str, info: BlobInfo) -> list[Fault]:
    """Returns the faults of a stored blob; empty when gc has deleted it meanwhile."""
    faults = _faults(store, hash, info)
    if faults and not store.blobs.info([hash]):  # gc deleted it meanwhile
        return []
    return faults


def _faults(store: Store, hash: str, info: BlobInfo) -> list[Fault]:
    try:
        repairable(store.blobs).verify(hash)
        if info.type is not None:
            return list(_check_node(store, cast(NodeHash, hash), info.type))
    except Purged as purged:  # on purpose
        return _check_purged(store, hash, purged.substitute)
    except CorruptBlob as error:
        return [Fault("corrupt", hash, str(error))]
    except NotFound as error:
        return [Fault("missing", hash, str(error))]
    except CasfsError as error:
        return [Fault("unreadable", hash, str(error))]
    return []


def _check_purged(store: Store, hash: str, substitute: str | None) -> list[Fault]:
    """A mark has a tombstone, which says why; what readers get instead is stored."""
    info = store.blobs.info([hash]).get(hash)
    if info is None or not info.purged:
        return []
    if substitute is not None and not store.blobs.info([substitute]):
        return [Fault("missing", substitute, f"{hash} was purged, and its substitute is missing")]
    if store.heads.get(tombstones.head_name(hash)) is None:
        return [Fault(NO_TOMBSTONE, hash, f"{hash} was purged, and its tombstone is missing")]
    return []


def _check_node(store: Store, hash: NodeHash, type: str) -> Iterator[Fault]:
    schema_hash = hash if type == META else type
    if not store.blobs.info([schema_hash]):
        yield Fault(
            "missing", schema_hash, f"node {hash} is of type {schema_hash}, which is missing"
        )
        return
    try:
        store.registry.compiled(schema_hash)
    except CorruptBlob:  # of the schema, which has a fault of its own
        return
    except CasfsError as error:
        yield Fault("bad node", hash, f"node {hash}: {error}")
        return
    try:
        node = _decode_checked(store, hash, type)
    except (CasfsError, KeyError, TypeError, ValueError) as error:
        yield Fault("bad node", hash, f"node {hash}: {error}")
        return
    yield from _check_refs(store, node)
    yield from _check_order(store, node)


def _decode_checked(store: Store, hash: NodeHash, type: str) -> Node[Any]:
    """Returns the node. Raises where its bytes, form or payload are invalid."""
    data = store.get(hash)
    type_hash, payload = node.decode(hash, data)
    if type_hash != type:
        raise Corrupt(f"is of type {type_hash}, but the store has it as {type}")
    if node.encode(type_hash, canonical.parse(data)["payload"]) != data:
        raise Corrupt("its bytes are not canonical")
    name, schema = store.registry.compiled(hash if type_hash == META else type_hash)
    schema.check(payload)
    if name in CHECKS:
        CHECKS[name](payload)
    return Node(hash, name, type_hash=type_hash, payload=payload)


def _check_refs(store: Store, node: Node[Any]) -> Iterator[Fault]:
    """Yields missing refs, and refs to a node of another type or size than is required."""
    refs = dict.fromkeys(store.refs(node))
    known = store.blobs.info({ref.hash for ref in refs})
    subject = f"{node.type} {node.hash}"
    try:
        check_targets(
            node.type, node.payload, info=lambda: known, type_name=partial(_type_name, store)
        )
    except Invalid as error:
        if all(_is_intact(store, hash) for hash in known):  # else that is the fault
            yield Fault("wrong ref", node.hash, f"{subject}: {error}")
    for ref in refs:
        if ref.hash not in known:
            if ref.may_dangle:
                continue
            message = f"{subject} refers to {ref.hash}, which is missing"
            yield Fault("missing", ref.hash, message)
        elif ref.cas_type is not None and not has_type(store, known[ref.hash], (ref.cas_type,)):
            if lost_type(store, ref.hash, info=known[ref.hash], names=(ref.cas_type,)):
                message = f"{subject}: {ref.hash} has lost its type {ref.cas_type}"
                yield Fault(LOST_TYPE, ref.hash, message)
            else:
                yield Fault(
                    "wrong ref", node.hash, f"{subject}: {ref.hash} is not a {ref.cas_type}"
                )


def _is_intact(store: Store, hash: str) -> bool:
    try:
        repairable(store.blobs).verify(hash)
    except CasfsError:
        return False
    return True


def _type_name(store: Store, type: str | None) -> str:
    return "blob" if type is None else store.registry.name(type)


def has_type(store: Store, info: BlobInfo, names: tuple[str, ...]) -> bool:
    """Is a blob a node of one of these types? True where the type is damaged, which is a
    fault of its own."""
    try:
        return info.type is not None and store.registry.name(info.type) in names
    except CasfsError:
        return True


def lost_type(store: Store, hash: str, info: BlobInfo, names: tuple[str, ...]) -> bool:
    """Does a blob stored without a type hold a node of one of these types?"""
    if info.type is not None:
        return False
    try:
        type_hash = detect_type(store, store.get(hash))
        return type_hash is not None and store.registry.name(type_hash) in names
    except CasfsError:
        return False


def _check_order(store: Store, node: Node[Any]) -> Iterator[Fault]:
    """Checks a step's index and a thread-start's depth against their predecessors."""
    try:
        if node.type == "thread-step":
            previous = node.payload["previous"]
            before = store.node(previous).payload["index"] if previous else 0
            if node.payload["index"] != before + 1:
                message = f"step {node.hash} has index {node.payload['index']} after {before}"
                yield Fault("order", node.hash, message)
        if node.type == "thread-start" and node.payload["depth"] != _depth(store, node):
            message = f"thread-start {node.hash} has depth {node.payload['depth']}"
            yield Fault("depth", node.hash, f"{message}, expected {_depth(store, node)}")
    except (CasfsError, KeyError):  # the predecessor has a fault of its own
        return


def _depth(store: Store, start: Node[Any]) -> int:
    state = start.payload["parentState"]
    if state is None:
        return 0
    parent = store.node(state)
    if parent.type == "thread-step":
        parent = store.node(parent.payload["start"])
    return int(parent.payload["depth"]) + 1


def detect_type(store: Store, data: bytes) -> str | None:
    """Returns the type hash under which `data` is a valid node, else None."""
    try:
        value = canonical.parse(data)
        type_hash = value["type"]
        if type_hash != META:
            store.registry.compiled(type_hash)[1].check(value["payload"])
        canonical_form = node.encode(type_hash, value["payload"])
    except (CasfsError, Invalid, KeyError, TypeError, ValueError, AttributeError):
        return None
    return str(type_hash) if canonical_form == data else None
