"""Reads checkpoints. A checkpoint is a tree root at a point in time, under a name.

It is a `checkpoint` node and the head `checkpoints/<name>/<id>` that keeps it; its id is its
UTC time and the first 8 characters of its hash, so names sort by age. Its `previous` is no
ref: an old checkpoint may be dropped while a newer one stays.

The head's record holds what a listing shows, so that listings load no node. Checkpoints are
written by `casfs.checkpoints.create`, which the mount, as a reader, need not import.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from casfs.backend.protocols import Head, HeadName
from casfs.digest import BlobHash, NodeHash, TreeHash, is_hash
from casfs.errors import Conflict, Corrupt, Invalid, NotFound
from casfs.nodes import head_kinds
from casfs.nodes.head_kinds import RESERVED_NAMES
from casfs.store import Store

HEADS = "checkpoints/"
NO_TREE = TreeHash(NodeHash(BlobHash("")))  # of a damaged head
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`hash`: the checkpoint node; `root`: its tree; `created_at`: ms since 1970 UTC."""

    name: str
    id: str
    hash: NodeHash
    root: TreeHash
    created_at: int
    message: str


def head_name(name: str, id: str) -> HeadName:
    return HeadName(f"{HEADS}{name}/{id}")


def names(store: Store) -> list[str]:
    """Returns every name that has a checkpoint, sorted."""
    keys = (key for key, _ in store.heads.list(HEADS))
    return list(dict.fromkeys(key[len(HEADS) :].partition("/")[0] for key in keys))


def listing(store: Store, name: str | None = None) -> list[Checkpoint]:
    """Returns the checkpoints of `name`, or all, by name and then oldest first."""
    return _listing(store, HEADS if name is None else f"{HEADS}{name}/")


def latest(store: Store, name: str) -> Checkpoint | None:
    """Returns the newest checkpoint of `name`."""
    for key, head in store.heads.list(f"{HEADS}{name}/", reverse=True):
        return _sound(_checkpoint(key, head))
    return None


def find(store: Store, text: str) -> Checkpoint:
    """Resolves NAME or NAME@ID; an id may be a unique prefix, or `latest`. Raises NotFound,
    Conflict (an ambiguous prefix)."""
    name, at, id = text.partition("@")
    newest = None if is_hash(name) else latest(store, name)
    if newest is None:
        raise NotFound(f"no checkpoint {name!r}; see `casfs checkpoint list`")
    if not at or id == "latest":
        return newest
    found = _listing(store, f"{HEADS}{name}/{id}")
    if not found:
        raise NotFound(f"no checkpoint {text!r}; see `casfs checkpoint list {name}`")
    if len(found) > 1 and found[0].id != id:
        raise Conflict(f"{text} is ambiguous: {found[0].id}, {found[1].id}; give more of the id")
    return _sound(found[0])


def find_if_named(store: Store, text: str) -> Checkpoint | None:
    """As `find`, but returns None where `text` has no `@` and names no checkpoint: it may be
    another revision."""
    name = text.partition("@")[0]
    if "@" not in text and (not NAME.match(name) or is_hash(name) or latest(store, name) is None):
        return None
    return find(store, text)


def id_of(created_at: int, hash: str) -> str:
    """Returns the id of a checkpoint: `created_at` in ms since 1970 UTC, and its node."""
    moment = datetime.fromtimestamp(created_at // 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{created_at % 1000:03d}Z-{hash[:8]}"


def check_name(name: str) -> None:
    """Raises Invalid."""
    if not NAME.match(name) or is_hash(name) or name in RESERVED_NAMES:
        raise Invalid(
            f"invalid checkpoint name {name!r}: use 1 to 64 letters, digits, '.', '_',"
            " '-', and not a hash, 'plugins' or 'latest'"
        )


def _sound(found: Checkpoint) -> Checkpoint:
    """Raises Corrupt where its head is damaged."""
    if found.root == NO_TREE:
        raise Corrupt(f"checkpoint {found.name}@{found.id} is {found.message}")
    return found


def _listing(store: Store, prefix: str) -> list[Checkpoint]:
    return [_checkpoint(key, head) for key, head in store.heads.list(prefix)]


def _checkpoint(key: HeadName, head: Head) -> Checkpoint:
    name, _, id = key[len(HEADS) :].partition("/")
    if fault := head_kinds.record_fault(key, head):
        return Checkpoint(name, id, head.hash, NO_TREE, 0, f"broken: {fault}")
    record = head.record
    return Checkpoint(name, id, head.hash, record["root"], record["createdAt"], record["message"])
