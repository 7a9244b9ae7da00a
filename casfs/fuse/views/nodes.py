"""The view of nodes: any node as a directory, its payload's fields as files.

    .node.json, .type     the node's exact bytes; the name of its type
    a string              a file with the raw text, named as the field
    a ref                 a directory of the same kind; a file if it is a plain blob
    a list of refs        a directory with 0000, 0001, …
    an object of refs     a directory with the object's keys
    anything else         <field>.json, null too
    a turn's workspace    a symlink to its tree, with changes.diff where tool calls changed that
    referrers             the nodes that refer to it, in `nodes/<hash>` only; a field of that name
                          is called %72eferrers

A reference to a node of a thread is a symlink into `nodes/`: threads are long chains, and
a recursive grep must not follow them. Whether an empty list is a list of refs is found by
validating it with one ref in it against the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, cast

from casfs.backend.protocols import BlobInfo
from casfs.checkpoints.revisions import TURN
from casfs.digest import NodeHash
from casfs.errors import Corrupt
from casfs.fuse.views.blobs import BlobFile
from casfs.fuse.views.directories import (
    ComposedDirectory,
    HashDirectory,
    StaticDirectory,
    VnodeFactory,
)
from casfs.fuse.views.files import ComputedFile, TextFile
from casfs.fuse.views.referrers import ReferrerIndex, ReferrersDirectory
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import (
    READ_FILE,
    Y2000_NS,
    Attr,
    Directory,
    Link,
    Vnode,
    child_key,
    make_key,
)
from casfs.store.nodes.node import Node
from casfs.system.paths import printable
from casfs.trees.diff import unified_diff

ANY_HASH = "0" * 64
MAX_NAME_BYTES = 255
REF_BATCH = 500  # references looked up by one query
RESERVED_NAMES = (".", "..", ".node.json", ".type", "referrers")
JSON = ".json"


def pretty(value: Any) -> bytes:
    """Returns indented JSON, with a final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def file_name(text: str) -> bytes:
    """Returns any text as a file name, injectively: invalid characters are percent-encoded."""
    if text in RESERVED_NAMES:
        text = f"%{ord(text[0]):02X}{text[1:]}"
    else:
        text = text.replace("%", "%25").replace("/", "%2F").replace("\0", "%00") or "%"
    name = text.encode("utf-8")
    if len(name) > MAX_NAME_BYTES:
        tail = b"~" + make_key(name).hex().encode("ascii")
        name = name[: MAX_NAME_BYTES - len(tail)] + tail
    return name


class NodeDirectory(ComposedDirectory):
    """`depth`: the number of directories between it and the mount, for its relative links;
    `extra_factories`: entries beside the node's own."""

    __slots__ = ("_depth", "_hash", "_more", "_mtime_ns", "_reader")

    def __init__(
        self,
        key: bytes,
        reader: StoreReader,
        hash: NodeHash,
        depth: int,
        mtime_ns: int = Y2000_NS,
        **extra_factories: VnodeFactory,
    ) -> None:
        super().__init__(key)
        self._reader = reader
        self._hash = hash
        self._depth = depth
        self._mtime_ns = mtime_ns
        self._more = {name.encode(): factory for name, factory in extra_factories.items()}

    @property
    def digest(self) -> str:
        return self._hash

    def factories(self) -> Mapping[bytes, VnodeFactory]:
        fields = _Fields(
            self._reader, self._hash, depth=self._depth, mtime_ns=self._mtime_ns
        ).factories()
        return {**fields, **self._more}


class _Fields:
    """The entries of one node's directory; made for one request."""

    def __init__(self, reader: StoreReader, hash: NodeHash, depth: int, mtime_ns: int) -> None:
        self._reader = reader
        self._node = reader.node(hash)
        self._refs = reader.refs(self._node)
        self._depth = depth
        self._mtime_ns = mtime_ns

    def factories(self) -> dict[bytes, VnodeFactory]:
        node = self._node
        factories: dict[bytes, VnodeFactory] = {
            b".node.json": partial(self._blob, node.hash),
            b".type": partial(TextFile, data=node.type.encode() + b"\n", mtime_ns=self._mtime_ns),
        }
        whole = not isinstance(node.payload, dict)
        fields = {"payload": node.payload} if whole else node.payload
        for key, value in fields.items():
            is_json, factory = self._factory(key, value, whole)
            name = file_name(key + JSON) if is_json else _not_json(file_name(key))
            factories[name] = factory
        if node.type == TURN and (shown := self._reader.turn_tree(node)) is not None:
            target = b"../" * self._depth + b"trees/" + shown.name.encode("ascii")
            factories[b"workspace"] = partial(Link, target=target)
            if fields.get("before") in self._refs:
                trees = self._reader.store, fields["before"], fields["workspace"]
                make = partial(unified_diff.patch, *trees)
                factories[b"changes.diff"] = partial(
                    ComputedFile, make=make, mtime_ns=self._mtime_ns
                )
        return factories

    def _factory(self, key: str, value: Any, whole: bool) -> tuple[bool, VnodeFactory]:
        """Returns whether the field is shown as JSON, and the factory of its vnode."""
        if isinstance(value, str) and value in self._refs:
            return False, partial(self._ref, value)
        of_refs = not whole and isinstance(value, list | dict) and self._of_refs(key, value)
        if of_refs:
            return False, partial(self._directory, key)
        make = partial(field_bytes, self._reader, self._node.hash, None if whole else key)
        return not isinstance(value, str), partial(ComputedFile, make=make, mtime_ns=self._mtime_ns)

    def _of_refs(self, key: str, value: list[Any] | dict[str, Any]) -> bool:
        members = value if isinstance(value, list) else list(value.values())
        if members:
            return all(isinstance(member, str) and member in self._refs for member in members)
        probe = [ANY_HASH] if isinstance(value, list) else {"any": ANY_HASH}
        payload = {**self._node.payload, key: probe}
        node = Node(
            self._node.hash, self._node.type, type_hash=self._node.type_hash, payload=payload
        )
        return ANY_HASH in self._reader.refs(node)

    def _blob(self, hash: str, key: bytes) -> Vnode:
        return ref_factory(
            self._reader, hash, depth=self._depth, mtime_ns=self._mtime_ns, plain=True
        )(key)

    def _ref(self, hash: str, key: bytes) -> Vnode:
        return ref_factory(self._reader, hash, depth=self._depth, mtime_ns=self._mtime_ns)(key)

    def _directory(self, field: str, key: bytes) -> Vnode:
        return Refs(
            key,
            self._reader,
            hash=self._node.hash,
            field=field,
            depth=self._depth + 1,
            mtime_ns=self._mtime_ns,
        )


