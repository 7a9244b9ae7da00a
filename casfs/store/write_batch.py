"""Write transactions: a Batch collects blobs, nodes and head moves and publishes them together.

This is the only way to write. Every node is checked when it is added: its payload against
its schema, the rules that a schema cannot state (`casfs.store.nodes.node.CHECKS`), and closure:
each reference, the type included, must be in the store or in this batch, so nothing meets a
dangling one; only a ref that its schema marks as local, of a node that another store made
(`put_encoded`), may be one. Memory is bounded: staged blobs
are published in parts once there are many, heads move only at the end. On an exception no
head moves, and the parts published so far are garbage for gc. A batch is not thread-safe.

A blob is *local* or *work*. A local one is recorded here alone: it has a mark in the store, and is
hidden from listings and remotes, as what only local trees reach (`casfs.store.local_trees`). All
else is work.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, cast

from casfs import canonical
from casfs.backend import protocols
from casfs.backend.protocols import META, Backend, BlobInfo, Head, HeadName, Staged, Swap, discard
from casfs.digest import Digest, NodeDigest, NodeHash, TimesHash, TreeDigest
from casfs.errors import Conflict, Invalid, NotFound
from casfs.store.nodes import head_kinds, node
from casfs.store.nodes.ref_collectors import Ref
from casfs.store.nodes.registry import Registry, compile_schema, head_name
from casfs.store.nodes.schema import Schema, check_document

PUBLISH_BATCH_BLOBS = 16384
PUBLISH_BATCH_BYTES = 32 << 20  # held in memory
LOOKUP_MIN_BLOBS = 64  # up to fewer, publishing them is cheaper than looking them up


class Batch:
    def __init__(self, backend: Backend, registry: Registry) -> None:
        self.backend = backend
        self.blobs = backend.blobs
        self._registry = registry
        self._staged: dict[str, Staged] = {}
        self._held_bytes = 0
        self._types: dict[str, tuple[str, Schema]] = {}  # by name
        self._named: dict[str, str] = {}  # the hashes of schemas that were put here
        self._documents: dict[str, Any] = {}  # schemas that were put here, by hash
        # The type of each blob that is known to be stored, or is staged here, by hash. None: plain
        # bytes.
        self._known_types: dict[str, str | None] = {}
        self._sizes: dict[str, int] = {}  # of what was added here
        self._require: set[str] = set()
        self._has_times: bool | None = None
        self._swaps: list[Swap] = []
        self._is_local = False  # whether what is put may be local
        self._work: set[str] = set()  # new blobs that are work though `_is_local`
        self._refs_put: dict[str, Collection[str]] = {}  # of nodes that may be local
        self.new_bytes = 0  # of blobs that the store did not have when they were added

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    def discard(self) -> None:
        discard(self._staged.values())

    # -- blobs --------------------------------------------------------------------------

    def put(self, data: bytes) -> Digest:
        return self.put_stream(io.BytesIO(data))

    def put_stream(self, source: BinaryIO) -> Digest:
        """Stores the rest of `source`, in constant memory."""
        return self.put_staged(self.blobs.stage(source))

    def put_staged(self, staged: Staged) -> Digest:
        """Adds what `Blobs.stage` returned, perhaps in another thread."""
        if staged.digest.hash in self._known_types:
            # Other members of its pack are to be published yet.
            discard([staged], keep_packs=True)
            # gc may delete what was stored when it was looked up: the commit must check.
            self._require.add(staged.digest.hash)
        else:
            self._add(staged)
        return staged.digest

    def adopt(
        self,
        digest: Digest,
        staged: Staged | None,
        info: BlobInfo | None,
        *,
        is_work: bool = False,
    ) -> None:
        """Adds a blob that was read elsewhere: `staged`, or `info` where it is stored already;
        neither where this batch `knows` it, or gets it later. `is_work`: it is work from now on,
        whatever `settle` will name."""
        # A local batch marks only new blobs, so only a new one has to be exempted by `_work`.
        if is_work and info is None:
            self._work.add(digest.hash)
        if staged is not None:
            self.put_staged(staged)
        elif info is not None:
            # `info` was read before, perhaps by another process: this batch may know better by now.
            # Not required: the node that will refer to it does that.
            self._known_types.setdefault(digest.hash, info.type)

    def knows(self, hash: str) -> bool:
        """Returns True for a blob known to be stored, or staged here. Callable from any thread."""
        return hash in self._known_types

    def require(self, hash: str) -> bool:
        """Requires a stored blob to be there still at commit. Returns False if it is not now."""
        self._look_up([hash])
        # One that is not here would fail the commit, whatever the caller does without it.
        if hash in self._known_types:
            self._require.add(hash)
        return hash in self._known_types

    # -- local blobs ----------------------------------------------------------------------

    def begin_local(self) -> None:
        """From here on what is put is stored with the mark of local blobs, so it is hidden from
        `Store.shown` until `settle`, and after a crash."""
        self._is_local = True

    def settle(self, work: Iterable[str]) -> None:
        """Ends `begin_local`, once all is committed. With the next commit these and what they reach
        are work: `publication` takes the mark from all that is required, and from what is marked
        below it. All other blobs stay local."""
        self._is_local = False
        self._require.update(work)

    def _marked_below(self, hashes: Iterable[str]) -> set[str]:
        """Returns what is marked as local among these, and what of that refers to, and so on. An
        unmarked node refers to nothing that is marked, so nothing below it is looked at."""
        marked: set[str] = set()
        waiting = set(hashes)
        while waiting:
            new = self.blobs.local_among(waiting) - marked
            marked |= new
            waiting = {ref for hash in new for ref in self._refs_of(hash)} - marked
        return marked

    def _refuse_local(self, hashes: set[str]) -> None:
        """Raises Invalid where a node from elsewhere refers to what is local here: accepted, the
        node would make that work. The error is that of a missing blob, so that who sent the node
        does not learn that we have it."""
        if not hashes:
            return
        # What this batch requires becomes work by it in any case.
        hidden = self.blobs.local_among(hashes) - self._require
        if hidden:
            # In the words of `check_types`, for that reason.
            raise Invalid(f"refers to {min(hidden)}, which is not in this store; put it first")

    def _refs_of(self, hash: str) -> Collection[str]:
        if hash not in self._refs_put:
            blob = self.blobs.get(hash)
            if blob.type in (None, META):
                return ()
            type_hash, payload = node.decode(hash, blob.data)
            _, schema = self._compiled(type_hash)
            self._refs_put[hash] = [ref.hash for ref in schema.refs(payload)]
        return self._refs_put[hash]

    # -- nodes --------------------------------------------------------------------------

    def put_node(self, type: str, payload: Any) -> NodeDigest:
        """Stores a node of the registered type. Raises Invalid, NotFound (the type)."""
        return self._put_node(self._type(type)[0], payload)

    def put_known(self, type: str, payload: Mapping[str, Any]) -> NodeDigest:
        """As `put_node`, without optional members that are empty, or that a store of an older casfs
        does not know."""
        schema = self._type(type)[1].document
        required = schema["required"]
        known = schema["properties"]
        members: dict[str, Any] = {}
        for name, value in payload.items():
            if name in required or (value and name in known):
                members[name] = value
        return self.put_node(type, members)

    def put_directory(self, payload: Any) -> TreeDigest:
        return cast(TreeDigest, self.put_node("directory", payload))

    def put_times(self, payload: Any) -> TimesHash | None:
        """Stores a node of times; None where the store has none."""
        if not self.has_times():
            return None
        times_node = self.put_node("times", payload)
        return cast(TimesHash, times_node.hash)

    def has_times(self) -> bool:
        """Whether the store can have nodes of times; one of an older casfs cannot."""
        # Only a yes is kept: an import may put the type later in this batch.
        if self._has_times is None:
            with suppress(NotFound):
                self._has_times = bool(self._type("times"))
        return bool(self._has_times)

    def put_encoded(self, data: bytes) -> NodeDigest:
        """Stores the bytes of a node that was made elsewhere; its type must be here by now, a
        local ref's target need not. Raises Invalid: not canonical, or not of its type."""
        digest = NodeDigest.of(data)
        value = canonical.parse(data)
        if not isinstance(value, dict) or value.keys() != {"payload", "type"}:
            raise Invalid(f"{digest}: not a node")
        type_hash = value["type"]
        payload = value["payload"]
        # First: a caller may go on after Invalid and commit what the batch has. The bytes are
        # compared: that their hash is known proves nothing, it may be of a plain blob.
        if node.encode(type_hash, payload) != data:
            raise Invalid(f"{digest}: its bytes are not canonical")
        if type_hash == META:
            check_document(payload)
            self._add(Staged(digest, data, type=META))
        else:
            self._put_node(type_hash, payload, is_foreign=True)
        # Nodes that follow may be of this type, which the registry cannot read before the commit.
        if type_hash == META or self._compiled(type_hash)[0] == META:
            self._documents[digest.hash] = payload
        return digest

    def _put_node(self, type_hash: str, payload: Any, *, is_foreign: bool = False) -> NodeDigest:
        name, schema = self._compiled(type_hash)
        # First: the checks below need valid JSON.
        data = node.encode(type_hash, payload)
        schema.check(payload)
        if check := node.CHECKS.get(name):
            check(payload)
        if name == META:
            check_document(payload)
        refs = schema.refs(payload)
        # In a local batch the node makes nothing work. Refs to blobs that this batch has added are
        # no disclosure either: whoever sent the node sent them, too.
        if is_foreign and not self._is_local:
            # A weak ref to what is private here leads nowhere, as one to what is absent.
            weak = {ref.hash for ref in refs if ref.is_weak} - self._sizes.keys()
            hidden = self.blobs.local_among(weak) - self._require if weak else set()
            refs = [ref for ref in refs if not (ref.is_weak and ref.hash in hidden)]
            self._refuse_local({ref.hash for ref in refs} - self._sizes.keys())
        needed_refs = self._present(refs) if is_foreign else refs
        self._check_refs(name, type_hash, refs=needed_refs, payload=payload)
        digest = NodeDigest.of(data)
        if self._is_local:
            # For `_marked_below`, which would read the node again to take marks away; what is in
            # `_work` is published without one.
            marked_refs = [ref.hash for ref in refs if ref.hash not in self._work]
            self._refs_put[digest.hash] = marked_refs
        self._add(Staged(digest, data, type=type_hash))
        return digest

    def put_schema(self, document: Any, *, builtin: bool = False) -> NodeDigest:
        """Registers a schema under its `$id`. Raises Invalid, Conflict (a built-in name).
        `builtin`: the document comes with casfs, and its tests have checked it."""
        name = document["$id"] if builtin else check_document(document)
        # The meta-schema cannot name its own hash as its type.
        meta_type = META if name == META else self._type(META)[0]
        data = node.encode(meta_type, document)
        digest = NodeDigest.of(data)
        old = self.head(head_name(name))
        changed = old is None or old.hash != digest.hash
        if old is not None and changed and old.record.get("builtin") and not builtin:
            raise Conflict(f"the type {name!r} is built in; choose another $id")
        if name != META:
            schema = self._type(META)[1]
            schema.check(document)
            self._check_refs(META, meta_type, refs=schema.refs(document), payload=document)
        self._add(Staged(digest, data, type=meta_type))
        self._documents[digest.hash] = document
        self._named[name] = digest.hash
        # From here on the name leads to this version.
        self._types.pop(name, None)
        # `init` registers all built-in types each time: equal ones must not fill the journal.
        if changed:
            self.swap(head_name(name), old, Head(digest.hash, {"builtin": builtin}))
        return digest

    def _type(self, name: str) -> tuple[str, Schema]:
        if name not in self._types:
            hash = self._named.get(name) or self._registry.current(name)
            self._types[name] = hash, self._compiled(hash)[1]
        return self._types[name]

    def _present(self, refs: list[Ref]) -> list[Ref]:
        """Returns the refs without local and weak ones to what is not here."""
        self._look_up({ref.hash for ref in refs if ref.may_dangle})
        return [ref for ref in refs if not ref.may_dangle or ref.hash in self._known_types]

    def _check_refs(self, name: str, type_hash: str, refs: list[Ref], payload: Any) -> None:
        """Raises Invalid for a node with a dangling reference, one to a node of another type, or
        one that states another size."""
        # Only the type is to be looked up, and it was, for a node before.
        if not refs and type_hash in self._require:
            return
        hashes = {ref.hash for ref in refs}
        needed = {type_hash, *hashes}
        # What is cached does not tell that a blob is still stored: `_require` has that checked in
        # the transaction, where gc cannot come between.
        cached = self._registry.cached(needed)
        typed = {ref.hash for ref in refs if ref.cas_type is not None}
        types: dict[str, str | None] = {}
        for hash, info in cached.items():
            # Plain bytes may have become a node.
            if info.type is not None or hash not in typed:
                types[hash] = info.type
        self._look_up(needed - types.keys())
        for hash in needed & self._known_types.keys():
            types[hash] = self._known_types[hash]
        node.check_types(refs, types, self.type_name)
        # `info` is a lambda, as it costs a query, and few types of nodes need it.
        node.check_targets(name, payload, info=lambda: self.info(hashes), type_name=self.type_name)
        # Not a difference from the keys, which walks through all that is staged.
        self._require.update([hash for hash in needed if hash not in self._staged])

    def info(self, hashes: set[str]) -> dict[str, BlobInfo]:
        """Returns size and type of blobs that were added here or are stored."""
        added_hashes = hashes & self._sizes.keys()
        sizes = self._sizes
        added = {hash: BlobInfo(sizes[hash], self._known_types[hash]) for hash in added_hashes}
        cached = self._registry.cached(hashes - added_hashes)
        looked_up = self.blobs.info(hashes - added_hashes - cached.keys())
        self._cache(looked_up)
        return looked_up | cached | added

    def _cache(self, infos: Mapping[str, BlobInfo]) -> None:
        # As in `_not_stored`: what is elsewhere, or purged, is not here.
        self._registry.cache({hash: info for hash, info in infos.items() if info.is_here})

    def _compiled(self, type_hash: str) -> tuple[str, Schema]:
        """Returns (name, schema) of a type that is in this batch or in the store."""
        document = self._documents.get(type_hash)
        if document is None:
            return self._registry.compiled(type_hash)
        return document["$id"], compile_schema(type_hash, document)

    def type_name(self, type_hash: str | None) -> str:
        if type_hash is None:
            return "blob"
        return META if type_hash == META else self._compiled(type_hash)[0]

    # -- heads --------------------------------------------------------------------------

    def swap(self, name: HeadName, old: Head | None, new: Head | None) -> None:
        """Moves a head at commit, which raises Conflict when it is not `old` any more. Raises
        Invalid for a name or a record that its kind does not have."""
        if new is not None and (fault := head_kinds.fault(name, new)):
            raise Invalid(f"head {name!r}: {fault}")
        self._swaps.append(Swap(name, old, new))

    def head(self, name: HeadName) -> Head | None:
        """Returns the value of a head after the moves so far."""
        for swap in reversed(self._swaps):
            if swap.name == name:
                return swap.new
        return self.backend.heads.get(name)

    def move(self, name: HeadName, old: Head, hash: NodeHash, record: Mapping[str, Any]) -> Head:
        """Swaps to a new pair, and returns it for the next move."""
        new = Head(hash, record)
        self.swap(name, old, new)
        return new

    def commit(self) -> None:
        """Makes everything durable, then moves the heads. Raises Conflict, NotFound, Failed."""
        try:
            # Also for `_require` alone: it is checked, and marks of local blobs are taken away.
            if self._staged or self._swaps or self._require:
                self._publish(self._swaps)
        except BaseException:
            self.discard()
            raise
        # A batch may be committed on the way, and go on.
        self._swaps = []

    def _publish(self, swaps: list[Swap]) -> None:
        """`swaps` is empty for a part: the heads wait for the end."""
        new = self._not_stored()
        try:
            stored = self.backend.publish(*self.publication(new, swaps))
        except NotFound:
            self._registry.forget_plain()  # one of them may be gone
            if len(new) == len(self._staged):
                raise
            # A blob that was left out as stored may be what gc has deleted since: with all of them
            # only a reference can be missing.
            new = self._staged
            stored = self.backend.publish(*self.publication(new, swaps))
        self._note_published(new, stored)

    def publication(
        self, new: Mapping[str, Staged] | None = None, swaps: list[Swap] | None = None
    ) -> protocols.Publication:
        """Returns what is to be published: by default all of a small batch, for a group."""
        blobs = self._staged if new is None else new
        moves = self._swaps if swaps is None else swaps
        # `local` get the mark, or keep it. Anything else that is staged or required loses it. So a
        # local batch marks all that is new, and takes no mark; another one takes the mark of all
        # that it stages or requires and of what they reach, but of nothing that only a head names.
        # A record may name blobs that no node of this batch refers to; those that it named before
        # are kept alive by the head as it is.
        head_targets = set[str]().union(*map(protocols.new_targets, moves))
        if self._is_local:
            require = (self._require | head_targets) - blobs.keys()
            # What is required keeps its mark, too: a ref of a local node makes nothing work.
            local = (blobs.keys() | require) - self._work
        else:
            # What has no mark refers to nothing that has one, so marks go from all that is below,
            # too.
            below = self._marked_below(self._require)
            require = (self._require | head_targets | below) - blobs.keys()
            # A head makes nothing work: that of a local tree leads to what is local. So what only a
            # head names keeps the mark that it has.
            local = head_targets - self._require - below - blobs.keys()
        staged = list(blobs.values())
        return protocols.Publication(staged, moves, require=require, local=local)

    def conclude(self, result: set[str] | BaseException) -> None:
        """Ends a batch with what publishing all of it returned or raised."""
        if isinstance(result, BaseException):
            self.discard()
        else:
            self._note_published(self._staged, result)
            self._swaps = []

    def _note_published(self, new: Mapping[str, Staged], stored: set[str]) -> None:
        left_out = [staged for hash, staged in self._staged.items() if hash not in new]
        # No member of a pack is ever left out, so no pack loses its file.
        discard(left_out)
        # `_add` counted all as new.
        stored.update(self._staged.keys() - new.keys())
        self.new_bytes -= sum(self._staged[hash].new_bytes for hash in stored)
        self._registry.cache(
            {
                hash: BlobInfo(staged.digest.size_bytes, staged.type)
                for hash, staged in new.items()
                if staged.type is not None
            }
        )
        # `_known_types` and `_sizes` stay: nodes to come may refer to what was published.
        self._staged = {}
        self._require = set()
        self._held_bytes = 0

    def _not_stored(self) -> dict[str, Staged]:
        """Returns the staged blobs that the store lacks (or has untyped); where they are few and
        rows, all, without a look at the store."""
        new = dict(self._staged)
        if len(new) < LOOKUP_MIN_BLOBS:
            are_rows = all(staged.is_row for staged in new.values())
            if are_rows:
                return new
        # Members of a pack were looked up just now, before they were written to it.
        unchecked = [hash for hash, staged in new.items() if staged.member is None]
        for hash, info in self.blobs.info(unchecked).items():
            is_enough = info.type is not None or self._staged[hash].type is None
            # A remote or awaited blob is published: that brings its content here. A purged one is
            # not: that would store nothing.
            if is_enough and (info.is_here or info.purged):
                self._known_types[hash] = info.type
                self._require.add(hash)
                del new[hash]
        return new

    def _add(self, staged: Staged) -> None:
        hash = staged.digest.hash
        if hash in self._known_types and (
            self._known_types[hash] is not None or staged.type is None
        ):
            self._require.add(hash)
            return
        if hash in self._staged:
            # Plain bytes so far, now a node. Put again at the end of the dictionary: blobs are
            # published in its order, and a node must come after its references.
            discard([self._staged.pop(hash)], keep_packs=True)
        else:
            self.new_bytes += staged.new_bytes
        self._staged[hash] = staged
        self._known_types[hash] = staged.type
        self._sizes[hash] = staged.digest.size_bytes
        self._held_bytes += len(staged.data or b"")
        full = self._held_bytes >= PUBLISH_BATCH_BYTES or len(self._staged) >= PUBLISH_BATCH_BLOBS
        # All members of a pack are published at once, and others may be to come.
        if full and staged.member is None:
            self._publish([])

    def _look_up(self, hashes: Iterable[str]) -> None:
        unknown = [hash for hash in hashes if hash not in self._known_types and hash != META]
        if unknown:
            infos = self.blobs.info(unknown)
            types = {hash: info.type for hash, info in infos.items()}
            self._known_types.update(types)
            self._cache(infos)
