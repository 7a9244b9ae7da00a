"""Revisions: the texts by which a person names a tree. One grammar, resolved here only.

    HASH            a directory node; or a checkpoint, thread-start, -step or -end node: its tree
    PREFIX          8 or more characters of such a hash, unique in the store
    NAME            a checkpoint, also NAME@ID, NAME@{TIME}, NAME~N (`checkpoint.find`)
    THREAD          the tree of a thread's last step; a thread's name or a part of its id of 4 or
                    more characters (`casfs.threads.lookup`)
    THREAD@STEP     the tree after that step; @0: the tree that the thread started from
    THREAD@STEP.TURN  the tree after a turn of a step, counted from 1, where it was recorded
    THREAD@{TIME}   the tree at that time
    ID              a checkpoint, by its id or a part of its random end
    @last           the newest thread that no other called, also @last@STEP; where there is none,
                    the newest checkpoint that a person made
    REV:PATH        a directory in such a tree, or a file, where one is meant

`~N` goes N checkpoints, steps, turns back. A whole hash is never a name (`checkpoint.check_name`),
also where a head has such a name. A checkpoint's name wins over a thread's, both over parts of ids
and hashes; a part of several of these is ambiguous.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from casfs.backend.derived import find_prefix
from casfs.checkpoints import checkpoint
from casfs.checkpoints.checkpoint import MIN_PART_CHARS, NEWEST, TEXT, Checkpoint
from casfs.digest import BlobHash, NodeHash, TreeHash, is_hash
from casfs.errors import CasfsError, Conflict, Invalid, NotFound
from casfs.store import local_trees
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store.store import MIN_PREFIX_CHARS, Store
from casfs.system import moments
from casfs.system.paths import printable
from casfs.threads import attempt_details, lookup, threads
from casfs.threads.threads import Thread
from casfs.trees import dated, recorded_state, tree
from casfs.trees.recorded_state import RecordedState

STEP = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?")
LAST = re.compile(rf"@({'|'.join(NEWEST)})(?P<rest>([@~].*)?)", re.DOTALL)
TURN = "react-turn"
SHOWN_CANDIDATES = 4  # of an ambiguous text
StepTurns = tuple[Mapping[str, Any], list[NodeHash], RecordedState]
TREE_FIELDS = {"checkpoint": "root", "thread-start": "workspace", "thread-step": "workspace"}


@dataclass(frozen=True, slots=True)
class Revision:
    """A recorded state, and the checkpoint or thread by which it was named. `node`: the directory,
    checkpoint or node of a thread's chain that has it; empty for REV:PATH. `turn`: with its
    step."""

    state: RecordedState
    checkpoint: Checkpoint | None = None
    thread: Thread | None = None
    node: str = ""
    turn: tuple[int, int] | None = None

    @property
    def root(self) -> TreeHash:
        """The tree of the work: what is shown and shared, without private files."""
        return self.state.tree


class _Candidates(NamedTuple):
    """What a text may mean: threads by name or part of an id, checkpoints by part of an id, nodes
    by a prefix of their hash."""

    threads: Sequence[Thread]
    checkpoints: Sequence[Checkpoint] = ()
    hashes: Sequence[BlobHash] = ()

    @property
    def labels(self) -> list[str]:
        """Each one in words."""
        labels = [f"thread {thread.id}" for thread in self.threads]
        labels += [f"checkpoint {candidate.name}@{candidate.id}" for candidate in self.checkpoints]
        return labels + [f"{hash[:16]}…" for hash in self.hashes]


def resolve_tree(store: Store, text: str) -> TreeHash:
    """Returns the hash of the directory node that `text` names. Raises NotFound (also for a node
    without a tree), Conflict (ambiguous), Invalid (a time)."""
    return resolve(store, text).root


def resolve(store: Store, text: str) -> Revision:
    """As `resolve_tree`, with what it was named by; REV:PATH is a tree by itself."""
    revision, path = split(text)
    base = _resolve(store, revision)
    if path is None:
        return base
    # `dated.subtree` would not tell a file, or what was purged, from a path that is not there.
    entry = tree.resolve(store, base.root, path)
    if entry is not None and not isinstance(entry, Subdirectory):
        raise NotFound(f"{text} is not a directory")
    subtree = dated.subtree(store, base.state.work, path)
    return Revision(RecordedState.of_tree(subtree))


def resolve_entry(
    store: Store, text: str, *, with_local: bool = False
) -> tuple[TreeHash, bytes, Entry | None]:
    """Returns (root, path, entry) of REV[:PATH]; the entry of a root is None. `with_local`: of the
    whole directory, private files included."""
    revision, path = split(text)
    state = _resolve(store, revision).state
    root = state.full if with_local else state.tree
    inner_path = path or b""
    return root, inner_path, tree.resolve(store, root, inner_path)


def resolve_blob(store: Store, text: str) -> BlobHash:
    """Returns the hash of the file that REV:PATH names, or of the blob with this hash. Raises
    NotFound, Conflict, Invalid."""
    _, path = split(text)
    if path is None:
        try:
            return store.expand(text)
        except Invalid as error:
            # Often a revision whose path was forgotten. Where it is none, what is wrong with it as
            # a hash is the better message.
            try:
                resolve_tree(store, text)
            except CasfsError:
                raise error from None
            raise Invalid(f"{text!r} is a directory; use {text}:PATH") from None
    entry = resolve_entry(store, text)[2]
    if isinstance(entry, Symlink):
        raise NotFound(f"{text} is not a file: a symlink to {printable(entry.target)}")
    if not isinstance(entry, File):
        raise NotFound(f"{text} is not a file: a directory; see `casfs ls`")
    return entry.digest.hash


def entries(
    store: Store, text: str, *, recursive: bool = False, with_local: bool = False
) -> Iterator[tuple[bytes, Entry]]:
    """Yields path and entry of all that is in the directory REV[:PATH]; of a file, itself.
    `with_local`: of the whole directory."""
    # No generator: the call raises NotFound, not the first `next`.
    root, _, entry = resolve_entry(store, text, with_local=with_local)
    if isinstance(entry, File | Symlink):
        return iter([(entry.name, entry)])
    root = tree.subtree(entry) or root
    if recursive:
        return tree.walk(store, root)
    children = tree.load(store, root)
    return iter(children.items())


def split(text: str) -> tuple[str, bytes | None]:
    """Splits REV:PATH at the first colon that is not in a {TIME}."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == ":" and depth <= 0:
            return text[:index], os.fsencode(text[index + 1 :])
    return text, None