class Refs(Directory):
    """A field that is a list or an object of refs, at `depth`. There may be thousands: `lookup`
    loads only the named one."""

    __slots__ = ("_depth", "_field", "_hash", "_mtime_ns", "_reader")

    def __init__(
        self, key: bytes, reader: StoreReader, hash: NodeHash, field: str, depth: int, mtime_ns: int
    ) -> None:
        super().__init__(key)
        self._reader = reader
        self._hash = hash
        self._field = field
        self._depth = depth
        self._mtime_ns = mtime_ns

    def lookup(self, name: bytes) -> Vnode | None:
        hash = _find_ref(self._value(), name)
        if hash is None:
            return None
        return ref_factory(self._reader, hash, depth=self._depth, mtime_ns=self._mtime_ns)(
            child_key(self.key, name)
        )

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        remaining = iter(_named_refs(self._value()))
        while batch := dict(islice(remaining, REF_BATCH)):
            factories = ref_factories(
                self._reader, batch, depth=self._depth, mtime_ns=self._mtime_ns
            )
            yield from StaticDirectory(self.key, factories).entries()

    def _value(self) -> list[str] | dict[str, str]:
        value: list[str] | dict[str, str] = self._reader.node(self._hash).payload[self._field]
        return value


def _named_refs(value: list[str] | dict[str, str]) -> Iterator[tuple[bytes, str]]:
    if isinstance(value, list):
        return ((b"%04d" % index, hash) for index, hash in enumerate(value))
    return ((file_name(key), hash) for key, hash in value.items())


def _find_ref(value: list[str] | dict[str, str], name: bytes) -> str | None:
    text = printable(name)
    if isinstance(value, list):
        index = int(text) if text.isascii() and text.isdigit() else len(value)
        return value[index] if index < len(value) and b"%04d" % index == name else None
    if text in value and file_name(text) == name:
        return value[text]
    return next((hash for key, hash in value.items() if file_name(key) == name), None)


def field_bytes(reader: StoreReader, hash: NodeHash, field: str | None) -> bytes:
    """Returns a field of a payload (None: all of it): a string as it is, other values as JSON."""
    payload = reader.node(hash).payload
    value = payload if field is None else payload[field]
    return value.encode("utf-8") if isinstance(value, str) else pretty(value)


def ref_factories(
    reader: StoreReader, hashes: Mapping[bytes, str], depth: int, mtime_ns: int
) -> dict[bytes, VnodeFactory]:
    """Returns the factories for references in a directory at `depth`, by one query."""
    infos = reader.info(set(hashes.values()))
    return {
        name: partial(_make_ref, reader, hash, infos.get(hash), depth, mtime_ns)
        for name, hash in hashes.items()
    }


def ref_factory(
    reader: StoreReader, hash: str, depth: int, mtime_ns: int = Y2000_NS, *, plain: bool = False
) -> VnodeFactory:
    """Returns the factory for a reference in a directory at `depth`. `plain`: shows the bytes,
    even of a node."""
    info = reader.info([hash]).get(hash)
    if plain and info is not None:
        info = BlobInfo(info.size, type=None)
    return partial(_make_ref, reader, hash, info, depth, mtime_ns)


def _make_ref(
    reader: StoreReader, hash: str, info: BlobInfo | None, depth: int, mtime_ns: int, key: bytes
) -> Vnode:
    if info is None:
        raise Corrupt(f"{hash} is referred to, but not in this store; try `casfs fsck`")
    if info.type is None:
        attr = Attr(READ_FILE, info.size, mtime_ns)
        return BlobFile(key, reader.blobs, hash=hash, attr=attr)
    if reader.store.registry.name(info.type).startswith("thread-"):
        return Link(key, b"../" * depth + b"nodes/" + hash.encode("ascii"), mtime_ns)
    return NodeDirectory(key, reader, hash=cast(NodeHash, hash), depth=depth + 1, mtime_ns=mtime_ns)


def _not_json(name: bytes) -> bytes:
    """Distinguishes a field named `x.json` from the field `x` that is shown as JSON."""
    return name[: -len(JSON)] + b"%2Ejson" if name.endswith(JSON.encode()) else name


def nodes(key: bytes, reader: StoreReader, index: ReferrerIndex) -> HashDirectory:
    """`nodes/`: any node of the store, by hash."""

    def find(key: bytes, hash: str) -> Vnode | None:
        info = reader.info([hash]).get(hash)
        if info is None or info.type is None:
            return None
        referrers = partial(ReferrersDirectory, reader=reader, index=index, hash=hash)
        return NodeDirectory(key, reader, cast(NodeHash, hash), depth=2, referrers=referrers)

    return HashDirectory(key, find)
