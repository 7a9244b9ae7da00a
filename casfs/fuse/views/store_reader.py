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

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from io import BytesIO
from typing import BinaryIO, NamedTuple, TypeVar

from casfs import threads
from casfs.backend.derived import note_use, sized_reader
from casfs.backend.protocols import META, BlobInfo
from casfs.errors import Corrupt, CorruptBlob, NotFound
from casfs.fuse.views.change_times import Moves, Stamp
from casfs.fuse.views.errors import Denied
from casfs.fuse.views.vnode import LONG_AGO, MILLISECOND, Extent
from casfs.lru_cache import LruCache
from casfs.nodes.directory import Entry, Properties
from casfs.nodes.node import Node
from casfs.store import Store
from casfs.threads import StepRef, Thread
from casfs.trees import tree

SLOW = 1 << 20  # bytes; a longer blob is verified beside the serving loop
AT_ONCE = 1 << 17  # bytes; up to here a blob that is read whole is not worth a descriptor
OPENED = 128  # descriptors
NODES = 1 << 24  # bytes of memory, about
THREADS = 16  # whose list of steps is kept
SUMMARIES = 256

Value = TypeVar("Value")


class Seen(NamedTuple):
    """A thread, and the mtime (ns) of what shows it."""

    thread: Thread
    mtime_ns: int


class Reader:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._content = sized_reader(store.blobs)
        self.uses: set[str] = set()  # heads that were looked up since `note_uses`
        self.moves = Moves(store.backend)
        self._nodes = LruCache(NODES)
        self._opened = LruCache(OPENED)
        self._steps = LruCache(THREADS)
        self._summaries = LruCache(SUMMARIES)

    def note_uses(self) -> None:
        """Tell the store what was read: cache is evicted by its last use."""
        uses, self.uses = self.uses, set()
        if uses:
            note_use(self.store.heads, uses)

    def node(self, hash: str, type: str | None = None) -> Node:
        """A node that is referred to. Raises Corrupt, CorruptBlob."""
        found: Node | None = self._nodes.get(hash)
        if found is None:
            found = self._referred(lambda: self.store.node(hash), hash)
            self._nodes.put(hash, found, _weight(found.payload))
        if type is not None and found.type != type:
            raise Corrupt(f"{hash} is a {found.type} where a {type} should be")
        return found

    def entries(self, hash: str) -> Mapping[bytes, Entry]:
        """The entries of a directory node that is referred to. Raises Corrupt."""
        return self._referred(lambda: tree.load(self.store, hash), hash)

    def preserved(self, hash: str) -> Properties | None:
        """What is preserved of a directory itself. Raises Corrupt."""
        return self._referred(lambda: tree.preserved(self.store, hash), hash)

    def thread(self, id: str) -> Seen:
        """Raises NotFound."""
        number = self.moves.number(threads.HEADS + id)
        return _seen(threads.get(self.store, id), number)

    def threads(self) -> Iterator[Seen]:
        """All of them, oldest first, as they are asked for."""
        self.moves.newest(threads.HEADS)
        for name, head in self.store.heads.list(threads.HEADS):
            number = self.moves.number(name, follow=False)
            yield _seen(Thread(name[len(threads.HEADS) :], head), number)

    def steps(self, thread: Thread) -> list[StepRef]:
        """The steps of a thread as its head is. Raises Corrupt."""
        found: list[StepRef] | None = self._steps.get(thread.hash)
        if found is None:
            found = self._referred(lambda: threads.steps(self.store, thread), thread.hash)
            self._steps.put(thread.hash, found, 1)
        return found

    def summary(self, key: str, prefix: str, make: Callable[[], Value]) -> Value:
        """What `make` says about the heads below `prefix`; made again when one has moved."""
        moved = self.moves.newest(prefix).seq
        kept: tuple[int, Value] | None = self._summaries.get(key)
        if kept is None or kept[0] != moved:
            kept = moved, make()
            self._summaries.put(key, kept, 1)
        return kept[1]

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
        return total <= SLOW or self._opened.get(hash) is not None

    def prepare(self, hash: str) -> None:
        """Open and verify a blob, so that `read` need not; may run in any thread."""
        self._open(hash)

    def read(self, hash: str, total: int, offset: int, count: int) -> bytes:
        """`count` bytes at `offset` of a blob of `total` bytes. Raises CorruptBlob."""
        wanted = min(count, total - offset)
        if wanted <= 0:
            return b""
        if wanted == total <= AT_ONCE and self._opened.get(hash) is None:
            try:
                data = self._content(hash, total)
            except NotFound as error:
                raise Corrupt(f"{hash} is referred to, but {error}") from None
        else:
            data = self._verified(hash, total).pread(wanted, offset)
        if len(data) != wanted:
            raise CorruptBlob(f"blob {hash}: {len(data)} bytes where {wanted} should be")
        return data

    def extent(self, hash: str, total: int, offset: int, count: int) -> Extent | None:
        """Where in an open file the bytes stand; None for what is in no file."""
        opened = self._verified(hash, total)
        wanted = min(count, total - offset)
        return Extent(opened.fd, offset, wanted, opened) if opened.fd >= 0 < wanted else None

    def seek(self, hash: str, total: int, offset: int, whence: int) -> int:
        """SEEK_DATA or SEEK_HOLE from an offset inside the blob. Raises Denied (ENXIO)."""
        opened = self._verified(hash, total)
        if opened.fd < 0:
            return offset if whence == os.SEEK_DATA else total
        try:
            return os.lseek(opened.fd, offset, whence)
        except OSError as error:
            raise Denied(error.errno or errno.EIO) from None

    def _verified(self, hash: str, total: int) -> Opened:
        """A blob's descriptor, its content as it should be. Raises CorruptBlob."""
        opened: Opened | None = self._opened.get(hash)
        if opened is None or opened.changed():
            opened = self._open(hash)
        if opened.size != total:
            raise CorruptBlob(f"blob {hash}: {opened.size} bytes, its node says {total}")
        return opened

    def _open(self, hash: str) -> Opened:
        with self._referred(lambda: self.store.blobs.open(hash), hash) as source:
            opened = Opened(source)
        self._opened.put(hash, opened, 1)
        return opened

    def _referred(self, load: Callable[[], Value], hash: str) -> Value:
        try:
            return load()
        except NotFound as error:
            raise Corrupt(f"{hash} is referred to, but {error}") from None


