"""The view `threads/<ULID>/running/`: the pending step, present as long as its intent is.

    role, attempt, since    the intent's fields, a line each; `since` in ms since 1970 UTC
    prompt.md               what its agent gets, or got where the attempt failed
    stdout                  the newest output of its program, while that runs
    (`casfs.threads.live_output`) tools                   the tool calls that run now, a line each:
    title, kind, status turns/0000, 0001, …     the model calls so far, if the engine has named them
    in the intent:
                            nodes, in the form of `casfs.fuse.views.nodes`
    paused/0000, …          in the same form: those before a pause

Everything here is live, as are the thread's `attempts/`. A turn, or attempt, itself never changes,
but the first one of the next step gets the same name: so its key depends on its hash, and the name
is not bound to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from casfs.digest import is_hash
from casfs.errors import NotFound
from casfs.fuse.views import prompts
from casfs.fuse.views.directories import ComposedDirectory, LiveDirectory, VnodeFactory
from casfs.fuse.views.files import LiveFile
from casfs.fuse.views.nodes import ref_factories
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import MILLISECOND, READ_DIRECTORY, Attr, Vnode, make_key
from casfs.threads import attempt_details, live_output, threads
from casfs.threads.threads import ThreadId

FIELDS = ("role", "attempt", "since")
TURN_DEPTH = 4  # threads / <ULID> / running / turns
ATTEMPT_DEPTH = 3  # threads / <ULID> / attempts


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
        factories: dict[bytes, VnodeFactory] = {
            field.encode("ascii"): partial(LiveFile, make=partial(self._field, field))
            for field in FIELDS
            if field in intent
        }
        if intent:
            prompt = partial(prompts.running, self._reader, self._id)
            factories[b"prompt.md"] = partial(LiveFile, make=prompt)
        if live_output.exists(self._reader.store.root, intent.get("run")):
            factories[b"stdout"] = partial(LiveFile, make=self._stdout)
            factories[b"tools"] = partial(LiveFile, make=self._tools)
        if isinstance(intent.get("turns"), list):
            factories[b"turns"] = partial(LiveDirectory, find=self._turns, changed=self._changed)
        if is_hash(intent.get("paused", "")):
            factories[b"paused"] = partial(LiveDirectory, find=self._paused, changed=self._changed)
        return factories

    def _paused(self) -> dict[bytes, VnodeFactory]:
        intent = self._intent() or {}
        turns = attempt_details.turns(self._reader.store, intent.get("paused", ""))
        return _numbered(
            self._reader, turns, depth=TURN_DEPTH, mtime_ns=intent.get("since", 0) * MILLISECOND
        )

    def _intent(self) -> Mapping[str, Any] | None:
        intent: Mapping[str, Any] | None = self._reader.thread(self._id).thread.fields.get("intent")
        return intent

    def _changed(self) -> int:
        return self._reader.thread(self._id).mtime_ns

    def _field(self, field: str) -> tuple[bytes, int]:
        thread, mtime_ns = self._reader.thread(self._id)
        intent = thread.fields.get("intent")
        if intent is None or field not in intent:
            raise NotFound(f"thread {self._id}: no pending step any more")
        return f"{intent[field]}\n".encode(), mtime_ns

    def _stdout(self) -> tuple[bytes, int]:
        intent = self._intent() or {}
        output = live_output.tail(self._reader.store.root, intent.get("run"))
        if output is None:
            raise NotFound(f"thread {self._id}: its program does not run any more")
        return output

    def _tools(self) -> tuple[bytes, int]:
        thread, mtime_ns = self._reader.thread(self._id)
        run = (thread.fields.get("intent") or {}).get("run")
        calls, changed_ns = live_output.tools(self._reader.store.root, run)
        lines = "".join(f"{live_output.tool_line(call)}\n" for call in calls)
        return lines.encode(), max(mtime_ns, changed_ns)

    def _turns(self) -> dict[bytes, VnodeFactory]:
        intent = self._intent() or {}
        turns = [hash for hash in threads.turns(self._reader.store, intent) if is_hash(hash)]
        since_ns = intent.get("since", 0) * MILLISECOND
        return _numbered(self._reader, turns, depth=TURN_DEPTH, mtime_ns=since_ns)


def attempts(reader: StoreReader, id: ThreadId) -> dict[bytes, VnodeFactory]:
    """Returns the details of the failed attempts at the pending step, oldest first."""
    thread, mtime_ns = reader.thread(id)
    hashes = [hash for hash in thread.fields.get("attempts") or () if is_hash(hash)]
    return _numbered(reader, hashes, depth=ATTEMPT_DEPTH, mtime_ns=mtime_ns)


def _numbered(
    reader: StoreReader, hashes: Sequence[str], depth: int, mtime_ns: int
) -> dict[bytes, VnodeFactory]:
    names = {b"%04d" % index: hash for index, hash in enumerate(hashes)}
    factories = ref_factories(reader, names, depth=depth, mtime_ns=mtime_ns)
    return {name: partial(_keyed, factory, names[name]) for name, factory in factories.items()}


def _keyed(factory: VnodeFactory, hash: str, key: bytes) -> Vnode:
    return factory(make_key(key + hash.encode("ascii")))
