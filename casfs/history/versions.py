"""Versions: the trees that a revision came from, newest first, as chains.

A chain is the steps of a thread back to its thread-start, which has index 0, or the checkpoints of
a name. Before its oldest version comes the one that its tree is from, in another chain: of a called
thread the step of the caller (`parentState`), else an older checkpoint or step with the same root.
Before a name's first checkpoint is nothing: an equal tree may be that of an unrelated directory,
and what was applied to this one, the checkpoint names itself.

`find` leads to the version that a person names, a `Place` in its chain. From there readers go to
`older` versions, and into a version by what it `called`. Each of these chains is read when it is
first asked for, and kept by the one that led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from casfs.checkpoints import checkpoint, revisions
from casfs.checkpoints.checkpoint import NO_TREE, Checkpoint
from casfs.checkpoints.revisions import Revision
from casfs.digest import NodeHash, TreeHash
from casfs.errors import NotFound
from casfs.history import step_versions
from casfs.history.path_entries import content, entries_of
from casfs.history.step_versions import StepVersions
from casfs.history.version import PERSON, Version
from casfs.store import local_trees
from casfs.store.nodes import node
from casfs.store.nodes.directory import Entry
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.threads.state import created_ms
from casfs.threads.threads import Thread, ThreadId
from casfs.trees import recorded_state, tree
from casfs.trees.recorded_state import RecordedState

NEVER = 1 << 62  # later than any time, in ms
HASH_CHARS = 12  # of a thread-start, that name a thread which is gone


class Chain:
    """`find_older`: returns the version before the oldest one, None where none is known;
    `is_whole`: its entries are those of whole directories, private files too; `calls`: the chains
    within its versions, by index and number of the call, 0 for the turns."""

    def __init__(
        self, store: Store, versions: Sequence[Version], find_older: Callable[[], Place | None]
    ) -> None:
        self.store = store
        self.versions = versions
        self._find_older = find_older
        self.is_whole = False
        self._entries: dict[bytes, list[Entry | None]] = {}
        self._oldest: dict[bytes, dict[object, int]] = {}
        # Kept, since a reader comes again for each path and compares chains by identity.
        self.calls: dict[tuple[int, int], Chain] = {}

    # Not looked for with the chain: it may need the index of referrers, and readers may end before.
    @cached_property
    def older(self) -> Place | None:
        position = self._find_older()
        if position is not None:
            # A private file that is followed here would seem deleted in a chain of the work alone.
            position.chain.is_whole = self.is_whole
        return position

    def entries(self, path: bytes) -> list[Entry | None]:
        """Returns what each version has at a path; the root of a tree is a Subdirectory."""
        if path not in self._entries:
            entries: list[Entry | None]
            if self.is_whole:
                roots = [_whole_root(self.store, version) for version in self.versions]
                entries = entries_of(self.store, roots, path)
            elif isinstance(self.versions, StepVersions):
                entries = self.versions.entries(path)
            else:
                entries = entries_of(self.store, [version.root for version in self.versions], path)
            self._entries[path] = entries
            # The oldest version is the last, so its index is the one that stays.
            self._oldest[path] = {content(entry): index for index, entry in enumerate(entries)}
        return self._entries[path]

    def oldest(self, path: bytes, what: object) -> Place:
        """Returns the oldest version that had this content at the path, whose entries were read."""
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
        if self.index + 1 == len(self.chain.versions):
            return self.chain.older
        return Place(self.chain, self.index + 1)

    def older_that_changed(self, path: bytes) -> Place | None:
        """Returns the next older version that may have changed a path, itself or by what it called;
        some that did not, too."""
        versions = self.chain.versions
        is_last = self.index + 1 == len(versions)
        # The index knows nothing of private files.
        if is_last or self.chain.is_whole or not isinstance(versions, StepVersions):
            return self.older
        return Place(self.chain, versions.next_changed(self.index, path))

    def entry(self, path: bytes) -> Entry | None:
        return self.chain.entries(path)[self.index]

    def called(self) -> Iterator[Place]:
        """Yields the last tree that a turn of this step recorded, and the last version of each
        thread that it called, or that was applied before it, the latest first."""
        # Tool calls record the work alone, so they know nothing of a private file.
        if self.version.detail is not None and not self.chain.is_whole:
            turns = _turns_of(self)
            # The oldest is what the step began with: alone it adds nothing.
            if len(turns.versions) > 1:
                yield Place(turns)
        ends = self.version.called
        if ends is None:
            ends = _applied(self.chain.store, self.version.hash)
        # All of them, not the latest alone: threads that ran at once do not have each other's work.
        for count in range(len(ends), 0, -1):
            chain = _called_chain(self, ends[:count])
            # A subagent of a session has no tree: those of the step that called it are its, too.
            if chain.versions[0].root is not None:
                yield Place(chain)


def find(store: Store, text: str) -> tuple[Place, bytes]:
    """Returns the version and the path of REV[:PATH]. Raises NotFound, Conflict, Invalid."""
    revision, path = revisions.split(text)
    position = at(store, revisions.resolve(store, revision))
    # As the paths of private files are spelled: a person may write `./f`.
    path = b"/".join(tree.split_path(path or b""))
    if path:
        # Set before a reader asks the chain: entries that it has read are kept.
        position.chain.is_whole = path in _private_files(store, position.version)
    return position, path


def at(store: Store, revision: Revision) -> Place:
    """Returns the version that a revision names. Raises NotFound where the store does not know what
    recorded that tree."""
    if revision.checkpoint is not None:
        return _of_checkpoint(store, revision.checkpoint)
    if revision.thread is not None and revision.turn is not None:
        return _of_turn(store, revision.thread, *revision.turn)
    revision_node = store.node(revision.node)
    # Neither has the id under which it was recorded, so one with an equal tree is looked for.
    if revision_node.type in ("directory", "checkpoint"):
        position = _recorded(store, revision.root)
        if position is None:
            raise NotFound(f"no checkpoint or thread of this store has the tree {revision.root}")
        return position
    return _of_node(store, revision_node, revision.thread.id if revision.thread else "")


def _of_checkpoint(store: Store, last: Checkpoint) -> Place:
    versions: list[Version] = []
    for candidate in reversed(checkpoint.listing(store, last.name)):
        # Ids sort by time, so what is newer has a greater one. A damaged head has no tree.
        if candidate.id <= last.id and candidate.root != NO_TREE:
            versions.append(_checkpoint_version(candidate))
    # Removed by another process since it was resolved: an older one must not stand for it.
    if not versions or versions[0].hash != last.hash:
        raise NotFound(f"the checkpoint {last.name}@{last.id} was removed meanwhile")
    return Place(Chain(store, versions, lambda: None))


def _checkpoint_version(candidate: Checkpoint) -> Version:
    # `called` is None, to be read from the node when it is first needed: a listing of checkpoints
    # needs their heads alone.
    return Version(
        candidate.root,
        candidate.hash,
        recorded_at=candidate.created_at,
        revision=f"{candidate.name}@{candidate.id}",
        called=None,
        message=candidate.message,
    )


def _of_node(store: Store, thread_node: node.Node[Any], id: str = "") -> Place:
    """Returns the version of a node of the chain of a thread, whose id is known or looked for."""
    start = thread_node
    last: NodeHash | None = thread_node.hash
    if thread_node.type == "thread-end":
        last = thread_node.payload["lastStep"]
    if thread_node.type != "thread-start":
        start = store.node(thread_node.payload["start"], "thread-start")
    else:
        last = None
    root = start.payload["workspace"]
    steps = step_versions.read(store, last, start=root)
    newest_index = steps.newest_index
    id = id or _thread_of(store, start.hash, index=newest_index, step=last)
    owner = id or start.hash[:HASH_CHARS]
    # Without an id this is 0, the beginning of time: then no older tree is taken for its first one.
    began = created_ms(ThreadId(id)) if steps.began is None else steps.began
    caller = start.payload["parentState"]
    session = start.payload.get("session")
    role = "" if session is None else PERSON
    begin = Version(root, start.hash, began, revision=f"{owner}@0", index=0, role=role)
    versions = steps.versions(owner, begin)

    def older() -> Place | None:
        if caller is not None:
            return _of_node(store, store.node(caller))
        if session is not None and (before := _session_before(store, session["directory"], began)):
            return before
        return _recorded(store, root, began)

    return Place(Chain(store, versions, older))


def _session_before(store: Store, directory: str, before: int) -> Place | None:
    """Returns the end of the last session that began in a directory before this moment."""
    for thread, about in sessions.readable(store):
        if about["directory"] == directory and created_ms(thread.id) < before:
            last = threads.last_step(store, thread)
            if last is not None:
                return _of_node(store, store.node(last), thread.id)
    return None


def _thread_of(store: Store, start: NodeHash, index: int, step: NodeHash | None) -> str:
    """Returns the id of the oldest thread that has a step, or a start; empty where it is gone."""
    # Forks share the start and the first steps: the oldest is the one that they were forked from.
    for thread in [*threads.with_field(store, "start", [start])][::-1]:
        with suppress(NotFound):  # it is shorter
            if not index or threads.step_at(store, thread, index).hash == step:
                return thread.id
    return ""


def _of_turn(store: Store, thread: Thread, index: int, turn: int) -> Place:
    """Returns the version of a turn, also of a step that is pending or has failed."""
    step, turns, _ = revisions.turn_state(store, thread, index=index, turn=turn)
    # By its name: a pending step has no node yet that refers to the one before it.
    older = at(store, revisions.resolve(store, f"{thread.id}@{index - 1}"))
    recorded_at = step.get("completedAt", step.get("since"))
    step_version = Version(
        None,
        turns[-1],
        recorded_at=recorded_at,
        revision=f"{thread.id}@{index}",
        index=index,
        role=step["role"],
        agent=step.get("agent"),
    )
    return Place(_within_step(store, older, step=step_version, turns=turns))


def _recorded(store: Store, root: TreeHash | None, before: int = NEVER) -> Place | None:
    """Returns the newest checkpoint, else step, with this tree and older than `before`: chains that
    follow one another grow older, so they end."""
    same = [candidate for candidate in checkpoint.listing(store) if candidate.root == root]
    same = [candidate for candidate in same if candidate.created_at < before]
    if same:
        newest = max(same, key=lambda candidate: candidate.created_at)
        return _of_checkpoint(store, newest)
    return _recorded_by_step(store, root, before)


def _recorded_by_step(store: Store, root: TreeHash | None, before: int) -> Place | None:
    """Returns the newest step that made this tree and is older than `before`. One that changed
    nothing may be in any directory."""
    if root is None:
        return None
    # The index of referrers reads all that is new in the store first: not for nothing.
    if all(created_ms(thread.id) >= before for thread in threads.list_threads(store)):
        return None
    from casfs.store.referrers import Referrers

    steps: list[node.Node[Any]] = []
    with Referrers(store) as index:
        for hash in index.of(root):
            referrer = store.node(hash)
            if referrer.type == "thread-step" and referrer.payload["completedAt"] < before:
                steps.append(referrer)
    for step in sorted(steps, key=lambda step: step.payload["completedAt"], reverse=True):
        position = _of_node(store, step)
        # Its thread began with another tree, so one of its steps made this one.
        if position.chain.versions[-1].root != root:
            return position
    return None


def _turns_of(position: Place) -> Chain:
    """Returns the chain of the trees that the turns of a step recorded."""
    calls = position.chain.calls
    key = (position.index, 0)
    if key not in calls:
        store = position.chain.store
        turns = revisions.turns(store, position.version.detail)
        calls[key] = _within_step(store, position.older, step=position.version, turns=turns)
    return calls[key]


def _within_step(
    store: Store, older: Place | None, step: Version, turns: Sequence[NodeHash]
) -> Chain:
    """Returns the trees that the tool calls of a step, and its turns without any, recorded; the
    oldest is that which it began with."""
    root = None if older is None else older.version.root
    # Without `called` and `detail`: readers would come back here, without end.
    beginning = replace(step, root=root, called=(), detail=None)
    versions = [beginning]
    if step.prompt is not None:
        versions += _by_person(beginning, store.node(step.prompt, revisions.TURN).payload)
    # Without some of its trees a step is one change: they tell its calls from a person.
    for number, hash in enumerate(turns if revisions.have_trees(store, turns) else (), 1):
        turn = store.node(hash, revisions.TURN).payload
        # Only a turn that changed files has this; any other repeats the tree before it.
        if "before" not in turn:
            continue
        turn_version = replace(beginning, revision=f"{step.revision}.{number}")
        tool_calls = [store.node(call_hash).payload for call_hash in turn["toolCalls"]]
        if "begun" in turn:
            began = store.node(turn["begun"], revisions.TURN).payload
            versions += _by_person(turn_version, began)
            recorded_at = turn.get("reportedAt", step.recorded_at)
            turn_version = replace(turn_version, recorded_at=recorded_at)
            # The tree of a session's call is that of its turn, which has no other.
            tool_calls = [{**turn, "name": call["name"]} for call in tool_calls]
        for call in tool_calls or [turn]:
            if root := call.get("workspace"):
                times = call.get("times")
                tool = call.get("name")
                versions.append(replace(turn_version, root=root, times=times, call=(number, tool)))
    return Chain(store, versions[::-1], lambda: older)


def _by_person(version: Version, turn: Mapping[str, Any]) -> list[Version]:
    """Returns the tree with which a prompt or a call of a session began: what differs from the tree
    before it a person has changed, or another program."""
    if not turn.get("workspace"):
        return []
    return [
        replace(
            version,
            root=turn["workspace"],
            times=turn.get("times"),
            recorded_at=turn.get("reportedAt", version.recorded_at),
            role=PERSON,
            agent=None,
            call=(0, None),
        )
    ]


def _applied(store: Store, checkpoint: NodeHash) -> list[NodeHash]:
    """Returns the steps that a checkpoint names, where this store has them."""
    steps = store.node(checkpoint).payload.get("applied", ())
    # They are not pushed with the checkpoint, so another store lacks them.
    known = store.blobs.info(steps)
    return [step for step in steps if step in known]


def _called_chain(position: Place, ends: Sequence[NodeHash]) -> Chain:
    """Returns the chain of the last thread of these. It ends with the tree that this version gave
    it, after the calls before."""
    calls = position.chain.calls
    key = (position.index, len(ends))
    if key not in calls:
        store = position.chain.store
        *earlier, end = ends
        versions = _of_node(store, store.node(end)).chain.versions
        start = versions[-1]
        whole = _whole_root(store, start)
        # The child's start is replaced by the caller's version with the child's tree, so that
        # readers go on in the caller or an earlier call: the child itself wrote none of it.
        # `detail` stays, since a turn of the caller may have made that tree.
        handover = replace(position.version, root=start.root, whole=whole, called=earlier)
        chain = Chain(store, [*versions[:-1], handover], lambda: position.older)
        chain.is_whole = position.chain.is_whole
        calls[key] = chain
    return calls[key]


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
