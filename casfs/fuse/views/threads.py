"""The view `threads/<ULID>/`: one run of a workflow, as files for `ls`, `cat` and `grep`.

    status            one word; changes
    thread.json       the thread-start node's payload with id, status, head, record; changes
    input.md          the task, raw text
    moderator.json    the workflow's rules;  workflow → the workflow's node
    parent, children/<ULID>    → other threads, where there are any
    running/          the pending step, if there is one (`casfs.fuse.views.running`)
    attempts/0000, …  the results of its failed attempts, in the form of `casfs.fuse.views.nodes`
    end.json          the thread-end node's payload, once it has ended
    steps/000001-planner/
        step.json, meta.json, prompt.md, output.md, changes.diff
        workspace → the tree after the step
        detail/ and artifacts/ in the form of `casfs.fuse.views.nodes`
        attempts/ in the same form: the results of failed attempts before, if there are any
        paused/ in the same form: its turns before a pause, if there was one

A thread's directory only gains names, except for `running` and `attempts`, and a step never
changes; in `threads/` itself names are added and removed. Each request reads the thread's head, so
nothing here is stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

from casfs.digest import NodeHash, is_hash
from casfs.errors import CasfsError, Corrupt, NotFound
from casfs.fuse.views.directories import (
    ComposedDirectory,
    LiveDirectory,
    StoreDirectory,
    VnodeFactory,
)
from casfs.fuse.views.files import BrokenFile, ComputedFile, LiveFile
from casfs.fuse.views.nodes import NodeDirectory, Refs, field_bytes, file_name, pretty, ref_factory
from casfs.fuse.views.prompts import PromptFile
from casfs.fuse.views.running import RunningStep, attempts
from casfs.fuse.views.store_reader import StoreReader, TimedThread
from casfs.fuse.views.vnode import MILLISECOND, READ_DIRECTORY, Attr, Link, Vnode, child_key
from casfs.threads import threads
from casfs.threads.state import state
from casfs.threads.threads import StepRef, Thread, ThreadId

STEP_DEPTH = 4  # threads / <ULID> / steps / <step>
RUNNING = b"running"
ATTEMPTS = b"attempts"


class Threads(StoreDirectory):
    __slots__ = ()
    invalidated = True

    def attr(self) -> Attr:
        return Attr(READ_DIRECTORY, 0, self._reader.change_times.latest(threads.HEADS).mtime_ns)

    def lookup(self, name: bytes) -> Vnode | None:
        try:
            timed = self._reader.thread(ThreadId(name.decode("ascii", "replace")))
        except NotFound:
            return None
        return ThreadDirectory(child_key(self.key, name), self._reader, timed)

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for timed in self._reader.threads():
            name = timed.thread.id.encode("ascii")
            yield name, ThreadDirectory(child_key(self.key, name), self._reader, timed)


class ThreadDirectory(ComposedDirectory):
    __slots__ = ("_id", "_mtime_ns", "_reader")
    live = True
    fixed = False

    def __init__(self, key: bytes, reader: StoreReader, timed: TimedThread) -> None:
        super().__init__(key)
        self._reader = reader
        self._id = timed.thread.id
        self._mtime_ns = timed.mtime_ns

    def binds(self, name: bytes) -> bool:
        return name not in (RUNNING, ATTEMPTS)

    def refresh(self) -> None:
        self._mtime_ns = self._reader.thread(self._id).mtime_ns

    def _thread(self) -> Thread:
        return self._reader.thread(self._id).thread

    def _changed(self) -> int:
        return self._reader.thread(self._id).mtime_ns

    def _children_changed(self) -> int:
        """A child is removed without a move of this thread."""
        return max(self._changed(), self._reader.change_times.latest(threads.HEADS).mtime_ns)

    def factories(self) -> Mapping[bytes, VnodeFactory]:
        thread = self._thread()
        factories: dict[bytes, VnodeFactory] = {
            b"status": partial(LiveFile, make=self._status),
            b"thread.json": partial(LiveFile, make=self._thread_json),
            b"input.md": self._input,
            b"moderator.json": self._moderator,
            b"workflow": self._workflow,
            b"steps": partial(Steps, reader=self._reader, id=self._id),
        }
        if thread.status in (threads.ENDED, threads.CANCELLED):
            factories[b"end.json"] = partial(self._end, thread.hash)
        parent = thread.fields.get("parent")
        if parent and self._reader.store.heads.get(threads.head_name(parent)):
            factories[b"parent"] = partial(Link, target=b"../" + file_name(parent))
        if thread.fields.get("children"):
            changed = self._children_changed
            factories[b"children"] = partial(LiveDirectory, find=self._children, changed=changed)
        if thread.fields.get("intent"):
            factories[RUNNING] = partial(RunningStep, reader=self._reader, id=self._id)
        if thread.fields.get("attempts"):
            find = partial(attempts, self._reader, self._id)
            factories[ATTEMPTS] = partial(LiveDirectory, find=find, changed=self._changed)
        return factories

    def _status(self) -> tuple[bytes, int]:
        thread, mtime_ns = self._reader.thread(self._id)
        return state(thread).encode() + b"\n", mtime_ns

    def _thread_json(self) -> tuple[bytes, int]:
        thread, mtime_ns = self._reader.thread(self._id)
        about = {"id": thread.id, "status": state(thread), "head": thread.hash}
        start = self._reader.node(_start(thread), "thread-start").payload
        return pretty({**about, **start, "record": dict(thread.head.record)}), mtime_ns

    def _input(self, key: bytes) -> Vnode:
        start = self._start_payload()
        return ComputedFile(key, partial(field_bytes, self._reader, start["input"], "text"))

    def _moderator(self, key: bytes) -> Vnode:
        workflow = self._workflow_hash()
        return ComputedFile(key, partial(field_bytes, self._reader, workflow, "moderator"))

    def _workflow(self, key: bytes) -> Vnode:
        return Link(key, b"../../nodes/" + self._workflow_hash().encode("ascii"))

    def _workflow_hash(self) -> NodeHash:
        own = self._thread().fields.get("definition")
        return cast(NodeHash, own or self._start_payload()["workflow"])

    def _end(self, hash: NodeHash, key: bytes) -> Vnode:
        end = self._reader.node(hash, "thread-end").payload
        make = partial(field_bytes, self._reader, hash, None)
        return ComputedFile(key, make, end["completedAt"] * MILLISECOND)

    def _children(self) -> dict[bytes, VnodeFactory]:
        ids = self._thread().fields.get("children") or []
        heads = self._reader.store.heads
        if len(ids) >= threads.MAX_CHILDREN:  # the record names no more than that
            ids = self._reader.aggregate(f"children {self._id}", threads.HEADS, self._find_children)
        else:
            ids = [id for id in ids if heads.get(threads.head_name(id))]
        return {name: partial(Link, target=b"../../" + name) for name in map(file_name, ids)}

    def _find_children(self) -> list[str]:
        candidates = (timed.thread for timed in self._reader.threads())
        return [thread.id for thread in candidates if thread.fields.get("parent") == self._id]

    def _start_payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = self._reader.node(_start(self._thread())).payload
        return payload


class Steps(StoreDirectory):
    """`steps/`: steps are added, never removed or changed."""

    __slots__ = ("_id", "_mtime_ns")

    def __init__(self, key: bytes, reader: StoreReader, id: ThreadId) -> None:
        super().__init__(key, reader)
        self._id = id
        self._mtime_ns = 0
        self.refresh()

    def refresh(self) -> None:
        self._mtime_ns = self._reader.thread(self._id).mtime_ns

    def lookup(self, name: bytes) -> Vnode | None:
        index = name.partition(b"-")[0]
        if not index.isdigit():
            return None
        for step in self._steps()[max(int(index) - 1, 0) : int(index)]:
            if _step_name(step) == name:
                return StepDirectory(
                    child_key(self.key, name), self._reader, id=self._id, hash=step.hash
                )
        return None

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for step in self._steps():
            name = _step_name(step)
            key = child_key(self.key, name)
            try:
                yield name, StepDirectory(key, self._reader, id=self._id, hash=step.hash)
            except CasfsError as error:
                yield name, BrokenFile(key, error)

    def _steps(self) -> list[StepRef]:
        return self._reader.steps(threads.get(self._reader.store, self._id))


class StepDirectory(ComposedDirectory):
    __slots__ = ("_hash", "_id", "_mtime_ns", "_reader")

    def __init__(self, key: bytes, reader: StoreReader, id: ThreadId, hash: NodeHash) -> None:
        super().__init__(key)
        self._reader = reader
        self._id = id
        self._hash = hash
        self._mtime_ns = self._payload()["completedAt"] * MILLISECOND

    @property
    def digest(self) -> str:
        return self._hash

    def _payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = self._reader.node(self._hash, "thread-step").payload
        return payload

    def factories(self) -> Mapping[bytes, VnodeFactory]:
        step = self._payload()
        factories: dict[bytes, VnodeFactory] = {
            b"step.json": partial(self._field, self._hash, None),
            b"meta.json": partial(self._field, self._hash, "meta"),
            b"output.md": partial(self._field, step["content"], "text"),
            b"detail": partial(self._detail, step["detail"]),
            b"artifacts": partial(self._refs, step["content"], "artifacts"),
        }
        if "prompt" in step:
            factories[b"prompt.md"] = self._prompt
        if step["attempts"]:
            factories[b"attempts"] = partial(self._refs, self._hash, "attempts")
        if "paused" in step:
            factories[b"paused"] = partial(self._refs, step["paused"], "artifacts")
        if step["changes"] is not None:
            factories[b"changes.diff"] = partial(self._blob, step["changes"])
        if step["workspace"] is not None:
            target = b"../" * STEP_DEPTH + b"trees/%b@%d" % (file_name(self._id), step["index"])
            factories[b"workspace"] = partial(Link, target=target, mtime_ns=self._mtime_ns)
        return factories

    def _field(self, hash: NodeHash, field: str | None, key: bytes) -> Vnode:
        make = partial(field_bytes, self._reader, hash, field)
        return ComputedFile(key, make, self._mtime_ns)

    def _prompt(self, key: bytes) -> Vnode:
        return PromptFile(key, self._reader, id=self._id, hash=self._hash, mtime_ns=self._mtime_ns)

    def _blob(self, hash: str, key: bytes) -> Vnode:
        return ref_factory(
            self._reader, hash, depth=STEP_DEPTH, mtime_ns=self._mtime_ns, plain=True
        )(key)

    def _detail(self, hash: NodeHash, key: bytes) -> Vnode:
        """A directory whatever the node's type, so that grep -r enters it; a blob is a file."""
        info = self._reader.info([hash]).get(hash)
        if info is None or info.type is None:
            return self._blob(hash, key)
        return NodeDirectory(
            key, self._reader, hash=hash, depth=STEP_DEPTH + 1, mtime_ns=self._mtime_ns
        )

    def _refs(self, hash: NodeHash, field: str, key: bytes) -> Vnode:
        return Refs(
            key, self._reader, hash=hash, field=field, depth=STEP_DEPTH + 1, mtime_ns=self._mtime_ns
        )


def _step_name(step: StepRef) -> bytes:
    return b"%06d-" % step.index + file_name(step.role)


def _start(thread: Thread) -> str:
    start = thread.fields.get("start")
    if not isinstance(start, str) or not is_hash(start):
        raise Corrupt(f"thread {thread.id}: its head names no thread-start node")
    return start