def _resolve(store: Store, text: str) -> Revision:
    """Returns what a text without a path names. In this order: a whole hash, the name of a
    checkpoint, `@last`, the name of a thread; then, all at once, parts of the ids of threads and
    checkpoints and of hashes, which together must name one thing."""
    # First: a head that came from elsewhere may have a hash as its name, and must not hide it.
    if is_hash(text):
        return _of_node(store, store.expand(text))
    named = checkpoint.find_if_named(store, text)
    if named is not None:
        return _of_checkpoint(store, named)
    if newest := LAST.fullmatch(text):
        newest_threads = lookup.matches(store, lookup.LAST)
        if newest_threads:
            return _resolve(store, newest_threads[0].id + newest["rest"])
        return _of_checkpoint(store, checkpoint.find(store, text))
    parts = TEXT.fullmatch(text)
    if parts is None:
        raise _missing(text)
    selector = parts["selector"]
    back = parts["back"]
    candidates = _candidates(store, text, name=parts["name"], selector=selector)
    if len(candidates.labels) > 1:
        labels = ", ".join(candidates.labels[:SHOWN_CANDIDATES])
        raise Conflict(f"{text} is ambiguous: {labels}; give more of it")
    if candidates.threads:
        steps_back = 0
        if back is not None:
            # `~` alone is `~1`.
            steps_back = int(back or 1)
        return _of_thread(store, candidates.threads[0], selector=selector, back=steps_back)
    if candidates.checkpoints:
        # Found once more by its whole text, which may go back from it by `~N`.
        return _of_checkpoint(store, checkpoint.find(store, text))
    if candidates.hashes:
        return _of_node(store, candidates.hashes[0])
    raise _missing(text)


