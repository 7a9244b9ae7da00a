"""Heads that come from elsewhere: under which name each is here, and whether it may run.

Names: one rule for pull, clone and import, and for every kind.

    a new name      is added, unless a person here could mean something else by it
    a known name    moves only where it stands here as it last came from that origin, or as it was
                    pushed there: as this store has noted, whatever the other says. Any other stays,
                    and what arrives is ORIGIN.NAME
    a thread        keeps its id; it moves forward only, and where a person says so
    a schema        stays

What may run: the record of what arrived has `origin`, the remote's name or `import`, and that of a
workflow or a thread `trusted`: false until a person has seen what it runs. A remote that a person
calls one's own (`casfs remote trust`) brings what is trusted, moves threads forward, and adds to
checkpoints of this store. A checkpoint or a workflow that is here as ORIGIN.NAME has in its record
`name`, that of its node, and leaves by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from casfs.backend.protocols import Head, HeadName
from casfs.config import IMPORT
from casfs.digest import is_hash
from casfs.errors import Conflict, Invalid, NotFound
from casfs.store import tombstones
from casfs.store.nodes import head_kinds
from casfs.store.nodes.head_kinds import RESERVED_NAMES
from casfs.store.nodes.registry import HEADS as SCHEMAS
from casfs.store.removals import label
from casfs.store.store import Store
from casfs.system.clock import now_ms
from casfs.threads import threads
from casfs.threads.threads import Thread, ThreadId

WORKFLOWS = "workflows/"
CHECKPOINTS = "checkpoints/"
RENAMED = (CHECKPOINTS, WORKFLOWS)  # kinds of heads that may arrive under another name
REDACTED_AT = "redactedAt"  # of a record
TEXTS = ("message", "reason")  # of a record: what a person or an agent said
MARKS = ("origin", "trusted")  # fields of a record, which never leave the store
MAX_NAME_CHARS = 64
Asks: TypeAlias = Callable[[Thread], bool]  # a thread of this store is ahead there: may it move?


class Place(NamedTuple):
    """Under which name a head arrives, and what the name stands for until then."""

    name: HeadName
    old: Head | None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where heads arrive from: a remote, or an import. `is_own`: a person trusts the remote;
    `replaces`: a person lets names of this store give way; `purges`: what was purged there is
    purged here, too; `pushed`: name → `value` as it was pushed there; `other_remotes`: the names of
    the other origins; `asks` a person whether a thread of this store moves."""

    name: str
    is_own: bool = False
    replaces: bool = False
    purges: bool = False
    pushed: Mapping[str, str] = field(default_factory=dict)
    other_remotes: Collection[str] = (IMPORT,)
    asks: Asks | None = None


# -- names --------------------------------------------------------------------------------


