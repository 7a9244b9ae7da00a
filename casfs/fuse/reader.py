"""What vnodes read from the store, through small caches of bounded size.

A name that is not there is for the directories to find out. Here a hash is followed that
something else refers to: where the store has a hole instead, that is damage, `Corrupt`,
not NotFound.

Large blobs are read with pread on a descriptor that is kept: the store verified the file
when it was opened, and every read first looks whether the file is still that file (one
fstat), else it is opened and verified again. Nothing here is served that was not
verified; what is short or long against the size that the referring node states is
corrupt too. Descriptors are closed when their last user lets go, so a cache may drop
one while another thread still reads from it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from io import BytesIO
from typing import Any, BinaryIO, TypeVar, cast

from .. import threads
from ..backend import META, BlobInfo
from ..errors import Corrupt, CorruptBlob, NotFound
from ..nodes.directory import Entry, Properties
from ..nodes.node import Node
from ..store import Store
from ..threads import StepRef, Thread
from ..trees import tree

SLOW = 1 << 20  # bytes; a longer blob is verified beside the serving loop
AT_ONCE = 1 << 17  # bytes; up to here a blob that is read whole is not worth a descriptor
OPENED = 128  # descriptors
NODES = 256
THREADS = 16  # whose list of steps is kept
SUMMARIES = 256

Key = TypeVar("Key")
Value = TypeVar("Value")


class Reader:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.uses: set[str] = set()  # heads that were looked up since `note_uses`
        self._nodes: OrderedDict[str, Node] = OrderedDict()
        self._opened: OrderedDict[str, Opened] = OrderedDict()
        self._steps: OrderedDict[str, list[StepRef]] = OrderedDict()
        self._summaries: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def note_uses(self) -> None:
        """Tell the store what was read: cache is evicted by its last use."""
        uses, self.uses = self.uses, set()
        if uses:
            self.store.heads.note_use(uses)

    def node(self, hash: str, type: str | None = None) -> Node:
        """A node that is referred to. Raises Corrupt, CorruptBlob."""
        found = self._nodes.get(hash)
        if found is None:
            found = self._referred(lambda: self.store.node(hash), hash)
            _keep(self._nodes, hash, found, NODES)
        if type is not None and found.type != type:
            raise Corrupt(f"{hash} is a {found.type} where a {type} should be")
        return found

    def entries(self, hash: str) -> Mapping[bytes, Entry]:
        """The entries of a directory node that is referred to. Raises Corrupt."""
        return self._referred(lambda: tree.load(self.store, hash), hash)

    def preserved(self, hash: str) -> Properties | None:
        """What is preserved of a directory itself. Raises Corrupt."""
        return self._referred(lambda: tree.preserved(self.store, hash), hash)

    def steps(self, thread: Thread) -> list[StepRef]:
        """The steps of a thread as its head is. Raises Corrupt."""
        found = self._steps.get(thread.hash)
        if found is None:
            found = self._referred(lambda: threads.steps(self.store, thread), thread.hash)
            _keep(self._steps, thread.hash, found, THREADS)
        return found

    def summary(self, key: str, make: Callable[[], Value]) -> Value:
        """What `make` says about the heads; made again when any head may have moved."""
        version = self.store.backend.version()
        kept = self._summaries.get(key)
        if kept is not None and kept[0] == version:
            return cast(Value, kept[1])
        value = make()
        _keep(self._summaries, key, (version, value), SUMMARIES)
        return value

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        return self.store.blobs.info(hashes)

    def refs(self, node: Node) -> frozenset[str]:
        """The hashes in a node's payload that are references."""
        _, schema = self.store.registry.compiled(node.type_hash)
        return frozenset(ref.hash for ref in schema.refs(node.payload))

    def type_name(self, type: str) -> str:
        """The name of a type, given as `BlobInfo.type`."""
        return META if type == META else self.store.registry.compiled(type)[0]

    def counts(self) -> dict[str, int]:
        return {"nodes": len(self._nodes), "descriptors": len(self._opened)}

    # -- blobs --------------------------------------------------------------------------

    def ready(self, hash: str, total: int) -> bool:
        return total <= SLOW or hash in self._opened

    def prepare(self, hash: str) -> None:
        """Open and verify a blob, so that `read` need not; may run in any thread."""
        self._open(hash)

    def read(self, hash: str, total: int, offset: int, count: int) -> bytes:
        """`count` bytes at `offset` of a blob of `total` bytes. Raises CorruptBlob."""
        wanted = min(count, total - offset)
        if wanted <= 0:
            return b""
        if wanted == total <= AT_ONCE and hash not in self._opened:
            data = self._referred(lambda: self.store.get(hash), hash)
        else:
            opened = self._opened.get(hash)
            if opened is None or opened.changed():
                opened = self._open(hash)
            if opened.size != total:
                raise CorruptBlob(f"blob {hash}: {opened.size} bytes, its node says {total}")
            data = opened.pread(wanted, offset)
        if len(data) != wanted:
            raise CorruptBlob(f"blob {hash}: {len(data)} bytes where {wanted} should be")
        return data

    def _open(self, hash: str) -> Opened:
        with self._referred(lambda: self.store.blobs.open(hash), hash) as source:
            opened = Opened(source)
        with self._lock:
            _keep(self._opened, hash, opened, OPENED)
        return opened

    def _referred(self, load: Callable[[], Value], hash: str) -> Value:
        try:
            return load()
        except NotFound as error:
            raise Corrupt(f"{hash} is referred to, but {error}") from None


class Opened:
    """A verified blob, open for as long as somebody has this object."""

    __slots__ = ("_data", "_fd", "_stamp", "size")

    def __init__(self, source: BinaryIO) -> None:
        self._fd = -1
        self._data = b""
        self._stamp = (0, 0)
        if isinstance(source, BytesIO):
            self._data = source.getvalue()
            self.size = len(self._data)
        else:
            self._fd = os.dup(source.fileno())
            self.size = os.fstat(self._fd).st_size
            self._stamp = self._now()

    def _now(self) -> tuple[int, int]:
        stat = os.fstat(self._fd)
        return stat.st_mtime_ns, stat.st_ctime_ns

    def changed(self) -> bool:
        return self._fd >= 0 and self._now() != self._stamp

    def pread(self, count: int, offset: int) -> bytes:
        if self._fd < 0:
            return self._data[offset : offset + count]
        return os.pread(self._fd, count, offset)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _keep(cache: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    cache[key] = value
    while len(cache) > most:
        cache.popitem(last=False)
