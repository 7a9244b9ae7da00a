"""The view `threads/<ULID>/running/`: the step in flight, present as long as its intent is.

    role, attempt, since    the intent's fields, a line each; `since` in ms since 1970 UTC
    turns/0000, 0001, …     the model calls so far, if the engine has named them in the intent:
                            nodes, in the form of `casfs.fuse.views.nodes`

Everything here is live. A turn itself never changes, but the next step's first turn gets the
same name: so a turn's key depends on its hash, and the name is not bound to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from casfs import threads
from casfs.digest import is_hash
from casfs.errors import NotFound
from casfs.fuse.views.directories import ComposedDirectory, LiveDirectory, VnodeFactory
from casfs.fuse.views.files import LiveFile
from casfs.fuse.views.nodes import ref_factories
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import MILLISECOND, READ_DIRECTORY, Attr, Vnode, make_key
from casfs.threads import ThreadId

FIELDS = ("role", "attempt", "since")
TURN_DEPTH = 4  # threads / <ULID> / running / turns


class RunningStep(ComposedDirectory):
    __slots__ = ("_id", "_reader")
    live = True
    fixed = False

    def __init__(self, key: bytes, reader: StoreReader, id: ThreadId) -> None:
        super().__init__(key)
        self._reader = reader
        self._id = id

    def attr(self) -> Attr:
        return Attr(READ_DIRECTORY, 0, self._changed())

    def factories(self) -> Mapping[bytes, VnodeFactory]:
        intent = self._intent() or {}
        found: dict[bytes, VnodeFactory] = {
            field.encode("ascii"): partial(LiveFile, make=partial(self._field, field))
            for field in FIELDS
            if field in intent
        }
        if isinstance(intent.get("turns"), list):
            found[b"turns"] = partial(LiveDirectory, find=self._turns, changed=self._changed)
        return found

    def _intent(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._reader.thread(self._id).thread.fields.get("intent")
        return found

    def _changed(self) -> int:
        return self._reader.thread(self._id).mtime_ns

    def _field(self, field: str) -> tuple[bytes, int]:
        thread, mtime_ns = self._reader.thread(self._id)
        intent = thread.fields.get("intent")
        if intent is None or field not in intent:
            raise NotFound(f"thread {self._id}: no step in flight any more")
        return f"{intent[field]}\n".encode(), mtime_ns

    def _turns(self) -> dict[bytes, VnodeFactory]:
        intent = self._intent() or {}
        turns = [hash for hash in threads.turns(self._reader.store, intent) if is_hash(hash)]
        names = {b"%04d" % place: hash for place, hash in enumerate(turns)}
        factories = ref_factories(
            self._reader, names, TURN_DEPTH, intent.get("since", 0) * MILLISECOND
        )
        return {name: partial(_turn, factory, names[name]) for name, factory in factories.items()}


def _turn(factory: VnodeFactory, hash: str, key: bytes) -> Vnode:
    return factory(make_key(key + hash.encode("ascii")))
