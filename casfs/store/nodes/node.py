"""A node: a blob that is `{"payload": …, "type": "<hash of its schema node>"}` in canonical
JSON and that a store has accepted. The meta-schema node alone has the type "schema"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from casfs import canonical
from casfs.backend.protocols import MAX_NODE_BYTES, BlobInfo
from casfs.digest import NodeHash
from casfs.errors import Corrupt, Invalid
from casfs.store.nodes import directory
from casfs.store.nodes.ref_collectors import Ref

# Rules that a schema cannot state. By the name of the type, not its hash: an older version of a
# schema has another hash, and its nodes obey the same rules.
CHECKS: dict[str, Callable[[Any], object]] = {"directory": directory.check_node}
# A `cas_type` names one type, but a parent that has no step yet stands at its start.
PARENT_STATES = ("thread-start", "thread-step")

Payload = TypeVar("Payload")
TargetInfo = Callable[[], Mapping[str, BlobInfo]]  # of what a node refers to, by hash
TypeName = Callable[[str | None], str]  # of the hash of a type; None: of plain bytes


class Node(NamedTuple, Generic[Payload]):
    """`type` is the name of the node's schema, `type_hash` the schema node itself. `payload`: as in
    `casfs.payloads` where the caller has named the type, else any JSON."""

    hash: NodeHash
    type: str
    type_hash: str
    payload: Payload


def check_targets(type: str, payload: Any, info: TargetInfo, type_name: TypeName) -> None:
    """Checks what a schema cannot state about the blobs that a payload refers to, of which `info`
    returns those that are stored. Raises Invalid."""
    # `info` looks up rows, and only these two types have such rules: so it is called here, not by
    # the caller for each node that is put.
    if type == "directory":
        sizes = {hash: blob_info.size for hash, blob_info in info().items()}
        directory.check_sizes(payload, sizes)
    if type == "thread-start":
        parent_info = info().get(payload["parentState"])
        # There is no parent, or it is missing: that is the fault of a ref, which others report.
        if parent_info is None:
            return
        name = type_name(parent_info.type)
        if name not in PARENT_STATES:
            raise Invalid(f"$.parentState: refers to a {name}, and must be a step or start")


def check_types(refs: Iterable[Ref], types: Mapping[str, str | None], type_name: TypeName) -> None:
    """Raises Invalid for a ref to what is not among `types`, or to a node of another type."""
    # Most refs of a node have targets of a few types: each is named once.
    names: dict[str | None, str] = {}
    for ref in refs:
        # Not `get`: what is stored as plain bytes is among `types`, with None.
        if ref.hash not in types:
            raise Invalid(f"refers to {ref.hash}, which is not in this store; put it first")
        if ref.cas_type is None:
            continue
        type = types[ref.hash]
        if type not in names:
            names[type] = type_name(type)
        if names[type] != ref.cas_type:
            raise Invalid(f"refers to {ref.hash}: a {names[type]}, and must be a {ref.cas_type}")


def encode(type_hash: str, payload: Any) -> bytes:
    """Returns the bytes of a node. Raises Invalid naming the JSON path inside the payload."""
    # Joined by hand, so that paths in faults start at the payload. It is canonical: the keys are in
    # order, and a type, which is a hash or the word `schema`, has nothing to escape.
    body = canonical.encode(payload)
    data = b'{"payload":' + body + b',"type":"' + type_hash.encode() + b'"}'
    # Here, since put, import and fsck all encode: what one of them accepts the others do.
    check_size(len(data))
    return data


def check_size(size: int) -> None:
    """Raises Invalid for more bytes than a node may have."""
    if size > MAX_NODE_BYTES:
        raise Invalid(f"$: {size} bytes are too many for a node; it may have {MAX_NODE_BYTES}")


def decode(hash: str, data: bytes) -> tuple[str, Any]:
    """Returns (type hash, payload) of a stored node's bytes. Raises Corrupt."""
    # The payload is not checked against its schema again: put did that, and fsck does.
    try:
        value = canonical.decode(data)
        type_hash = value["type"]
        payload = value["payload"]
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"node {hash}: not a node ({error})") from None
    if not isinstance(type_hash, str):
        raise Corrupt(f"node {hash}: its type is not a hash")
    return type_hash, payload
