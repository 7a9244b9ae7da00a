"""The view `threads/<ULID>/running/`: the step in flight, there as long as its intent is.

    role, attempt, since    what the intent says, a line each; `since` in ms since 1970 UTC
    turns/0000, 0001, …     what the agent has done so far, where the engine has it named in
                            the intent: nodes, in the form of `casfs.fuse.views.nodes`

Everything here is live. A turn itself never changes, but the next step's first turn stands
in the same place: so a turn is known by its hash as well, and no name is bound to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from casfs import threads
from casfs.digest import is_hash
from casfs.errors import NotFound
from casfs.fuse.views.nodes import refs_makers
from casfs.fuse.views.store_reader import Reader
from casfs.fuse.views.vnode import (
    MILLISECOND,
    READ_DIRECTORY,
    Attr,
    Changing,
    Composed,
    Live,
    Maker,
    Vnode,
    identity,
)

FIELDS = ("role", "attempt", "since")
DEPTH = 4  # threads / <ULID> / running / turns


class Running(Composed):
    __slots__ = ("_id", "_reader")
    live = True
    fixed = False

    def __init__(self, key: bytes, reader: Reader, id: str) -> None:
        super().__init__(key)
        self._reader = reader
        self._id = id

    def attr(self) -> Attr:
        return Attr(READ_DIRECTORY, 0, self._reader.thread(self._id).mtime_ns)

    def makers(self) -> Mapping[bytes, Maker]:
        intent = self._intent() or {}
        found: dict[bytes, Maker] = {
            field.encode("ascii"): partial(Live, make=partial(self._field, field))
            for field in FIELDS
            if field in intent
        }
        if isinstance(intent.get("turns"), list):
            changed = partial(self._changed, self._reader, self._id)
            found[b"turns"] = partial(Changing, find=self._turns, changed=changed)
        return found

    def _intent(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._reader.thread(self._id).thread.record.get("intent")
        return found

    @staticmethod
    def _changed(reader: Reader, id: str) -> int:
        return reader.thread(id).mtime_ns

    def _field(self, field: str) -> tuple[bytes, int]:
        thread, mtime_ns = self._reader.thread(self._id)
        intent = thread.record.get("intent")
        if intent is None or field not in intent:
            raise NotFound(f"thread {self._id}: no step in flight any more")
        return f"{intent[field]}\n".encode(), mtime_ns

    def _turns(self) -> dict[bytes, Maker]:
        intent = self._intent() or {}
        turns = [hash for hash in threads.turns(self._reader.store, intent) if is_hash(hash)]
        names = {b"%04d" % place: hash for place, hash in enumerate(turns)}
        makers = refs_makers(self._reader, names, DEPTH, intent.get("since", 0) * MILLISECOND)
        return {name: partial(_apart, maker, names[name]) for name, maker in makers.items()}


def _apart(maker: Maker, hash: str, key: bytes) -> Vnode:
    return maker(identity(key + hash.encode("ascii")))
