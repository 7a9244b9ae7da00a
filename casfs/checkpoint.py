"""Checkpoints: a tree root at a moment, under a name.

A checkpoint is a `checkpoint` node and the head `checkpoints/<name>/<id>` that keeps it;
its id is its UTC time and the first 8 characters of its hash, so names sort by age. Only
blobs and directory nodes that the store does not have are stored: a checkpoint costs what
changed (seed 004, SPEC-08.14). Its `previous` is no ref: an old checkpoint may be dropped
while a newer one stays.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from . import kernel
from .backend import Head
from .batch import Batch
from .digest import hash_bytes, is_hash
from .errors import Conflict, Invalid, NotFound, Refused
from .store import Store
from .trees import snapshot, tree
from .trees.ignore import Ignore
from .trees.index import Index
from .trees.restore import restore
from .trees.snapshot import Options, Report

HEADS = "checkpoints/"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
MOUNT = "fuse.casfs"  # the type of such a mount
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


@dataclass(slots=True)
class Created:
    """A new checkpoint and what making it took. `new_bytes`: stored by it alone."""

    checkpoint: Checkpoint
    report: Report
    stats: dict[str, int]
    new_bytes: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a checkpoint says: `stats` and `paths` of what changed since the one before."""

    root: str
    message: str
    stats: Mapping[str, int]
    paths: list[str]


def create(
    store: Store,
    name: str,
    directory: Path,
    message: str = "",
    *,
    defaults: bool = True,
    options: Options | None = None,
) -> Created:
    """Record the tree under `directory`. `defaults`: leave out the well-known directories.

    Raises Invalid (the name), NotFound (the directory), Failed (an unreadable file), Refused
    (over the limit, or the store itself); then nothing is visible.
    """
    check_name(name)
    how, report = options or Options(), Report()
    ignore = rules(store, directory, report, defaults=defaults)
    known = _index(store, directory, ignore, how)
    with store.batch() as batch:
        previous = latest(store, name)
        root = snapshot.build(batch, directory, ignore, report, options=how, known=known)
        batch.commit()  # the tree is durable and comparable; no head leads to it yet
        changes, paths = _changes(store, previous, root.hash, report)
        stats = {"files": report.files, "bytes": report.bytes, **changes}
        made = put(batch, name, previous, Content(root.hash, message, stats, paths))
    if known is not None:
        known.save()
    return Created(made, report, stats, batch.new_bytes)


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
            paths.append(_text(change.path))
    return counts, paths


def rules(store: Store, directory: Path, report: Report, *, defaults: bool = True) -> Ignore:
    """What of a directory is not recorded: besides its own rules the store, which would hold
    itself, and mounts of a store, which hold all that was ever recorded.

    Raises Refused for the store itself; NotFound, Failed, Invalid as `Ignore.of`.
    """
    ignore, top = Ignore.of(directory, defaults=defaults), directory.resolve()
    ours = {one.point: "a mount of casfs" for one in kernel.mounts() if one.type == MOUNT}
    if store.root is not None:
        ours[store.root.resolve()] = "the store"
        if store.root.resolve() == top:
            raise Refused(f"{directory} is the store itself; record what is to be in it")
    inside = {path: what for path, what in ours.items() if top in path.parents}
    for path, what in inside.items():
        report.warnings.append(f"{_text(os.fsencode(path))}: left out, it is {what}")
    ignore.excluded = frozenset(os.fsencode(path.relative_to(top)) for path in inside)
    return ignore


def _index(store: Store, directory: Path, ignore: Ignore, how: Options) -> Index | None:
    """What is known of the directory, recorded in just this way; None for a store in memory."""
    if store.root is None or not directory.is_dir():
        return None
    left_out = hash_bytes(b"\0".join(sorted(ignore.excluded)))[:16]
    way = f"{ignore.fingerprint}/{left_out}/{','.join(sorted(how.preserve))}"
    return Index.load(store.root, directory, way)


def names(store: Store) -> list[str]:
    """Every name that has a checkpoint, sorted."""
    return list(dict.fromkeys(name for name, _, _ in _heads(store, HEADS)))


def listing(store: Store, name: str | None = None) -> list[Checkpoint]:
    """The checkpoints of `name`, or all, by name and then oldest first."""
    prefix = HEADS if name is None else f"{HEADS}{name}/"
    return [
        _checkpoint(name, id, head.hash, head.record) for name, id, head in _heads(store, prefix)
    ]


def latest(store: Store, name: str) -> Checkpoint | None:
    for key, head in store.heads.list(f"{HEADS}{name}/", reverse=True):
        return _checkpoint(name, key.rpartition("/")[2], head.hash, head.record)
    return None


def find(store: Store, text: str) -> Checkpoint:
    """The checkpoint that NAME or NAME@ID means; an id may be a unique prefix, or `latest`.

    Raises NotFound, Conflict (an ambiguous prefix).
    """
    name, at, id = text.partition("@")
    found = listing(store, name)
    if not found:
        raise NotFound(f"no checkpoint {name!r}; see `casfs checkpoint list`")
    if not at or id == "latest":
        return found[-1]
    exact = [one for one in found if one.id == id] or [
        one for one in found if one.id.startswith(id)
    ]
    if not exact:
        raise NotFound(f"no checkpoint {text!r}; see `casfs checkpoint list {name}`")
    if len(exact) > 1:
        raise Conflict(f"{text} is ambiguous: {exact[0].id}, {exact[1].id}; give more of the id")
    return exact[0]


def restore_to(store: Store, text: str, target: Path) -> Checkpoint:
    """Write the tree of NAME[@ID] to `target`; see `casfs.trees.restore`."""
    found = find(store, text)
    restore(store, found.root, target)
    return found


def check_name(name: str) -> None:
    if not NAME.match(name) or is_hash(name) or name in RESERVED:
        raise Invalid(
            f"{name!r} is no checkpoint name: 1 to 64 of letters, digits, '.', '_', '-',"
            " no hash, not 'plugins' or 'latest'"
        )


def _heads(store: Store, prefix: str) -> Iterator[tuple[str, str, Head]]:
    for key, head in store.heads.list(prefix):
        name, _, id = key[len(HEADS) :].partition("/")
        yield name, id, head


def _checkpoint(name: str, id: str, hash: str, payload: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(name, id, hash, payload["root"], payload["createdAt"], payload["message"])


def _record(payload: dict[str, Any]) -> dict[str, Any]:
    """What a listing needs, so that it loads no node. A record holds at most 4 KiB."""
    return {
        "root": payload["root"],
        "createdAt": payload["createdAt"],
        "message": payload["message"][:500],
    }


def _changes(
    store: Store, previous: Checkpoint | None, new: str, report: Report
) -> tuple[dict[str, int], list[str]]:
    """As `compare`; where nothing was before, all is new: no need to walk the whole tree."""
    if previous is not None:
        return compare(store, previous.root, new)
    first = islice(tree.shown(store, tree.diff(store, None, new)), MAX_CHANGED)
    counts = {"added": report.entries, "modified": 0, "deleted": 0}
    return counts, [_text(change.path) for change in first]


def _text(path: bytes) -> str:
    return path.decode("utf-8", "replace")


def _now(previous: Checkpoint | None) -> int:
    """Milliseconds; later than the one before even when the clock went back."""
    now = time.time_ns() // 1_000_000
    return now if previous is None else max(now, previous.created_at + 1)


def _id(created_at: int, hash: str) -> str:
    moment = datetime.fromtimestamp(created_at / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{created_at % 1000:03d}Z-{hash[:8]}"
