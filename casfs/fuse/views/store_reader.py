"""The views' access to the store, through LRU caches of bounded size.

Whether a name exists is the directories' concern. The functions here follow a hash that a node
or head refers to: if the store lacks it, that is damage, `Corrupt`, not NotFound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from casfs.backend.derived import note_use
from casfs.backend.protocols import BlobInfo, Head, HeadName
from casfs.digest import TreeHash
from casfs.errors import Corrupt, NotFound
from casfs.fuse.views.blobs import BlobReader
from casfs.fuse.views.change_times import ChangeTime, ChangeTimes
from casfs.fuse.views.vnode import MILLISECOND, Y2000_NS
from casfs.store.nodes import head_kinds
from casfs.store.nodes.directory import Entry, Properties
from casfs.store.nodes.node import Node
from casfs.store.nodes.times import Times
from casfs.store.store import Store
from casfs.system.lru_cache import LruCache
from casfs.threads import prompts, threads
from casfs.threads.threads import StepRef, Thread, ThreadId
from casfs.trees import dated, recorded_state, tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState

NODE_CACHE_BYTES = 1 << 24  # of memory, approximately
STEP_LISTS = 16
AGGREGATES = 256
PROMPT_CACHE_BYTES = 1 << 22
PROMPT_FIELDS = ("compact", "hint", "answer", "parent", "definition")  # of a thread's record

Value = TypeVar("Value")


class TimedThread(NamedTuple):
    """A thread, and the mtime (ns) of the vnodes that show it."""

    thread: Thread
    mtime_ns: int


class StoreReader:
    """`uses`: the heads that were looked up since `note_uses`. `with_local`: the trees that are
    shown are those of whole directories, where this store has them; else these are absent."""

    def __init__(self, store: Store, *, with_local: bool = False) -> None:
        self.store = store = store.shown(with_local=with_local)
        self.with_local = with_local
        self.blobs = BlobReader(store)
        self.change_times = ChangeTimes(store.backend)
        self.uses: set[HeadName] = set()
        self._nodes = LruCache(NODE_CACHE_BYTES)
        self._steps = LruCache(STEP_LISTS)
        self._aggregates = LruCache(AGGREGATES)
        self._prompts = LruCache(PROMPT_CACHE_BYTES)
        for cache in (self._nodes, self._steps, self._prompts, self._aggregates):
            store.purged.add_cache(cache)

    def note_uses(self) -> None:
        """Writes the last uses to the store, by which cache checkpoints are evicted."""
        uses = self.uses
        self.uses = set()
        if uses:
            note_use(self.store.heads, uses)

    def used_head(self, name: HeadName) -> Head | None:
        """Returns a head and notes its use; None where there is none, or a damaged one."""
        head = self.store.heads.get(name)
        if head is None or head_kinds.fault(name, head):
            return None
        self.uses.add(name)
        return head

    def shown_tree(self, node: Node[Any], field: str) -> DatedTree | None:
        """Returns the tree that a node's directory shows; `field` names its work."""
        state = recorded_state.of_node(self.store, node.hash, payload=node.payload, field=field)
        return self._shown(state)

    def turn_tree(self, turn: Node[Any]) -> DatedTree | None:
        """As `shown_tree`; None where the tree is not kept any more."""
        return self._shown(recorded_state.of_turn(self.store, turn.hash))

    def _shown(self, state: RecordedState | None) -> DatedTree | None:
        if state is None:
            return None
        return state.whole if self.with_local else state.work

    def step_tree(self, id: ThreadId, index: int) -> DatedTree | None:
        """Returns the tree that a thread had after a step, 0: before the first; None where there
        is none. Raises Corrupt."""
        try:
            thread = threads.get(self.store, id)
        except NotFound:
            return None
        steps = self.steps(thread)
        if index > len(steps):
            return None
        hash = steps[index - 1].hash if index else threads.start(self.store, thread).hash
        return self.shown_tree(self.node(hash), "workspace")

    def node(self, hash: str, type: str | None = None) -> Node[Any]:
        """Returns a node that is referred to. Raises Corrupt, CorruptBlob."""
        self.store.purged.replaced()  # clears the cache, where something was purged
        generation = self._nodes.generation
        node: Node[Any] | None = self._nodes.get(hash)
        if node is None:
            node = self._load(lambda: self.store.node(hash), hash)
            self._nodes.put(hash, node, _memory_bytes(node.payload), generation)
        if type is not None and node.type != type:
            raise Corrupt(f"{hash} is a {node.type} where a {type} should be")
        return node

    def entries(self, hash: TreeHash) -> Mapping[bytes, Entry]:
        """Returns the entries of a directory node that is referred to. Raises Corrupt."""
        return self._load(lambda: tree.load(self.store, hash), hash)

    def times(self, root: DatedTree) -> Times:
        """Returns the times of a directory that is referred to. Raises Corrupt."""
        return self._load(lambda: dated.load_times(self.store, root), root.tree)

    def preload_below(self, root: DatedTree) -> None:
        """Reads the directories directly below one, for `times`, `preserved` and `entries`. Raises
        Corrupt."""
        self._load(lambda: dated.preload_below(self.store, root), root.tree)

    def preserved(self, hash: TreeHash) -> Properties | None:
        """Returns the preserved properties of a directory itself. Raises Corrupt."""
        return self._load(lambda: tree.directory_properties(self.store, hash), hash)

    def thread(self, id: ThreadId) -> TimedThread:
        """Raises NotFound."""
        seq = self.change_times.head_seq(threads.head_name(id))
        return _timed(threads.get(self.store, id), seq)

    def threads(self) -> Iterator[TimedThread]:
        """Yields all threads, oldest first."""
        self.change_times.latest(threads.HEADS)
        for name, head in self.store.heads.list(threads.HEADS):
            seq = self.change_times.head_seq(name, update=False)
            yield _timed(threads.of_head(name, head), seq)

    def steps(self, thread: Thread) -> list[StepRef]:
        """Returns the steps up to the thread's head. Raises Corrupt."""
        generation = self._steps.generation
        steps: list[StepRef] | None = self._steps.get(thread.hash)
        if steps is None:
            steps = self._load(lambda: threads.steps(self.store, thread), thread.hash)
            self._steps.put(thread.hash, steps, 1, generation)
        return steps

    def prompt(self, id: ThreadId, step: str) -> bytes:
        """Returns the prompt of a step, rebuilt, with its fault on top where it has one. A fault is
        cached until a thread's head moves: it may be that another thread was missing. Raises
        Corrupt, NotFound (the thread)."""
        faulty = f"{step} {id} {self.change_times.latest(threads.HEADS).seq}"
        generation = self._prompts.generation
        prompt_bytes: bytes | None = self._prompts.get(step) or self._prompts.get(faulty)
        if prompt_bytes is None:
            node = self.node(step, "thread-step")
            thread = threads.get(self.store, id)
            prompt = self._load(lambda: prompts.of_step(self.store, thread, node), step)
            prompt_bytes = prompt.marked().encode()
            key = faulty if prompt.fault else step
            self._prompts.put(key, prompt_bytes, len(prompt_bytes), generation)
        return prompt_bytes

    def pending_prompt(self, thread: Thread) -> bytes:
        """Returns the prompt of a thread's pending step; empty where there is none. Raises
        NotFound, Corrupt."""
        fields = thread.fields
        intent = fields.get("intent") or {}
        parts = [fields.get(name) for name in PROMPT_FIELDS]
        key = f"{thread.id} {thread.hash} {intent.get('role')} {intent.get('correction')} {parts}"
        generation = self._prompts.generation
        prompt_bytes: bytes | None = self._prompts.get(key)
        if prompt_bytes is None:
            prompt = prompts.of_pending_step(self.store, thread)
            prompt_bytes = prompt.text.encode() if prompt else b""
            self._prompts.put(key, prompt_bytes, len(prompt_bytes), generation)
        return prompt_bytes

    def aggregate(self, key: str, prefix: str, compute: Callable[[], Value]) -> Value:
        """Returns `compute()`, a function of the heads below `prefix`; memoised until one of
        them moves."""
        seq = self.change_times.latest(prefix).seq
        cached: tuple[int, Value] | None = self._aggregates.get(key)
        if cached is None or cached[0] != seq:
            cached = seq, compute()
            self._aggregates.put(key, cached, 1)
        return cached[1]

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        return self.store.blobs.info(hashes)

    def refs(self, node: Node[Any], *, local_too: bool = False) -> frozenset[str]:
        """Returns the hashes in a node's payload that are references; `local_too`: local refs,
        which may dangle, as well."""
        _, schema = self.store.registry.compiled(node.type_hash)
        refs = schema.refs(node.payload)
        weak = {ref.hash for ref in refs if ref.is_weak}
        deleted = weak - self.info(weak).keys() if weak else weak
        shown = (ref.hash for ref in refs if local_too or not ref.is_local)
        return frozenset(hash for hash in shown if hash not in deleted)

    def cache_sizes(self) -> dict[str, int]:
        return {"nodes": len(self._nodes), "descriptors": len(self.blobs.open_blobs)}

    def _load(self, load: Callable[[], Value], hash: str) -> Value:
        try:
            return load()
        except NotFound as error:
            raise Corrupt(f"{hash} is referred to, but {error}") from None


def _timed(thread: Thread, seq: int) -> TimedThread:
    """`seq`: of the head's newest move, read before the head."""
    at_ms = thread.fields.get("updatedAt")
    changed = ChangeTime(seq, at_ms if isinstance(at_ms, int) else Y2000_NS // MILLISECOND)
    return TimedThread(thread, changed.mtime_ns)


def _memory_bytes(value: object) -> int:
    """Returns the approximate memory of a payload."""
    if isinstance(value, str):
        return 56 + len(value)
    if isinstance(value, dict):
        return 200 + sum(100 + len(key) + _memory_bytes(inner) for key, inner in value.items())
    if isinstance(value, list):
        return 56 + sum(8 + _memory_bytes(inner) for inner in value)
    return 32
