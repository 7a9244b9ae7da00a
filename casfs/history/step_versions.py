"""The versions of a thread's steps: read one after another, or, of a long thread, by an index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, overload

from casfs.digest import NodeHash, TreeHash
from casfs.errors import CasfsError
from casfs.history import path_index
from casfs.history.path_entries import entries_of, payloads
from casfs.history.path_index import IndexedThread
from casfs.history.version import Version
from casfs.store.nodes.directory import Entry
from casfs.store.store import Store
from casfs.system import interruption

INDEXED_STEPS = 200  # fewer are read faster than the index is opened


@dataclass(frozen=True, slots=True)
class ThreadSteps:
    """The steps of a thread up to one: their nodes, newest first, or the index of them.
    `began`: when the first one did, in ms since 1970 UTC; None without any."""

    store: Store
    newest_index: int = 0
    began: int | None = None
    nodes: Sequence[tuple[NodeHash, Any]] = ()
    indexed: IndexedThread | None = None

    def versions(self, owner: str, start: Version) -> Sequence[Version]:
        """Returns a version of each, and last that of the thread's start. `owner`: the thread, in
        their names."""
        if self.indexed is not None:
            return StepVersions(self.store, self.indexed, start=start, owner=owner)
        return [*(_version(hash, step, owner) for hash, step in self.nodes), start]


def read(store: Store, last: NodeHash | None, start: TreeHash | None) -> ThreadSteps:
    """Reads a step and those before it. `start`: the tree that their thread began with."""
    if last is None:
        return ThreadSteps(store)
    index = store.node(last, "thread-step").payload["index"]
    if index >= INDEXED_STEPS:
        steps = (path_index.Step.of_node(hash, step) for hash, step in _back_from(store, last))
        # Damage in a tree at another path than the reader's, or a disk that is full, must not be in
        # the way of who does without the index.
        with suppress(CasfsError):
            indexed = path_index.index_thread(store, steps, start)
            first = store.node(indexed.hashes[-1], "thread-step").payload
            return ThreadSteps(store, index, first["startedAt"], indexed=indexed)
    nodes = list(_back_from(store, last))
    return ThreadSteps(store, index, nodes[-1][1]["startedAt"], nodes=nodes)


def _version(hash: NodeHash, step: Any, owner: str) -> Version:
    return Version(
        step["workspace"],
        hash,
        recorded_at=step["completedAt"],
        revision=f"{owner}@{step['index']}",
        index=step["index"],
        role=step["role"],
        agent=step["agent"],
        detail=step["detail"],
        called=tuple(step["childThreads"]),
        prompt=step.get("prompt", {}).get("turn"),
    )


def _back_from(store: Store, last: NodeHash) -> Iterator[tuple[NodeHash, Any]]:
    """As `threads.backwards_from`, a step and its ancestors at a time."""
    near = [last]
    while near:
        interruption.check()
        for hash, payload in zip(near, payloads(store, near, "thread-step"), strict=True):
            yield hash, payload
        # The last one read is the oldest. It names those before it, which one look-up brings:
        # `ancestors` are the steps before `previous`, without a gap.
        near = [payload["previous"], *payload["ancestors"]] if payload["previous"] else []


class StepVersions(Sequence[Version]):
    """The versions of a long thread: its steps, newest first, and its start. Nodes of steps are
    read when they are asked for."""

    def __init__(self, store: Store, indexed: IndexedThread, start: Version, *, owner: str) -> None:
        self._store = store
        self._indexed = indexed
        self._owner = owner
        self._versions: dict[int, Version] = {len(indexed.hashes): start}
        self._relevant_positions: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return len(self._indexed.hashes) + 1

    @overload
    def __getitem__(self, position: int) -> Version: ...

    @overload
    def __getitem__(self, position: slice) -> list[Version]: ...

    def __getitem__(self, position: int | slice) -> Version | list[Version]:
        positions = range(len(self))[position]
        if isinstance(positions, int):
            self._load([positions])
            return self._versions[positions]
        self._load(positions)
        return [self._versions[part] for part in positions]

    def __iter__(self) -> Iterator[Version]:
        return iter(self[:])

    def _load(self, positions: Iterable[int]) -> None:
        missing = [position for position in positions if position not in self._versions]
        hashes = [self._indexed.hashes[position] for position in missing]
        steps = payloads(self._store, hashes, "thread-step")
        for position, hash, step in zip(missing, hashes, steps, strict=True):
            self._versions[position] = _version(hash, step, self._owner)

    def entries(self, path: bytes) -> list[Entry | None]:
        """Returns what each has at a path."""
        start = len(self) - 1
        changed = self._indexed.changed(path)
        # A reader compares each with the one before it.
        self._load({*changed, *(position + 1 for position in changed)})
        last_of_run = [*changed, start]
        roots = [self[position].root for position in last_of_run]
        entries: list[Entry | None] = []
        entries_at_ends = entries_of(self._store, roots, path)
        for position, entry in zip(last_of_run, entries_at_ends, strict=True):
            entries += [entry] * (position + 1 - len(entries))
        return entries

    def next_changed(self, position: int, path: bytes) -> int:
        """Returns the next older position whose step may have changed a path, or has called threads
        or turns; else that of the start."""
        relevant = self._relevant(path)
        return relevant[bisect_right(relevant, position)]

    def _relevant(self, path: bytes) -> list[int]:
        if path not in self._relevant_positions:
            changed = self._indexed.changed(path)
            self._relevant_positions[path] = sorted(
                {*changed, *self._indexed.with_calls, len(self) - 1}
            )
        return self._relevant_positions[path]
