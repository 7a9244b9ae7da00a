"""The action cache: results of commands and of workflow steps, by the hash of their action.

The head `actions/<key>` leads to the `action-result` node; the key is the hash of the
`action` node (`casfs.actions.key`; of a cacheable role's step: `engine.runtime.step_cache`).
Results are cache (`casfs.maintenance.gc`): eviction costs a recomputation. A damaged result
is a cache miss as well.

    record  createdAt; argv0; command: fingerprint of argv or role, to find entries of the same

Caching is opted into by the first words of a command, word by word: `make` allows
`make -j2 all`, but neither `makefoo` nor `sh -c make`. Commands are run by
`casfs.actions.runner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from casfs import canonical
from casfs.actions.key import Action
from casfs.backend.derived import last_use
from casfs.backend.protocols import Head, HeadName
from casfs.digest import BlobHash, NodeHash, hash_bytes
from casfs.errors import Corrupt, NotFound
from casfs.store.nodes import head_kinds
from casfs.store.nodes.node import Node
from casfs.store.store import Store
from casfs.system.clock import now_ms

if TYPE_CHECKING:
    from casfs.trees.recorded_state import RecordedState

HEADS = "actions/"
TYPE = "action-result"
MAX_ARGV0_CHARS = 60  # shorter than a hash, so that none can be mistaken for a ref


@dataclass(frozen=True, slots=True)
class Result:
    """An action-result node: its hash, and its fields."""

    hash: NodeHash
    action: NodeHash
    exit_code: int
    stdout: BlobHash
    stderr: BlobHash
    outputs: RecordedState
    detail: BlobHash | None
    artifacts: list[BlobHash]
    duration_ms: int
    created_at: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A cache entry, from its head alone. `created_at`, `used_at`: ms since 1970 UTC."""

    action: NodeHash
    result: NodeHash
    argv0: str
    created_at: int
    used_at: int


def head_name(action: NodeHash) -> HeadName:
    return HeadName(HEADS + action)


def lookup(store: Store, key: NodeHash) -> Result | None:
    """Returns the result for a key; None for a cache miss, a damaged head or result."""
    head = store.heads.get(head_name(key))
    if head is None or head_kinds.fault(head_name(key), head):
        return None
    try:
        return load(store, head.hash)
    except (NotFound, Corrupt):
        return None


def load(store: Store, hash: NodeHash) -> Result:
    """Raises NotFound, Corrupt."""
    return result_of(store, store.node(hash, TYPE))


def result_of(store: Store, node: Node[Any]) -> Result:
    """Returns the fields of an action-result node."""
    from casfs.trees import recorded_state  # a list of entries has no results

    payload = node.payload
    outputs = recorded_state.of_node(store, node.hash, payload=payload, field="outputs")
    assert outputs is not None
    return Result(
        hash=node.hash,
        action=payload["action"],
        exit_code=payload["exitCode"],
        stdout=payload["stdout"],
        stderr=payload["stderr"],
        outputs=outputs,
        detail=payload["detail"],
        artifacts=payload["artifacts"],
        duration_ms=payload["durationMs"],
        created_at=payload["createdAt"],
    )


def publish(store: Store, action: Action, result: NodeHash) -> None:
    """Points the head of an action's key to a stored result. Raises Conflict, NotFound."""
    record = {
        "createdAt": now_ms(),
        "argv0": argv0(action.payload),
        "command": fingerprint(action.payload),
    }
    name = head_name(action.hash)
    with store.batch() as batch:
        batch.swap(name, store.heads.get(name), Head(result, record))


def list_entries(store: Store) -> list[Entry]:
    """Returns the cache entries, the most recently used first."""
    entries = []
    for name, head in head_kinds.sound(store.heads, HEADS):
        created_at = head.record["createdAt"]
        program = head.record["argv0"]
        used = max(created_at, last_use(store.heads, name))
        entries.append(
            Entry(
                cast(NodeHash, name[len(HEADS) :]),
                head.hash,
                argv0=program,
                created_at=created_at,
                used_at=used,
            )
        )
    return sorted(entries, key=lambda entry: entry.used_at, reverse=True)


def argv0(action: Mapping[str, Any]) -> str:
    """Returns the name of an action's program or role in a record."""
    step = action["step"]
    name: str = action["argv"][0] if step is None else f"role {step['name']}"
    return name[:MAX_ARGV0_CHARS]


def fingerprint(action: Mapping[str, Any]) -> str:
    """Returns a short hash of an action's argv, or of its role, for a record."""
    step = action["step"]
    subject = action["argv"] if step is None else {"role": step["role"]}
    return hash_bytes(canonical.encode(subject))[:16]