class Names:
    """Where heads of an origin arrive, as the store is now."""

    def __init__(self, store: Store, origin: Origin) -> None:
        self._store = store
        self._origin = origin
        self._ours: dict[str, bool] = {}  # by kind and NAME: does it stay?
        self._given: set[str] = set()  # names of threads

    def place(self, name: HeadName, head: Head) -> Place | None:
        """Returns where a head arrives; None where it is here already. Raises Conflict, Invalid
        where it cannot arrive at all."""
        local_head = self._store.heads.get(name)
        if local_head is not None and self._origin.purges and is_redacted_since(local_head, head):
            return Place(name, local_head)
        if local_head is not None and self._is_known(name, local_head, head):
            return None
        if not name.startswith(RENAMED) or not self._stays(name):
            return Place(name, local_head)
        alias = self._alias(name)
        local_head = self._store.heads.get(alias)
        if local_head is not None and self._is_known(alias, local_head, head):
            is_taken = self._origin.purges and is_redacted_since(local_head, head)
            return Place(alias, local_head) if is_taken else None
        return Place(alias, local_head)

    def check_move(self, arrival: Place, head: Head) -> None:
        """Raises Conflict where a thread of this store stays; the nodes of `head` are stored."""
        name = arrival.name
        old = arrival.old
        origin = self._origin.name
        if old is None or not name.startswith(threads.HEADS):
            return
        if old.record.get("status") == threads.RUNNING:
            raise Conflict(f"{label(name)} runs here; take it when it is suspended or has ended")
        if not is_ahead(self._store, name, new=head.hash, old=old.hash):
            raise Conflict(
                f"{label(name)} has moved here and in {origin}. To take theirs, remove yours"
                " (`casfs undo` brings it back)"
            )
        if self._origin.is_own or self._origin.replaces or is_redacted_since(old, head):
            return
        if self._origin.asks is None or not self._origin.asks(threads.of_head(name, old)):
            raise Conflict(
                f"{label(name)} has moved on in {origin};"
                f" `casfs pull {origin} {label(name)} --replace` takes that"
            )

    def _is_known(self, name: HeadName, local_head: Head, head: Head) -> bool:
        if name.startswith(threads.HEADS):
            return is_ahead(self._store, name, new=local_head.hash, old=head.hash)
        return name.startswith(SCHEMAS) or value(name, local_head) == value(name, head)

    def _stays(self, name: HeadName) -> bool:
        """Is NAME one of this store, which does not move?"""
        prefix = series(name)
        if prefix not in self._ours:
            self._ours[prefix] = self._is_ours(name, prefix)
        return self._ours[prefix]

    def _is_ours(self, name: HeadName, prefix: str) -> bool:
        origin = self._origin
        is_checkpoint = name.startswith(CHECKPOINTS)
        if origin.replaces or (origin.is_own and is_checkpoint):
            return False
        known = self._below(prefix)
        if known:
            return not all(self._stands(*named_head) for named_head in known)
        text = _name(name)
        if text.partition(".")[0] in origin.other_remotes:
            return True  # reads as what arrived from there
        return is_checkpoint and _means_another(self._store, text)

    def _below(self, prefix: str) -> list[tuple[HeadName, Head]]:
        if prefix.endswith("/"):
            return list(self._store.heads.list(prefix))
        head = self._store.heads.get(HeadName(prefix))
        return [] if head is None else [(HeadName(prefix), head)]

    def _stands(self, name: HeadName, head: Head) -> bool:
        """Does it stand here as it last came from the origin, or was pushed there?"""
        if head.record.get("builtin"):
            return False  # every casfs has it from its package
        is_from_there: bool = head.record.get("origin") == self._origin.name
        return is_from_there or self._origin.pushed.get(name) == value(name, head)

    def _alias(self, name: HeadName) -> HeadName:
        text = f"{self._origin.name}.{_name(name)}"
        if len(text) > MAX_NAME_CHARS:
            raise Invalid(
                f"{_name(name)} is a name of this store, and {text} is too long for one"
                f" ({MAX_NAME_CHARS} characters)"
            )
        kind, _, bare_name = name.partition("/")
        alias = HeadName(f"{kind}/{text}{bare_name[len(_name(name)) :]}")
        for _, head in self._below(series(alias)):
            if head.record.get("origin") != self._origin.name:
                raise Conflict(f"{_name(name)} and {text} are names of this store; remove one")
        return alias

    # -- records ----------------------------------------------------------------------------

    def record(self, name: HeadName, arrival: Place, head: Head) -> Head:
        """Returns a head, which is called `name` there and has no marks, as it is kept here."""
        if not name.startswith((*RENAMED, threads.HEADS)):
            return head
        head = self._without_purged_message(name, head)
        old = arrival.old
        if old is not None and is_redacted_since(old, head):
            texts = {
                key: head.record[key]
                for key in TEXTS
                if is_what_is_left(old.record.get(key), head.record.get(key))
            }
            return Head(old.hash, redacted({**old.record, **texts}, head.record[REDACTED_AT]))
        marks: dict[str, Any] = {"origin": self._origin.name}
        if not name.startswith(CHECKPOINTS):
            marks["trusted"] = self._origin.is_own
        if arrival.name != name:
            marks["name"] = _name(name)
        if name.startswith(threads.HEADS):
            if old is not None and self._origin.is_own:
                marks = {key: old.record[key] for key in MARKS if key in old.record}
            if old is not None:  # a thread of this machine that comes back
                own_fields = threads.FIELDS_OF_THIS_STORE
                marks |= {key: old.record[key] for key in own_fields if key in old.record}
            if text := self._thread_name(name, head, old):
                marks["name"] = text
        record = {key: field_value for key, field_value in head.record.items() if key != "name"}
        return Head(head.hash, {**record, **marks})

    def _without_purged_message(self, name: HeadName, head: Head) -> Head:
        """Of a checkpoint whose message was purged the node has what is left of it."""
        if not name.startswith(CHECKPOINTS) or tombstones.get(self._store, head.hash) is None:
            return head
        message = self._store.node(head.hash).payload["message"]
        return Head(head.hash, {**head.record, "message": message})

    def _thread_name(self, name: HeadName, head: Head, old: Head | None) -> str | None:
        """Returns what a person calls a thread: what it is called here, else as its origin does
        where that is free, or after the origin's name; None where neither can be."""
        if old is not None and old.record.get("name"):
            return str(old.record["name"])
        text = head.record.get("name")
        if not text or not _is_thread_name(text):
            return None
        for candidate in (text, f"{self._origin.name}.{text}"):
            is_free = candidate not in self._given and not _means_another(self._store, candidate)
            if is_free and len(candidate) <= MAX_NAME_CHARS:
                self._given.add(candidate)
                return str(candidate)
        return None


