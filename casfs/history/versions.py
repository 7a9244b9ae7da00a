"""Versions: the trees that a revision came from, newest first, as chains.

A chain is the steps of a thread back to its thread-start, which has index 0, or the checkpoints of
a name. Before its oldest version comes the one that its tree is from, in another chain: of a called
thread the step of the caller (`parentState`), else an older step with the same root, and of a
thread also an older checkpoint. A name's first checkpoint never goes on with one of another name:
an equal tree there may be that of an unrelated directory.

The entries of a path are read for a whole chain, a level of directories at a time: only the nodes
of directories on the path, each once, however many trees share it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from casfs.checkpoints import checkpoint, revisions
from casfs.checkpoints.checkpoint import BEFORE_RESTORE, NO_TREE, Checkpoint
from casfs.checkpoints.revisions import Revision
from casfs.digest import NodeHash, TimesHash, TreeDigest, TreeHash
from casfs.errors import Corrupt, NotFound
from casfs.store import local_trees
from casfs.store.nodes import directory, node
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.system import interruption
from casfs.threads import threads
from casfs.threads.state import created_ms
from casfs.threads.threads import Thread, ThreadId
from casfs.trees import recorded_state, tree
from casfs.trees.dated import DatedTree
from casfs.trees.directory_cache import as_read
from casfs.trees.recorded_state import RecordedState


@dataclass(frozen=True, slots=True)
class Version:
    """A tree, and what recorded it: a step, a thread-start (index 0), a checkpoint (index None).
    `at`: ms since 1970 UTC; `called`: the ends of the threads that the step called, or the steps
    that were applied before a checkpoint, None where its node has them; `call`: turn and tool that
    left the tree, within a step."""

    root: TreeHash | None
    hash: NodeHash
    recorded_at: int
    revision: str
    index: int | None = None
    role: str = ""
    agent: NodeHash | None = None
    detail: NodeHash | None = None
    called: Sequence[NodeHash] | None = ()
    message: str = ""
    call: tuple[int, str | None] | None = None
    times: TimesHash | None = None  # of the tree that a call left
    whole: TreeHash | None = None  # root of the whole directory, where it is not that of `hash`

    def dated(self, store: Store) -> DatedTree:
        """Returns its tree with the times that were recorded beside it. Raises NotFound where it
        has none."""
        if self.root is None:
            raise NotFound(f"{self.revision} has no tree")
        if self.call is not None:
            return DatedTree(self.root, self.times)
        work_tree = revisions.state_of_node(store, self.hash).work
        return work_tree if work_tree.tree == self.root else DatedTree(self.root)


class Chain:
    """`find_older`: returns the version before the oldest one, None where none is known."""

    def __init__(
        self, store: Store, versions: list[Version], find_older: Callable[[], Place | None]
    ) -> None:
        self.store = store
        self.versions = versions
        self._find_older = find_older
        self.is_whole = False  # whether entries are those of whole directories, private ones too
        self._entries: dict[bytes, list[Entry | None]] = {}
        self._oldest: dict[bytes, dict[object, int]] = {}
        self.calls: dict[tuple[int, int], Chain] = {}

    @cached_property
    def older(self) -> Place | None:
        return self._as_this(self._find_older())

    def _as_this(self, position: Place | None) -> Place | None:
        if position is not None:
            position.chain.is_whole = self.is_whole
        return position

    def entries(self, path: bytes) -> list[Entry | None]:
        """Returns what each version has at a path; the root of a tree is a Subdirectory."""
        if path not in self._entries:
            roots = [version.root for version in self.versions]
            if self.is_whole:
                roots = [_whole_root(self.store, version) for version in self.versions]
            self._entries[path] = entries = list(_entries(self.store, roots, path))
            self._oldest[path] = {content(entry): index for index, entry in enumerate(entries)}
        return self._entries[path]

    def oldest(self, path: bytes, what: object) -> Place:
        """Returns the oldest version that had this content at the path."""
        return Place(self, self._oldest[path][what])


@dataclass(frozen=True, slots=True)
class Place:
    """A version in its chain; 0 is the newest."""

    chain: Chain
    index: int = 0

    @property
    def version(self) -> Version:
        return self.chain.versions[self.index]

    @property
    def older(self) -> Place | None:
        end = self.index + 1 == len(self.chain.versions)
        return self.chain.older if end else Place(self.chain, self.index + 1)

    def entry(self, path: bytes) -> Entry | None:
        return self.chain.entries(path)[self.index]

    def called(self) -> Iterator[Place]:
        """Yields the last tree that a turn of this step recorded, and the last version of each
        thread that it called, or that was applied before it, the latest first. Its chain ends with
        the tree that this one gave it, after the calls before."""
        # Tool calls record the work alone.
        if self.version.detail is not None and not self.chain.is_whole:
            if (self.index, 0) not in self.chain.calls:
                store = self.chain.store
                step = self.version
                turns = revisions.turns(store, step.detail)
                self.chain.calls[self.index, 0] = _within(store, self.older, step=step, turns=turns)
            if len(self.chain.calls[self.index, 0].versions) > 1:
                yield Place(self.chain.calls[self.index, 0])
        ends = self.version.called
        if ends is None:
            ends = _applied(self.chain.store, self.version.hash)
        for count in range(len(ends), 0, -1):
            if (self.index, count) not in self.chain.calls:
                *earlier, end = ends[:count]
                store = self.chain.store
                whole = _of_node(store, store.node(end)).chain.versions
                start = _whole_root(store, whole[-1])
                input_version = replace(
                    self.version, root=whole[-1].root, whole=start, called=earlier
                )
                chain = Chain(store, [*whole[:-1], input_version], lambda: self.older)
                chain.is_whole = self.chain.is_whole
                self.chain.calls[self.index, count] = chain
            yield Place(self.chain.calls[self.index, count])


def find(store: Store, text: str) -> tuple[Place, bytes]:
    """Returns the version and the path of REV[:PATH]. Raises NotFound, Conflict, Invalid."""
    revision, path = revisions.split(text)
    position = at(store, revisions.resolve(store, revision))
    if path:
        position.chain.is_whole = path in _private_files(store, position.version)
    return position, path or b""


def at(store: Store, revision: Revision) -> Place:
    """Returns the version that a revision names. Raises NotFound where the store does not know what
    recorded that tree."""
    if revision.checkpoint is not None:
        return _of_checkpoint(store, revision.checkpoint)
    if revision.thread is not None and revision.turn is not None:
        return _of_turn(store, revision.thread, *revision.turn)
    revision_node = store.node(revision.node)
    if revision_node.type in ("directory", "checkpoint"):
        if (position := _recorded(store, revision.root)) is None:
            raise NotFound(f"no checkpoint or thread of this store has the tree {revision.root}")
        return position
    return _of_node(store, revision_node, revision.thread.id if revision.thread else "")


def _of_node(store: Store, thread_node: node.Node[Any], id: str = "") -> Place:
    """Returns the version of a node of the chain of a thread, whose id is known or looked for."""
    is_start = thread_node.type == "thread-start"
    start = thread_node if is_start else store.node(thread_node.payload["start"], "thread-start")
    last = thread_node.payload["lastStep"] if thread_node.type == "thread-end" else thread_node.hash
    steps = [] if is_start else list(_steps(store, last))
    id = id or _thread_of(store, start.hash, index=steps[0][1]["index"] if steps else 0, step=last)
    name = f"{id}@%d" if id else f"{start.hash[:12]}@%d"
    began = steps[-1][1]["startedAt"] if steps else created_ms(ThreadId(id))
    root = start.payload["workspace"]
    caller = start.payload["parentState"]
    versions = [_of_step(hash, step, name) for hash, step in steps]

    def older() -> Place | None:
        if caller is not None:
            return _of_node(store, store.node(caller))
        return _recorded(store, root, began)

    return Place(
        Chain(
            store,
            [*versions, Version(root, start.hash, recorded_at=began, revision=name % 0, index=0)],
            older,
        )
    )


def _of_step(hash: NodeHash, step: Any, name: str) -> Version:
    index = step["index"]
    called = tuple(step["childThreads"])
    recorded = step["workspace"], hash, step["completedAt"], name % index
    return Version(*recorded, index, step["role"], step["agent"], step["detail"], called)


def _of_turn(store: Store, thread: Thread, index: int, turn: int) -> Place:
    """Returns the version of a turn, also of a step that is pending or has failed."""
    step, turns, _ = revisions.turn_state(store, thread, index=index, turn=turn)
    older = at(store, revisions.resolve(store, f"{thread.id}@{index - 1}"))
    recorded = step.get("completedAt", step.get("since")), f"{thread.id}@{index}", index
    step_version = Version(None, turns[-1], *recorded, step["role"], step.get("agent"))
    return Place(_within(store, older, step=step_version, turns=turns))


def _within(store: Store, older: Place | None, step: Version, turns: Sequence[NodeHash]) -> Chain:
    """Returns the trees that the tool calls of a step, and its turns without any, recorded; the
    oldest is that which it began with."""
    root = None if older is None else older.version.root
    versions = [replace(step, root=root, called=(), detail=None)]
    for number, hash in enumerate(turns, 1):
        turn = store.node(hash, revisions.TURN).payload
        if "before" in turn:
            turn_version = replace(versions[0], revision=f"{step.revision}.{number}")
            for call in [store.node(call_hash).payload for call_hash in turn["toolCalls"]] or [
                turn
            ]:
                if root := call.get("workspace"):
                    tree_fields = {"root": root, "times": call.get("times")}
                    versions.append(
                        replace(turn_version, **tree_fields, call=(number, call.get("name")))
                    )
    return Chain(store, versions[::-1], lambda: older)


def _of_checkpoint(store: Store, last: Checkpoint) -> Place:
    versions = [
        Version(
            candidate.root,
            candidate.hash,
            recorded_at=candidate.created_at,
            revision=f"{candidate.name}@{candidate.id}",
            called=None,
            message=candidate.message,
        )
        for candidate in reversed(checkpoint.listing(store, last.name))
        if candidate.id <= last.id and candidate.root != NO_TREE
    ]
    first = versions[-1]
    return Place(
        Chain(store, versions, lambda: _recorded_by_step(store, first.root, first.recorded_at))
    )


def _applied(store: Store, checkpoint: NodeHash) -> list[NodeHash]:
    """Returns the steps that a checkpoint names, where this store has them."""
    steps = store.node(checkpoint).payload.get("applied", ())
    known = store.blobs.info(steps)
    return [step for step in steps if step in known]


def _recorded(store: Store, root: TreeHash | None, before: int = 1 << 62) -> Place | None:
    """Returns the newest checkpoint, else step, with this tree and older than `before`: chains that
    follow one another grow older, so they end."""
    same = [candidate for candidate in checkpoint.listing(store) if candidate.root == root]
    same = [candidate for candidate in same if candidate.created_at < before]
    # Those of any directory that a restore overwrote: the last choice.
    if same := [candidate for candidate in same if candidate.name != BEFORE_RESTORE] or same:
        return _of_checkpoint(store, max(same, key=lambda candidate: candidate.created_at))
    return _recorded_by_step(store, root, before)


def _recorded_by_step(store: Store, root: TreeHash | None, before: int) -> Place | None:
    """Returns the newest step that made this tree and is older than `before`. One that changed
    nothing may be in any directory."""
    if root is None or all(
        created_ms(thread.id) >= before for thread in threads.list_threads(store)
    ):
        return None
    from casfs.store.referrers import Referrers

    with Referrers(store) as index:
        steps = [
            referrer
            for referrer in map(store.node, index.of(root))
            if referrer.type == "thread-step"
        ]
    times = {step.payload["completedAt"]: step for step in steps}
    for newest in sorted((time for time in times if time < before), reverse=True):
        position = _of_node(store, times[newest])
        if position.chain.versions[-1].root != root:
            return position
    return None


def _thread_of(store: Store, start: NodeHash, index: int, step: NodeHash | None) -> str:
    """Returns the id of the oldest thread that has a step, or a start; empty where it is gone."""
    for thread in [*threads.with_field(store, "start", [start])][::-1]:
        with suppress(NotFound):
            if not index or threads.step_at(store, thread, index).hash == step:
                return thread.id
    return ""


def _private_files(store: Store, version: Version) -> Collection[bytes]:
    """Returns the paths of the private files that a version recorded, as far as they are here."""
    root = version.root
    whole = _whole_root(store, version)
    if root is None or whole is None or version.call is not None:
        return ()
    return recorded_state.private_files(store, RecordedState(root, whole))


def _whole_root(store: Store, version: Version) -> TreeHash | None:
    """Returns the root of the whole directory that a version recorded, that of its work where
    nothing of it is local, or it is not here."""
    if version.whole is not None:
        return version.whole
    local = local_trees.get(store, version.hash)
    return version.root if local is None else local.root


def content(entry: Entry | None) -> object:
    """Returns a value that is equal where two files, or symlinks, have the same content."""
    if isinstance(entry, File):
        return entry.digest.hash
    return entry.target if isinstance(entry, Symlink) else None


def _payloads(store: Store, hashes: Collection[str], type: str) -> Iterator[Any]:
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
    entries_by_root: dict[TreeHash | None, Entry | None] = {
        root: Subdirectory(b".", TreeDigest(root, 0)) for root in roots if root
    }
    for name in tree.split_path(path):
        interruption.check()
        wanted = {
            tree_hash: None
            for entry in entries_by_root.values()
            if (tree_hash := tree.subtree(entry))
        }
        payloads = _payloads(store, wanted, "directory")
        below = {
            hash: directory.find(payload, name)
            for hash, payload in zip(wanted, payloads, strict=True)
        }
        entries_by_root = {
            root: below.get(tree_hash) if (tree_hash := tree.subtree(entry)) else None
            for root, entry in entries_by_root.items()
        }
    return (as_read(store, entries_by_root.get(root)) for root in roots)