def _candidates(store: Store, text: str, name: str, selector: str | None) -> _Candidates:
    """Returns all that a text may mean, where no checkpoint has its NAME."""
    matching_threads = _threads(store, name)
    # A thread that has the name is the only match, or the first: its name is unique.
    is_thread_name = bool(matching_threads) and matching_threads[0].fields.get("name") == name
    # A selector follows a thread only: after a checkpoint's name it was found above.
    if selector is not None or is_thread_name:
        return _Candidates(matching_threads)
    matching_checkpoints = checkpoint.with_id_part(store, name)
    # An id ends in the beginning of its checkpoint's hash: one part may name it in both ways.
    checkpoint_hashes = {candidate.hash for candidate in matching_checkpoints}
    hashes = _hashes(store, text, checkpoint_hashes)
    return _Candidates(matching_threads, matching_checkpoints, hashes)


def _threads(store: Store, name: str) -> list[Thread]:
    """Returns the threads with this name, or with this part of an id, unless that is too short."""
    matching_threads = lookup.matches(store, name)
    if len(name) < MIN_PART_CHARS:
        matching_threads = [
            thread for thread in matching_threads if thread.fields.get("name") == name
        ]
    return matching_threads


def _hashes(store: Store, prefix: str, known: set[NodeHash]) -> list[BlobHash]:
    """Returns the stored hashes, two at most, that begin with `prefix` and are not `known`."""
    padded = prefix.ljust(64, "0")
    if len(prefix) < MIN_PREFIX_CHARS or not is_hash(padded):
        return []
    return [BlobHash(hash) for hash in find_prefix(store.blobs, prefix) if hash not in known]


def _of_checkpoint(store: Store, named_checkpoint: Checkpoint) -> Revision:
    state = checkpoint.recorded(store, named_checkpoint)
    return Revision(state, named_checkpoint, node=named_checkpoint.hash)


def _of_thread(store: Store, thread: Thread, selector: str | None, back: int) -> Revision:
    """Returns the tree of a step: the one that `selector` names, and `back` steps before it."""
    if selector is None or selector in NEWEST:
        index = threads.length(store, thread)
    elif selector.startswith("{"):
        index = _index_at_time(store, thread, selector[1:-1])
    elif step_match := STEP.fullmatch(selector):
        index = int(step_match[1])
        if step_match[2]:
            # From a turn `~N` goes back turns, not steps.
            turn = int(step_match[2]) - back
            state = turn_state(store, thread, index=index, turn=turn)[2]
            return Revision(state, thread=thread, node=state.tree, turn=(index, turn))
    else:
        raise Invalid(f"invalid step {selector!r} of thread {thread.id}: use @3, or @3.2")
    if index < back:
        raise NotFound(f"thread {thread.id} has no step {back} before step {index}")
    return _of_step(store, thread, index - back)


def step_tree(store: Store, thread: Thread, index: int | None) -> TreeHash:
    """Returns the work after a step (None: the last; 0: before the first). Raises NotFound."""
    return step_state(store, thread, index).tree


def step_state(store: Store, thread: Thread, index: int | None) -> RecordedState:
    """As `step_tree`, the whole recorded state: also the private files and times that only this
    store has."""
    last = threads.length(store, thread) if index is None else index
    return _of_step(store, thread, last).state


def _of_step(store: Store, thread: Thread, index: int) -> Revision:
    hash = threads.step_at(store, thread, index).hash if index else thread.record["start"]
    return Revision(state_of_node(store, hash), thread=thread, node=hash)


def _of_node(store: Store, hash: str) -> Revision:
    return Revision(state_of_node(store, hash), node=hash)


def turns(store: Store, detail: str | None) -> list[NodeHash]:
    """Returns the turns that a step's `react-session` holds, oldest first; none of others."""
    try:
        node = store.node(detail or "")
    except NotFound:
        # The detail of other agents may be plain bytes, or absent.
        return []
    return list(node.payload["turns"]) if node.type == "react-session" else []