class Opened:
    """A verified blob, open for as long as somebody has this object."""

    __slots__ = ("_data", "_stamp", "fd", "size")

    def __init__(self, source: BinaryIO) -> None:
        self.fd = -1
        self._data = b""
        self._stamp = (0, 0)
        if isinstance(source, BytesIO):
            self._data = source.getvalue()
            self.size = len(self._data)
        else:
            self.fd = os.dup(source.fileno())
            self.size = os.fstat(self.fd).st_size
            self._stamp = self._now()

    def _now(self) -> tuple[int, int]:
        stat = os.fstat(self.fd)
        return stat.st_mtime_ns, stat.st_ctime_ns

    def changed(self) -> bool:
        return self.fd >= 0 and self._now() != self._stamp

    def pread(self, count: int, offset: int) -> bytes:
        if self.fd < 0:
            return self._data[offset : offset + count]
        return os.pread(self.fd, count, offset)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _seen(thread: Thread, number: int) -> Seen:
    """`number`: of the head's newest move, asked for before the head."""
    at_ms = thread.record.get("updatedAt")
    stamp = Stamp(number, at_ms if isinstance(at_ms, int) else LONG_AGO // MILLISECOND)
    return Seen(thread, stamp.ns)


def _weight(value: object) -> int:
    """How many bytes of memory a payload takes, about."""
    if isinstance(value, str):
        return 56 + len(value)
    if isinstance(value, dict):
        return 200 + sum(100 + len(key) + _weight(inner) for key, inner in value.items())
    if isinstance(value, list):
        return 56 + sum(8 + _weight(inner) for inner in value)
    return 32
