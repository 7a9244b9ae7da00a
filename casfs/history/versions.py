"""Versions: the trees that a revision came from, newest first, as chains.

A chain is the steps of a thread back to its thread-start, which has index 0, or the checkpoints of
a name. Forks share steps, so their chains do too. Before the oldest version of a chain comes the
one from which it got its tree, in another chain: of a called thread the step of the caller
(`parentState`), else an older checkpoint, or an older thread's step, with the same root.

The entries of a path are read for a whole chain, a level of directories at a time: of each
directory on the path only that node, once, however many trees share it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from casfs import thread_lookup, threads
from casfs.checkpoints import checkpoint
from casfs.checkpoints.checkpoint import NO_TREE, Checkpoint
from casfs.digest import NodeHash, TreeDigest, TreeHash
from casfs.errors import Corrupt, NotFound
from casfs.nodes import directory, node
from casfs.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.referrers import Referrers
from casfs.revisions import Revision
from casfs.store import Store
from casfs.system import interruption
from casfs.thread_state import created_ms
from casfs.threads import Thread, ThreadId
from casfs.trees import tree

HASH_CHARS = 12  # of a version that has no name


@dataclass(frozen=True, slots=True)
class Version:
    """A tree and what recorded it: a step, a thread-start (index 0), or a checkpoint. `revision`
    names the tree; `owner`: the id of the thread (empty where it was removed) or checkpoint; `at`:
    ms since 1970 UTC."""

    root: TreeHash | None
    hash: NodeHash
    at: int
    revision: str
    owner: str
    index: int | None = None
    role: str = ""
    agent: NodeHash | None = None
    detail: NodeHash | None = None
    called: Sequence[NodeHash] = ()
    message: str = ""


class Chain:
    """`find_older`: returns the place of the version before the oldest one."""

    def __init__(
        self, history: History, versions: list[Version], find_older: Callable[[], Place | None]
    ) -> None:
        self.history = history
        self.versions = versions
        self._find_older = find_older
        self._older: list[Place | None] = []
        self._entries: dict[bytes, list[Entry | None]] = {}
        self._oldest: dict[bytes, dict[object, int]] = {}

    def older(self) -> Place | None:
        """Returns the version from which the oldest one got its tree; None where none is known."""
        if not self._older:
            self._older.append(self._find_older())
        return self._older[0]

    def entries(self, path: bytes) -> list[Entry | None]:
        """Returns what each version has at a path; the root of a tree is a Subdirectory."""
        found = self._entries.get(path)
        if found is None:
            found = list(_entries(self.history.store, [one.root for one in self.versions], path))
            self._entries[path] = found
        return found

    def oldest(self, path: bytes) -> dict[object, int]:
        """Returns each content that a path ever had, with the index of the oldest version."""
        if path not in self._oldest:
            kinds = map(content, self.entries(path))
            self._oldest[path] = {one: index for index, one in enumerate(kinds)}
        return self._oldest[path]


@dataclass(frozen=True, slots=True)
class Place:
    """A version in its chain; 0 is the newest."""

    chain: Chain
    index: int

    @property
    def version(self) -> Version:
        return self.chain.versions[self.index]

    def entry(self, path: bytes) -> Entry | None:
        return self.chain.entries(path)[self.index]

    def oldest(self, path: bytes) -> Place:
        """Returns the oldest version of the chain with the same content at the path: what comes
        between is a removal and a restore, or other files."""
        return Place(self.chain, self.chain.oldest(path)[content(self.entry(path))])

    def older(self) -> Place | None:
        if self.index + 1 < len(self.chain.versions):
            return Place(self.chain, self.index + 1)
        return self.chain.older()

    def called(self) -> Iterator[Place]:
        """Yields the last version of each thread that this step called, the latest call first."""
        for count in range(len(self.version.called), 0, -1):
            yield self.chain.history.of_call(self, count)


class History:
    """The chains of a store, each read once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._chains: dict[object, Chain] = {}
        self._threads: dict[str, list[Thread]] = {}  # by thread-start, the oldest first

    def at(self, revision: Revision) -> Place:
        """Returns the version that a revision names. Raises NotFound where the store does not know
        what recorded that tree."""
        if revision.checkpoint is not None:
            return self._of_checkpoint(revision.checkpoint)
        found = self.store.node(revision.node)
        if found.type == "checkpoint":
            same = (one for one in checkpoint.listing(self.store) if one.hash == found.hash)
            if (one := next(same, None)) is not None:
                return self._of_checkpoint(one)
        elif found.type != "directory":
            return self._of_node(found, revision.thread)
        place = self._recorded(revision.root)
        if place is None:
            raise NotFound(f"no checkpoint or thread of this store has the tree {revision.root}")
        return place

    def _of_node(self, found: node.Node, thread: Thread | None = None) -> Place:
        """Returns the version of a node of a thread's chain."""
        payload = found.payload
        if found.type == "thread-end":
            return self._of_thread(payload["start"], payload["lastStep"], thread)
        if found.type == "thread-step":
            return self._of_thread(payload["start"], found.hash, thread)
        return self._of_thread(found.hash, None, thread)

    def _of_thread(self, start: str, last: NodeHash | None, known: Thread | None = None) -> Place:
        chain = self._chains.get((start, last))
        if chain is None:
            chain = self._chains[start, last] = self._read_thread(start, last, known)
        return Place(chain, 0)

    def _read_thread(self, start: str, last: NodeHash | None, known: Thread | None) -> Chain:
        origin = self.store.node(start, "thread-start")
        owners = self._owners(known or self._thread(start, last))
        steps = list(_steps(self.store, last))
        versions = [_of_step(hash, payload, owners) for hash, payload in steps]
        id = _owner(owners, 0)
        began = steps[-1][1]["startedAt"] if steps else created_ms(ThreadId(id))
        name, root = f"{id}@0" if id else start[:HASH_CHARS], origin.payload["workspace"]
        versions.append(Version(root, origin.hash, began, name, id, 0))

        def older() -> Place | None:
            if (caller := origin.payload["parentState"]) is not None:
                return self._of_node(self.store.node(caller))
            return self._recorded(root, began)

        return Chain(self, versions, older)

    def of_call(self, caller: Place, count: int) -> Place:
        """Returns the last version of a called thread. Its chain ends with the tree that the
        calling step gave it, after the calls before, and goes on before that step."""
        *earlier, end = caller.version.called[:count]
        key = (caller.version.hash, end)
        if key not in self._chains:
            whole = self._of_node(self.store.node(end, "thread-end")).chain.versions
            given = replace(caller.version, root=whole[-1].root, called=earlier)
            self._chains[key] = Chain(self, [*whole[:-1], given], caller.older)
        return Place(self._chains[key], 0)

    def _of_checkpoint(self, last: Checkpoint) -> Place:
        known = [one for one in checkpoint.listing(self.store, last.name) if one.root != NO_TREE]
        versions = [
            Version(
                one.root,
                one.hash,
                one.created_at,
                f"{one.name}@{one.id}",
                one.id,
                message=one.message,
            )
            for one in reversed(known)
            if one.id <= last.id
        ]
        first = versions[-1]
        return Place(Chain(self, versions, lambda: self._recorded(first.root, first.at)), 0)

    def _recorded(self, root: TreeHash | None, before: int | None = None) -> Place | None:
        """Returns the newest checkpoint with this tree, else step, that is older than `before`. So
        the chains that follow one another grow older, and end."""

        def is_older(ms: int) -> bool:
            return before is None or ms < before

        same = [one for one in checkpoint.listing(self.store) if one.root == root]
        if same := [one for one in same if is_older(one.created_at)]:
            return self._of_checkpoint(max(same, key=lambda one: one.created_at))
        created = (created_ms(one.id) for one in threads.list_threads(self.store))
        if root is None or not any(map(is_older, created)):
            return None
        with Referrers(self.store) as index:
            nodes = [self.store.node(hash) for hash in index.of(root)]
        steps = [one for one in nodes if one.type == "thread-step"]
        steps = [one for one in steps if is_older(one.payload["completedAt"])]
        newest = max(steps, key=lambda one: int(one.payload["completedAt"]), default=None)
        return None if newest is None else self._of_node(newest)

    def _thread(self, start: str, last: str | None) -> Thread | None:
        """Returns the oldest thread whose chain has a step, or a thread-start."""
        if not self._threads:
            for one in threads.list_threads(self.store):
                self._threads.setdefault(one.fields.get("start", ""), []).append(one)
        family = self._threads.get(start, [])
        if last is None or len(family) == 1:
            return next(iter(family), None)
        index = self.store.node(last, "thread-step").payload["index"]
        return next((one for one in family if self._has(one, index, last)), None)

    def _has(self, thread: Thread, index: int, step: str) -> bool:
        try:
            return threads.step_at(self.store, thread, index).hash == step
        except NotFound:
            return False

    def _owners(self, thread: Thread | None) -> list[tuple[int, str]]:
        """Returns the threads that made the steps of a chain, the original first, each with the
        index of its last one; of a fork these are the threads that it was forked from too."""
        found: list[tuple[int, str]] = []
        last = 1 << 62
        for one in thread_lookup.family(self.store, thread) if thread else ():
            found.append((last, one.id))
            last = min(last, (one.fields.get("fork") or {"step": 0})["step"])
        return found[::-1]


