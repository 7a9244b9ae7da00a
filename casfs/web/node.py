"""A node or blob: what it holds, what it refers to, what refers to it, why it is kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from starlette.responses import Response

from casfs.checkpoints.revisions import TREE_FIELDS
from casfs.digest import TreeHash
from casfs.errors import CasfsError, NotFound
from casfs.maintenance import gc
from casfs.store import graph
from casfs.store.nodes.directory import File, Symlink
from casfs.store.referrers import Referrers
from casfs.store.store import Store
from casfs.trees import tree
from casfs.web import private_files, texts
from casfs.web.site import Call, time_limit
from casfs.web.texts import Text

PAGE = 100  # references
MAX_REFS = 10_000  # to a node, that are counted
MAX_CHARS = 65_536  # of the content
BLOB = "blob"  # in place of a type
INDEX_LIMIT_S = 2.0
WHY_LIMIT_S = 10.0
LATER = "not all nodes are in the index of references yet: load this page again to go on with it"
TOO_LONG = "this takes longer than a page may; `casfs gc --why` goes on to the end"


class Ref(NamedTuple):
    """`name`: of an entry of a directory, in bytes."""

    hash: str | None
    type: str
    name: bytes | None = None


@dataclass(frozen=True)
class Refs:
    """A window of references from index `first` on, of `total`; `types`: how many of each. `cut`:
    there are more than MAX_REFS; `fault`: why some are not listed."""

    links: Sequence[Ref] = ()
    types: Mapping[str, int] = field(default_factory=dict)
    first: int = 0
    total: int = 0
    cut: bool = False
    fault: str | None = None


@dataclass(frozen=True)
class Page:
    """`tree`: the directory that it is, or leads to; `private`: files beside it that stay here;
    `fault`: what is wrong with its content."""

    hash: str
    type: str
    size: int
    content: Text | None
    fault: str | None
    tree: str | None
    private: Sequence[bytes]
    out: Refs
    into: Refs


@dataclass(frozen=True)
class Reason:
    """Why a blob is kept: the head from which it is reached, and the path; no head: by nothing."""

    head: str | None = None
    path: Sequence[Ref] = ()
    fault: str | None = None


def show(call: Call) -> Response:
    store = call.store
    hash = store.expand(call.path["hash"])
    model = page(store, hash, out=call.index("out"), into=call.index("in"))
    reason = why(store, hash) if call.query.get("why") == "1" else None
    etag = hash if call.query.get("fragment") == "content" and not model.fault else None
    return call.page(
        "node.html", etag=etag, page=model, reason=reason, size=PAGE, name=call.query.get("name")
    )


def page(store: Store, hash: str, out: int = 0, into: int = 0) -> Page:
    """`out`, `into`: indices of the first reference that is listed. Raises NotFound."""
    info = store.blobs.info([hash]).get(hash)
    if info is None:
        raise NotFound(f"no blob {hash} in this store")
    content = None
    fault = None
    root = None
    refs = Refs()
    private: Sequence[bytes] = ()
    [ref] = _typed(store, [hash])
    try:
        if info.purged and info.substitute is None:
            fault = "Its content was purged: deleted for good."
        elif info.type is None:
            content = texts.blob(store, hash, MAX_CHARS)
        else:
            node = store.node(hash)
            content = texts.as_json(node.payload, hash, MAX_CHARS)
            private = private_files.names(store, node)
            root = hash if node.type == "directory" else None
            root = node.payload[TREE_FIELDS[node.type]] if node.type in TREE_FIELDS else root
            refs = _refs(
                _entries(store, TreeHash(node.hash)) if root == hash else _out(store, hash), out
            )
    except CasfsError as error:
        fault = str(error)
    into_refs = _into(store, hash, into)
    return Page(
        hash,
        ref.type,
        size=info.size,
        content=content,
        fault=fault,
        tree=root,
        private=private,
        out=refs,
        into=into_refs,
    )


def _entries(store: Store, hash: TreeHash) -> list[Ref]:
    """Returns what a directory has, with names."""
    refs = []
    for name, entry in tree.load(store, hash).items():
        if isinstance(entry, Symlink):
            refs.append(Ref(None, "symlink", name))
        else:
            type = BLOB if isinstance(entry, File) else "directory"
            refs.append(Ref(entry.digest.hash, type, name))
    return refs


def _out(store: Store, hash: str) -> list[Ref]:
    return _typed(store, graph.refs(store, hash))


def _into(store: Store, hash: str, first: int) -> Refs:
    end = time.monotonic() + INDEX_LIMIT_S
    try:
        with Referrers(store) as index:
            index.catch_up(lambda: time.monotonic() < end)
            hashes = list(islice(index.iterate(hash), MAX_REFS + 1))
    except CasfsError as error:  # the index cannot be written
        return Refs(fault=str(error))
    fault = LATER if time.monotonic() >= end else None
    return _refs(_typed(store, hashes[:MAX_REFS]), first, fault, cut=len(hashes) > MAX_REFS)


def _refs(refs: list[Ref], first: int, fault: str | None = None, *, cut: bool = False) -> Refs:
    if not any(ref.name for ref in refs):
        refs.sort(key=lambda ref: ref.type)
    first = min(first, max(0, len(refs) - 1) // PAGE * PAGE)
    types = Counter(ref.type for ref in refs)
    return Refs(
        refs[first : first + PAGE], types, first=first, total=len(refs), cut=cut, fault=fault
    )


def _typed(store: Store, hashes: Sequence[str]) -> list[Ref]:
    """Returns the hashes with the names of their types."""
    infos = store.blobs.info(hashes)
    names = dict[str, str]()
    refs = []
    for hash in hashes:
        type = infos[hash].type if hash in infos else None
        if type is not None and type not in names:
            try:
                names[type] = store.registry.name(type)
            except CasfsError:
                names[type] = "node of an unknown type"
        missing = "not in this store" if hash not in infos else BLOB
        refs.append(Ref(hash, missing if type is None else names[type]))
    return refs


def why(store: Store, hash: str) -> Reason:
    """Returns as `casfs gc --why`, within a time limit."""
    try:
        with time_limit(WHY_LIMIT_S, TOO_LONG):
            path_from_root = gc.why(store, hash)
    except CasfsError as error:
        return Reason(fault=str(error))
    return (
        Reason()
        if path_from_root is None
        else Reason(path_from_root[0], _typed(store, path_from_root[1:]))
    )