def turn_state(store: Store, thread: Thread, index: int, turn: int) -> StepTurns:
    """Returns the payload of a step, or its intent while it is pending, its turns up to this one,
    and the state after it. Raises NotFound."""
    step: Mapping[str, Any]
    pending = thread.pending
    step_name = f"step {index} of thread {thread.id}"
    if pending is not None and pending["index"] == index:
        step = pending
        turn_hashes = _pending_turns(store, thread, pending)
    else:
        step = threads.step_at(store, thread, index).payload
        turn_hashes = turns(store, step["detail"])
    if not 1 <= turn <= len(turn_hashes):
        raise NotFound(f"{step_name} has no turn {turn}; it has {len(turn_hashes)}")
    hash = turn_hashes[turn - 1]
    payload = store.node(hash, TURN).payload
    # Without the option only steps have trees: each turn would cost a snapshot.
    if not payload.get("workspace"):
        raise NotFound(f"{step_name}: turn {turn} has no tree; see `thread start --turn-trees`")
    state = recorded_state.of_turn(store, hash)
    if state is None:
        raise NotFound(
            f"{step_name}: the tree of turn {turn} is not kept any more (attach.max_turn_trees);"
            " that of the step is"
        )
    return step, turn_hashes[:turn], state


def have_trees(store: Store, turns: Iterable[NodeHash]) -> bool:
    """Returns whether gc has deleted no tree of these turns, nor of those that they began as; of a
    whole directory neither."""
    payloads = {hash: store.node(hash, TURN).payload for hash in turns}
    begun = [turn["begun"] for turn in payloads.values() if "begun" in turn]
    payloads |= {hash: store.node(hash, TURN).payload for hash in begun}
    roots = {turn["workspace"] for turn in payloads.values() if "workspace" in turn}
    if len(store.blobs.info(roots)) < len(roots):
        return False
    return not any(local_trees.is_lost(store, hash) for hash in payloads)


def _pending_turns(store: Store, thread: Thread, pending: Mapping[str, Any]) -> list[NodeHash]:
    """Returns the turns of the attempt that runs. Between attempts, those that the pause or, where
    that left none, the last failure has left."""
    if turn_hashes := threads.turns(store, pending):
        return turn_hashes
    last_attempt = thread.record.get("attempts", ())[-1:]
    for detail in [pending.get("paused"), *last_attempt]:
        if detail and (turn_hashes := attempt_details.turns(store, detail)):
            return turn_hashes
    return []


def _index_at_time(store: Store, thread: Thread, time: str) -> int:
    """Returns the index of the last step at that time, 0 where there was none yet."""
    local_now = datetime.now().astimezone()
    moment_ms = moments.parse(time, local_now).timestamp() * 1000
    for node in threads.backwards(store, thread):
        step = node.payload
        if step["completedAt"] <= moment_ms:
            return step["index"]
    return 0


def state_of_node(store: Store, hash: str) -> RecordedState:
    """Raises NotFound for a node without a tree."""
    state = state_if_any(store, hash)
    if state is None:
        kind = store.node(hash).type.removeprefix("thread-")
        raise NotFound(f"{hash}: that {kind} has no workspace")
    return state


def state_if_any(store: Store, hash: str) -> RecordedState | None:
    """As `state_of_node`; None for a node of a thread without a workspace."""
    node = store.node(hash)
    if node.type == "directory":
        return RecordedState(TreeHash(node.hash))
    # It has no tree of its own: the last step left it.
    if node.type == "thread-end":
        return state_if_any(store, node.payload["lastStep"] or node.payload["start"])
    if node.type not in TREE_FIELDS:
        raise NotFound(f"{hash} is a {node.type}, not a tree")
    field = TREE_FIELDS[node.type]
    return recorded_state.of_node(store, node.hash, payload=node.payload, field=field)


def _missing(text: str) -> NotFound:
    return NotFound(
        f"{text!r} is neither a hash nor a checkpoint or thread; see `casfs checkpoint list`"
    )


def step_of(store: Store, revision: Revision) -> NodeHash | None:
    """Returns the step of a thread that a tree is of; None for another tree."""
    if revision.thread is None or not revision.node:
        return None
    node = store.node(revision.node)
    if node.type == "thread-end":
        last: NodeHash | None = node.payload["lastStep"]
        return last
    return node.hash if node.type == "thread-step" else None
