"""Checkpoints: a tree root at a moment, under a name.

A checkpoint is a `checkpoint` node and the head `checkpoints/<name>/<id>` that keeps it;
its id is its UTC time and the first 8 characters of its hash, so names sort by age. Its
`previous` is no ref: an old checkpoint may be dropped while a newer one stays.

How one is made of a directory: `casfs.checkpoints.create`; of what changed:
`casfs.checkpoints.advance`. Whoever only reads them, as the mount does, needs neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from casfs.backend.protocols import Head
from casfs.digest import is_hash
from casfs.errors import Conflict, Invalid, NotFound
from casfs.store import Store
from casfs.system.clock import now_ms
from casfs.system.paths import printable
from casfs.trees import tree
from casfs.write_batch import Batch

HEADS = "checkpoints/"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
RESERVED = ("plugins", "latest")
MAX_CHANGED = 1000  # paths that a checkpoint node names
KEYS = {"A": "added", "M": "modified", "T": "modified", "D": "deleted"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`hash`: the checkpoint node; `root`: its tree; `created_at`: ms since 1970 UTC."""

    name: str
    id: str
    hash: str
    root: str
    created_at: int
    message: str


@dataclass(frozen=True, slots=True)
class Content:
    """What a checkpoint says: `stats` and `paths` of what changed since the one before."""

    root: str
    message: str
    stats: Mapping[str, int]
    paths: list[str]


def put(batch: Batch, name: str, previous: Checkpoint | None, content: Content) -> Checkpoint:
    """Record a tree whose nodes are stored, after the newest of its name; the caller commits."""
    payload: dict[str, Any] = {
        "root": content.root,
        "previous": previous.hash if previous else None,
        "name": name,
        "createdAt": _now(previous),
        "message": content.message,
        "stats": dict(content.stats),
        "changed_files": content.paths,
    }
    node = batch.put_node("checkpoint", payload)
    made = _checkpoint(name, _id(payload["createdAt"], node.hash), node.hash, payload)
    batch.swap(f"{HEADS}{name}/{made.id}", None, Head(node.hash, _record(payload)))
    return made


def compare(store: Store, old: str | None, new: str) -> tuple[dict[str, int], list[str]]:
    """What changed between two trees: how much, and the first paths."""
    counts = dict.fromkeys(("added", "modified", "deleted"), 0)
    paths: list[str] = []
    for change in tree.shown(store, tree.diff(store, old, new)):
        counts[KEYS[change.letter]] += 1
        if len(paths) < MAX_CHANGED:
            paths.append(printable(change.path))
    return counts, paths


def names(store: Store) -> list[str]:
    """Every name that has a checkpoint, sorted."""
    return list(dict.fromkeys(name for name, _, _ in _heads(store, HEADS)))


def listing(store: Store, name: str | None = None) -> list[Checkpoint]:
    """The checkpoints of `name`, or all, by name and then oldest first."""
    return _listing(store, HEADS if name is None else f"{HEADS}{name}/")


def latest(store: Store, name: str) -> Checkpoint | None:
    for key, head in store.heads.list(f"{HEADS}{name}/", reverse=True):
        return _checkpoint(name, key.rpartition("/")[2], head.hash, head.record)
    return None


def find(store: Store, text: str) -> Checkpoint:
    """The checkpoint that NAME or NAME@ID means; an id may be a unique prefix, or `latest`.

    Raises NotFound, Conflict (an ambiguous prefix).
    """
    name, at, id = text.partition("@")
    newest = latest(store, name)
    if newest is None:
        raise NotFound(f"no checkpoint {name!r}; see `casfs checkpoint list`")
    if not at or id == "latest":
        return newest
    found = _listing(store, f"{HEADS}{name}/{id}")
    if not found:
        raise NotFound(f"no checkpoint {text!r}; see `casfs checkpoint list {name}`")
    if len(found) > 1 and found[0].id != id:
        raise Conflict(f"{text} is ambiguous: {found[0].id}, {found[1].id}; give more of the id")
    return found[0]


def named(store: Store, text: str) -> Checkpoint | None:
    """As `find`, but None where what may be a name is none, and may be something else."""
    name = text.partition("@")[0]
    if "@" not in text and (not NAME.match(name) or latest(store, name) is None):
        return None
    return find(store, text)


def check_name(name: str) -> None:
    if not NAME.match(name) or is_hash(name) or name in RESERVED:
        raise Invalid(
            f"invalid checkpoint name {name!r}: use 1 to 64 letters, digits, '.', '_',"
            " '-', and not a hash, 'plugins' or 'latest'"
        )


def _heads(store: Store, prefix: str) -> Iterator[tuple[str, str, Head]]:
    for key, head in store.heads.list(prefix):
        name, _, id = key[len(HEADS) :].partition("/")
        yield name, id, head


def _listing(store: Store, prefix: str) -> list[Checkpoint]:
    return [
        _checkpoint(name, id, head.hash, head.record) for name, id, head in _heads(store, prefix)
    ]


def _checkpoint(name: str, id: str, hash: str, payload: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(name, id, hash, payload["root"], payload["createdAt"], payload["message"])


def _record(payload: dict[str, Any]) -> dict[str, Any]:
    """What a listing needs, so that it loads no node. A record holds at most 4 KiB."""
    return {
        "root": payload["root"],
        "createdAt": payload["createdAt"],
        "message": payload["message"][:500],
    }


def _now(previous: Checkpoint | None) -> int:
    """Milliseconds; later than the one before even when the clock went back."""
    now = now_ms()
    return now if previous is None else max(now, previous.created_at + 1)


def _id(created_at: int, hash: str) -> str:
    moment = datetime.fromtimestamp(created_at / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{created_at % 1000:03d}Z-{hash[:8]}"
