"""Reads checkpoints. A checkpoint is a tree root at a point in time, under a name.

It is a `checkpoint` node and the head `checkpoints/<name>/<id>` that keeps it; its id is its
UTC time and the first 8 characters of its hash, so names sort by age. Its `previous` is no
ref: an old checkpoint may be dropped while a newer one stays.

The head's record holds what a listing shows, so that listings load no node. Checkpoints are
written by `casfs.checkpoints.create`, which the mount, as a reader, need not import.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from casfs.backend.protocols import Head, HeadName
from casfs.digest import BlobHash, NodeHash, TreeHash, is_hash
from casfs.errors import Conflict, Corrupt, Invalid, NotFound
from casfs.store.nodes import head_kinds
from casfs.store.nodes.head_kinds import RESERVED_NAMES
from casfs.store.store import Store
from casfs.system import moments
from casfs.system.clock import moment_id
from casfs.trees import recorded_state
from casfs.trees.recorded_state import RecordedState

HEADS = "checkpoints/"
NO_TREE = TreeHash(NodeHash(BlobHash("")))  # of a damaged head
NAME = re.compile(head_kinds.NAME + r"\Z")
TEXT = re.compile(r"(?P<name>[^@~:]*)(@(?P<selector>\{[^{}]+\}|[^@~:{}]+))?(~(?P<back>\d{0,6}))?")
NEWEST = ("latest", "last")
ID_RANDOM = len("20261122T022727.907Z-")  # offset of an id's random part, behind its time
MIN_PART_CHARS = 4
SHOWN_MATCHES = 3  # of an ambiguous text
ID_PART = re.compile(f"[0-9a-f]{{4,8}}|{head_kinds.CHECKPOINT_ID}")


class Checkpoint(NamedTuple):
    """`hash`: the checkpoint node; `root`: its work; `created_at`: ms since 1970 UTC."""

    name: str
    id: str
    hash: NodeHash
    root: TreeHash
    created_at: int
    message: str


def head_name(name: str, id: str) -> HeadName:
    return HeadName(f"{HEADS}{name}/{id}")


def recorded(store: Store, checkpoint: Checkpoint) -> RecordedState:
    """Returns what was recorded: the work, and, in the store that recorded it, the whole directory
    with private files."""
    node = store.node(checkpoint.hash, "checkpoint")
    state = recorded_state.of_node(store, node.hash, payload=node.payload, field="root")
    # Never None here, as the schema requires a root; other types of nodes may have none.
    return state or RecordedState(checkpoint.root)


def is_recorded(store: Store, checkpoint: Checkpoint) -> bool:
    """Returns whether the store has just this one."""
    head = store.heads.get(head_name(checkpoint.name, checkpoint.id))
    return head is not None and head.hash == checkpoint.hash


def names(store: Store) -> list[str]:
    """Returns every name that has a checkpoint, sorted."""
    # Heads sort otherwise: `a-b/` is before `a/`.
    heads = head_kinds.sound(store.heads, HEADS)
    return sorted({key[len(HEADS) :].partition("/")[0] for key, _ in heads})


def listing(store: Store, name: str | None = None) -> list[Checkpoint]:
    """Returns the checkpoints of `name`, or all, by name and then oldest first."""
    return _listing(store, HEADS if name is None else f"{HEADS}{name}/")


def latest(store: Store, name: str) -> Checkpoint | None:
    """Returns the newest checkpoint of `name`."""
    # One head is read of perhaps thousands: ids, and so names of heads, sort by age. A damaged one
    # is an error, since the checkpoint before it would be taken for the newest.
    for key, head in store.heads.list(f"{HEADS}{name}/", reverse=True):
        return _sound(_checkpoint(key, head))
    return None


def find(store: Store, text: str) -> Checkpoint:
    """Returns the checkpoint that a text names:

        NAME            the newest of that name
        NAME@ID         ID is a unique prefix of an id or a unique part of its random end, or
                        `latest` or `last`
        NAME@{TIME}     the newest at that time (`casfs.system.moments`)
        ID              without a name: a whole id or a part of its random end
        @last           the newest of all that a person made here

    and `~N` after any of these: N checkpoints of that name before it. Raises NotFound,
    Conflict (ambiguous), Invalid (a time)."""
    parts = TEXT.fullmatch(text)
    if parts is None:
        raise _missing(text)
    name = parts["name"]
    selector = parts["selector"]
    if not name:
        checkpoint = _newest(store) if selector in NEWEST else None
    # A hash never stands for a checkpoint here, not even where a head has it as its name.
    elif is_hash(name) or not _is_name(store, name):
        checkpoint = _of_id(store, name) if selector is None else None
    elif selector is None or selector in NEWEST:
        checkpoint = latest(store, name)
    elif selector.startswith("{"):
        checkpoint = _at(store, name, selector[1:-1])
    else:
        candidates = _selected(listing(store, name), selector)
        checkpoint = _unique(f"{name}@{selector}", candidates)
    if checkpoint is None:
        raise _missing(text)
    if parts["back"] is not None:
        count = int(parts["back"] or 1)
        checkpoint = _back(store, checkpoint, count)
    return _sound(checkpoint)


def find_if_named(store: Store, text: str) -> Checkpoint | None:
    """As `find`, but returns None where no checkpoint has the name that `text` begins with: it may
    be another revision."""
    parts = TEXT.fullmatch(text)
    if parts is None or is_hash(parts["name"]) or not _is_name(store, parts["name"]):
        return None
    return find(store, text)


def with_id_part(store: Store, part: str) -> list[Checkpoint]:
    """Returns the checkpoints with this id, or this part of its random end."""
    # Without a name all checkpoints are read, so not for a text that can be none of their ids.
    if not ID_PART.fullmatch(part):
        return []
    checkpoints = []
    for checkpoint in listing(store):
        random_part = checkpoint.id[ID_RANDOM:]
        if checkpoint.id == part or part in random_part:
            checkpoints.append(checkpoint)
    return checkpoints


def _is_name(store: Store, name: str) -> bool:
    """Returns whether a checkpoint has this name, also where its newest one is damaged: older ones
    are found all the same."""
    return any(store.heads.list(f"{HEADS}{name}/"))


def _of_id(store: Store, text: str) -> Checkpoint | None:
    return _unique(text, with_id_part(store, text))


def _selected(checkpoints: list[Checkpoint], selector: str) -> list[Checkpoint]:
    """Returns those of one name that the ID of NAME@ID may mean, as `find` has it."""
    exact = [checkpoint for checkpoint in checkpoints if checkpoint.id == selector]
    if exact:
        return exact
    # Less than this is in the random end of many ids by chance.
    part = selector.lower() if len(selector) >= MIN_PART_CHARS else None
    matches = []
    for checkpoint in checkpoints:
        random_part = checkpoint.id[ID_RANDOM:]
        if checkpoint.id.startswith(selector) or (part and part in random_part):
            matches.append(checkpoint)
    return matches


def _unique(text: str, checkpoints: list[Checkpoint]) -> Checkpoint | None:
    if len(checkpoints) > 1:
        shown = checkpoints[:SHOWN_MATCHES]
        some = ", ".join(f"{checkpoint.name}@{checkpoint.id}" for checkpoint in shown)
        ellipsis = " …" if len(checkpoints) > SHOWN_MATCHES else ""
        raise Conflict(f"{text} is ambiguous: {some}{ellipsis}; give more of the id")
    return checkpoints[0] if checkpoints else None


def _at(store: Store, name: str, time: str) -> Checkpoint:
    """Returns the newest checkpoint at that time; a damaged one counts by its id."""
    current_time = datetime.now().astimezone()
    moment = moments.parse(time, current_time)
    # Times are compared as the beginnings of ids: the `createdAt` of a damaged head is unknown.
    moment_ms = int(moment.timestamp() * 1000)
    stamp = moment_id(moment_ms, "")
    candidate = None
    for key, head in store.heads.list(f"{HEADS}{name}/", reverse=True):
        candidate = _checkpoint(key, head)
        if candidate.id[: len(stamp)] <= stamp:
            return candidate
    # All are later, and the last candidate is the oldest.
    first = "" if candidate is None else f"; the oldest is {candidate.id}"
    raise NotFound(f"no checkpoint {name!r} at {moment:%Y-%m-%d %H:%M:%S%z} ({time}){first}")


def _back(store: Store, start: Checkpoint, count: int) -> Checkpoint:
    # Counted in the listing: `previous` of a node leads nowhere once that one is forgotten.
    checkpoints = listing(store, start.name)
    ids = [checkpoint.id for checkpoint in checkpoints]
    if start.id not in ids:  # it was forgotten meanwhile
        raise _missing(f"{start.name}@{start.id}")
    start_index = ids.index(start.id)
    index = start_index - count
    if index < 0:
        raise NotFound(
            f"no checkpoint {count} before {start.name}@{start.id}: there are {start_index};"
            f" see `casfs checkpoint list {start.name}`"
        )
    return checkpoints[index]


def _newest(store: Store) -> Checkpoint | None:
    newest = None
    # Heads are listed by name first, so the last one is not the newest.
    for key, head in store.heads.list(HEADS):
        # A pulled checkpoint may be newer, and is not what a person made here last.
        if "origin" in head.record:
            continue
        checkpoint = _checkpoint(key, head)
        if newest is None or checkpoint.id > newest.id:
            newest = checkpoint
    return newest


def _missing(text: str) -> NotFound:
    return NotFound(f"no checkpoint {text!r}; see `casfs checkpoint list`")


def check_name(name: str) -> None:
    """Raises Invalid."""
    if not NAME.match(name) or is_hash(name) or name in RESERVED_NAMES:
        raise Invalid(
            f"invalid checkpoint name {name!r}: use 1 to 64 letters, digits, '.', '_',"
            " '-', and not a hash, 'plugins' or 'latest'"
        )


def _sound(checkpoint: Checkpoint) -> Checkpoint:
    """Raises Corrupt where its head is damaged."""
    if checkpoint.root == NO_TREE:
        raise Corrupt(f"checkpoint {checkpoint.name}@{checkpoint.id} is {checkpoint.message}")
    return checkpoint


def _listing(store: Store, prefix: str) -> list[Checkpoint]:
    return [_checkpoint(key, head) for key, head in store.heads.list(prefix)]


def _checkpoint(key: HeadName, head: Head) -> Checkpoint:
    name, _, id = key[len(HEADS) :].partition("/")
    # It is listed all the same: a person looks for a checkpoint by its name, and must not miss it.
    if fault := head_kinds.record_fault(key, head):
        return Checkpoint(
            name, id, hash=head.hash, root=NO_TREE, created_at=0, message=f"broken: {fault}"
        )
    record = head.record
    return Checkpoint(
        name,
        id,
        hash=head.hash,
        root=record["root"],
        created_at=record["createdAt"],
        message=record["message"],
    )
