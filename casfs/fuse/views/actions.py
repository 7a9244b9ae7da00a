"""The view `actions/`: the cached results of commands and of cacheable steps, by their key.

    actions/<key>/key            → the action node: all that the result depends on
    actions/<key>/result         → the action-result node: exit code, stdout, stderr, duration
    actions/<key>/outputs        → the tree of its outputs
    actions/<key>/used-by/<hash> → a step that has this result: the one that made it, or one that
                                 took it from the cache. That of a command is empty: nothing
                                 records who runs one.

An action may get another result, when a damaged one is made again. So no name is bound, and the
key of an action's directory depends on its result. Reading this view does not count as a
use of the result, so it keeps nothing from eviction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from casfs.actions import cache
from casfs.actions.cache import Result
from casfs.backend.protocols import Head
from casfs.digest import NodeHash
from casfs.errors import Corrupt
from casfs.fuse.views.directories import (
    ComposedDirectory,
    StoreDirectory,
    VnodeFactory,
    parse_hash,
)
from casfs.fuse.views.referrers import ReferrerIndex, ReferrersDirectory
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import MILLISECOND, READ_DIRECTORY, Attr, Link, Vnode, child_key
from casfs.store.nodes import head_kinds

if TYPE_CHECKING:
    from casfs.payloads import ThreadStep


class Actions(StoreDirectory):
    """`actions/`: one directory for each cached result."""

    __slots__ = ("_index",)

    def __init__(self, key: bytes, reader: StoreReader, index: ReferrerIndex) -> None:
        super().__init__(key, reader)
        self._index = index

    def binds(self, name: bytes) -> bool:
        return False

    def attr(self) -> Attr:
        moved = self._reader.change_times.latest(cache.HEADS)
        return Attr(READ_DIRECTORY, 0, moved.mtime_ns)

    def lookup(self, name: bytes) -> Vnode | None:
        hash = parse_hash(name)
        if hash is None:
            return None
        head_name = cache.head_name(cast(NodeHash, hash))
        head = self._reader.store.heads.get(head_name)
        if head is None or head_kinds.fault(head_name, head):
            return None
        return self._action(name, head)

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for head_name, head in head_kinds.sound(self._reader.store.heads, cache.HEADS):
            name = head_name[len(cache.HEADS) :].encode("ascii")
            yield name, self._action(name, head)

    def _action(self, name: bytes, head: Head) -> CachedAction:
        return CachedAction(
            child_key(self.key, name + b"/" + head.hash.encode("ascii")),
            reader=self._reader,
            index=self._index,
            action=cast(NodeHash, name.decode("ascii")),
            result=head.hash,
            mtime_ns=head.record["createdAt"] * MILLISECOND,
        )


class CachedAction(ComposedDirectory):
    """`actions/<key>/`: an action and its result. It never changes."""

    __slots__ = ("_action", "_index", "_mtime_ns", "_reader", "_result")

    def __init__(
        self,
        key: bytes,
        reader: StoreReader,
        index: ReferrerIndex,
        action: NodeHash,
        result: NodeHash,
        mtime_ns: int,
    ) -> None:
        super().__init__(key)
        self._reader = reader
        self._index = index
        self._action = action
        self._result = result
        self._mtime_ns = mtime_ns

    def factories(self) -> Mapping[bytes, VnodeFactory]:
        return {
            b"key": partial(Link, target=b"../../nodes/" + self._action.encode("ascii")),
            b"result": partial(Link, target=b"../../nodes/" + self._result.encode("ascii")),
            b"outputs": self._outputs,
            b"used-by": self._users,
        }

    def _outputs(self, key: bytes) -> Link:
        shown = self._reader.shown_tree(self._reader.node(self._result, cache.TYPE), "outputs")
        assert shown is not None
        return Link(key, target=b"../../trees/" + shown.name.encode("ascii"))

    def _users(self, key: bytes) -> Users:
        result = cache.result_of(self._reader.store, self._reader.node(self._result, cache.TYPE))
        return Users(key, self._reader, index=self._index, result=result)


class Users(ReferrersDirectory):
    """`actions/<key>/used-by/`: the steps that have a result. A hit takes over the detail, so they
    are among the referrers of that."""

    __slots__ = ("_result",)
    to_nodes = b"../../../nodes/"

    def __init__(
        self, key: bytes, reader: StoreReader, index: ReferrerIndex, result: Result
    ) -> None:
        super().__init__(key, reader, index, hash=result.detail or result.hash)
        self._result = result

    def lookup(self, name: bytes) -> Vnode | None:
        link = super().lookup(name)
        return link if link is not None and self._is_user(name) else None

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        for name, link in super().entries():
            try:
                is_user = self._is_user(name)
            except Corrupt:  # a damaged node does not fail the listing
                continue
            if is_user:
                yield name, link

    def _is_user(self, name: bytes) -> bool:
        node = self._reader.node(name.decode("ascii"))
        if node.type != "thread-step":
            return False
        step: ThreadStep = node.payload
        cached = step.get("cached")
        if cached is None:  # the one that made it was committed when the result was created
            return step["completedAt"] == self._result.created_at
        return bool(cached["action"] == self._result.action)