def _owner(owners: list[tuple[int, str]], index: int) -> str:
    place = bisect_left(owners, (index, ""))
    return owners[place][1] if place < len(owners) else ""


def _of_step(hash: NodeHash, step: Any, owners: list[tuple[int, str]]) -> Version:
    id = _owner(owners, step["index"])
    return Version(
        step["workspace"],
        hash,
        step["completedAt"],
        f"{id}@{step['index']}" if id else hash[:HASH_CHARS],
        id,
        step["index"],
        step["role"],
        step["agent"],
        step["detail"],
        tuple(step["childThreads"]),
    )


def content(entry: Entry | None) -> object:
    """Returns a value that is equal where two files, or symlinks, have the same content."""
    if isinstance(entry, File):
        return entry.digest.hash
    return entry.target if isinstance(entry, Symlink) else None


def _payloads(store: Store, hashes: Collection[str], type: str) -> Iterator[Any]:
    """Yields the payloads of many nodes of one type. Raises NotFound, Corrupt."""
    for hash, data in zip(hashes, store.blobs.get_many(hashes), strict=True):
        type_hash, payload = node.decode(hash, store.get(hash) if data is None else data)
        if store.registry.compiled(type_hash)[0] != type:
            raise Corrupt(f"{hash} is not a {type}")
        yield payload


def _steps(store: Store, last: NodeHash | None) -> Iterator[tuple[NodeHash, Any]]:
    """As `threads.backwards_from`, a step and its ancestors at a time."""
    near = [last] if last else []
    while near:
        interruption.check()
        for hash, payload in zip(near, _payloads(store, near, "thread-step"), strict=True):
            yield hash, payload
        near = [payload["previous"], *payload["ancestors"]] if payload["previous"] else []


def _entries(store: Store, roots: Sequence[TreeHash | None], path: bytes) -> Iterator[Entry | None]:
    """Yields what each tree has at a path."""
    found: dict[TreeHash, Entry | None] = {
        root: Subdirectory(b".", TreeDigest(root, 0)) for root in roots if root
    }
    for name in tree.split_path(path):
        interruption.check()
        wanted = {at: None for entry in found.values() if (at := tree.subtree(entry))}
        payloads = _payloads(store, wanted, "directory")
        below = {at: directory.find(one, name) for at, one in zip(wanted, payloads, strict=True)}
        found = {root: below.get(tree.subtree(entry)) for root, entry in found.items()}  # type: ignore[arg-type]
    return (found.get(root) if root else None for root in roots)