def _means_another(store: Store, text: str) -> bool:
    """Does a text mean a thread or a checkpoint here, which a new name like it would hide?"""
    from casfs.checkpoints import checkpoint
    from casfs.threads import lookup

    known = checkpoint.latest(store, text) if text not in RESERVED_NAMES else None
    matches = lookup.matches(store, text) or checkpoint.with_id_part(store, text)
    return known is not None or bool(matches)


def _is_thread_name(text: str) -> bool:
    is_id = re.fullmatch(head_kinds.THREAD_ID, text.upper())
    return bool(re.fullmatch(head_kinds.THREAD_NAME, text)) and not is_id and not is_hash(text)


def value(name: str, head: Head) -> str:
    """Returns what a name stands for: for a workflow its agents as well."""
    agents = head.record.get("agents") if name.startswith(WORKFLOWS) else None
    return f"{head.hash} {agents}" if agents else head.hash


def is_ahead(store: Store, name: str, new: str, old: str) -> bool:
    """Does a thread's node follow from another by its chain? False where one is not stored."""
    if new == old:
        return True
    if not name.startswith(threads.HEADS) or len(store.blobs.info([new, old])) < 2:
        return False
    base = store.node(old)
    thread = Thread(ThreadId(name), Head(store.node(new).hash), fault=None)
    if base.type == "thread-start":
        return bool(store.node(new).payload.get("start") == old)
    try:
        return threads.step_at(store, thread, base.payload["index"]).hash == old
    except (NotFound, KeyError):
        return False


def _name(name: str) -> str:
    """Returns NAME of `checkpoints/NAME/ID` and `workflows/NAME`."""
    return name.split("/")[1]


def series(name: str) -> str:
    """Returns the prefix of all heads of a NAME; of a workflow the whole of its only one."""
    return f"{CHECKPOINTS}{_name(name)}/" if name.startswith(CHECKPOINTS) else name


# -- texts that were purged ---------------------------------------------------------------


def redacted(record: Mapping[str, Any], redacted_at: int) -> dict[str, Any]:
    """Returns a record from which a text was purged, with the time, in ms since 1970 UTC: it stands
    above what another store has of the same head."""
    return {**record, REDACTED_AT: redacted_at}


def is_what_is_left(old: object, new: object) -> bool:
    """Whether `new` is the text `old` with marks in place of parts of it."""
    if not isinstance(old, str) or not isinstance(new, str) or tombstones.MARK not in new:
        return False
    offset = 0
    for piece in new.split(tombstones.MARK):
        start = old.find(piece, offset)
        if start < 0:
            return False
        offset = start + len(piece)
    return True


def is_redacted_since(old: Head, new: Head) -> bool:
    """Whether a text was purged from the record of a head since it was `old`."""
    return old.hash == new.hash and _redacted_at(old) < _redacted_at(new)


def _redacted_at(head: Head) -> int:
    """Returns 0 for a time in the future too, which would stand above every purge to come."""
    redacted_at = head.record.get(REDACTED_AT)
    return redacted_at if isinstance(redacted_at, int) and redacted_at <= now_ms() else 0


# -- leaving ------------------------------------------------------------------------------


def is_alias(name: str, head: Head) -> bool:
    """Is it here under another name than that of its node?"""
    return name.startswith(RENAMED) and "name" in head.record


def own_name(name: HeadName, record: Mapping[str, Any]) -> HeadName:
    """Returns the name that a head has by its node, without that of its origin."""
    own = record.get("name")
    prefix = f"{record.get('origin')}.{record.get('name')}"
    if not name.startswith(RENAMED) or own is None or _name(name) != prefix:
        return name
    kind, _, bare_name = name.partition("/")
    return HeadName(f"{kind}/{own}{bare_name[len(prefix) :]}")


def leaving(heads: Iterable[tuple[HeadName, Head]]) -> dict[HeadName, Head]:
    """Returns heads under the names by which they leave. Raises Conflict where two have one."""
    own_heads: dict[HeadName, Head] = {}
    for name, head in heads:
        own = own_name(name, head.record)
        if value(own, own_heads.setdefault(own, head)) != value(own, head):
            raise Conflict(f"{label(name)} leaves as {label(own)}, as another does; name only one")
    return own_heads


def without_marks(name: HeadName, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record without what a store notes of where it is from."""
    marks = (*MARKS, "name") if name.startswith(RENAMED) else MARKS
    return {key: field_value for key, field_value in record.items() if key not in marks}


# -- what may run -------------------------------------------------------------------------


def is_trusted(head: Head) -> bool:
    """May it run: is it of this store, or does a person trust it?"""
    return "origin" not in head.record or head.record.get("trusted") is True


def trusted(head: Head) -> Head:
    """Returns a head that may run from now on."""
    return head if is_trusted(head) else Head(head.hash, {**head.record, "trusted": True})
