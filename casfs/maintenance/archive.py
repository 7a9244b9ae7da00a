"""Export and import of archives: the closure of roots as one file.

A tar, compressed with zstd where its name ends in `.zst`:

    manifest.json          {"format", "roots", "heads": [{name, hash, record}]}
    nodes/<hash>           canonical bytes of a node
    blobs/<hash>           any other bytes
    end.json               {"members": number of nodes and blobs, "seal": hash of the bytes of
                           the manifest and of the members' names}

What was purged is left out; its tombstone is a head, its substitute a member (`archive_purged`).

Refs come before the nodes that have them, in an order that the roots alone determine, and
members carry no time and no owner: equal content gives equal files. An import is therefore
one pass, made twice: first against a backend that stores nothing, with the checks of every
put (digest, schema, refs), then for real. A truncated or altered file fails the first pass
and changes nothing.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast

from casfs import canonical
from casfs.backend.derived import open_stream
from casfs.backend.protocols import Backend, Head, HeadName, targets
from casfs.config import IMPORT
from casfs.digest import Digest, is_hash
from casfs.errors import Conflict, Corrupt, CorruptBlob, Failed, Invalid, NotFound, Refused
from casfs.exchange import arrivals
from casfs.exchange.portable_heads import is_future, mismatch, without_processes
from casfs.maintenance import archive_purged
from casfs.maintenance.archive_manifest import (
    END,
    FORMAT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    Seal,
    parse_manifest,
)
from casfs.maintenance.archive_members import Member, members
from casfs.maintenance.import_dry_run import DryRunBackend
from casfs.store import graph, local_trees, removals, tombstones
from casfs.store.nodes import node
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system import zstd

FORM = tarfile.GNU_FORMAT
MAX_END_BYTES = 1 << 16
Progress = Callable[[int, int], None]  # members and bytes so far


@dataclass(slots=True)
class Exported:
    """`skipped`: blobs that the receiver has; `purged`: that were purged and have no substitute."""

    members: int = 0
    bytes: int = 0
    skipped: int = 0
    purged: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Imported:
    """`purged`: number of contents that were purged where the archive is from, and have a tombstone
    here now; `kept`: hashes of those whose content is here, and stays. `heads`: names here that are
    new or have moved; `replaced`: those that have moved, with the hash before; `renamed`: names in
    the archive, with those here."""

    members: int = 0
    bytes: int = 0
    new_bytes: int = 0
    heads: list[str] = field(default_factory=list)
    replaced: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    purged: int = 0
    kept: list[str] = field(default_factory=list)


# -- export -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """`have`: hashes that are left out; `with_local`: what local refs lead to as well."""

    have: Collection[str] = ()
    compress: bool = False
    with_local: bool = False
    progress: Progress = lambda members, bytes: None


DEFAULTS = ExportOptions()


def export(
    store: Store,
    roots: Iterable[str],
    heads: Iterable[tuple[HeadName, Head]],
    target: BinaryIO,
    options: ExportOptions = DEFAULTS,
) -> Exported:
    """Writes the closure of `roots` and `heads`."""
    leaving_heads = arrivals.leaving(heads)
    named = sorted(
        (name, without_processes(name, head, leaving_heads)) for name, head in leaving_heads.items()
    )
    start = sorted({*roots, *(head.hash for _, head in named)})
    if options.with_local:
        named += _local_heads(store, start)
    record_refs = sorted(hash for _, head in named for hash in targets(head))
    reached = archive_purged.reached(store, [*start, *record_refs], with_local=options.with_local)
    named += sorted((tombstones.head_name(tombstone.hash), tombstone.head) for tombstone in reached)
    records = [{"name": name, "hash": h.hash, "record": dict(h.record)} for name, h in named]
    manifest = canonical.encode({"format": FORMAT, "roots": start, "heads": records})
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise Refused(f"{len(records)} heads are too many for one archive; export them in parts")
    substitutes = {tombstone.hash: tombstone.substitute for tombstone in reached}
    done = Exported()
    seal = Seal(manifest)
    done.purged = sorted(tombstone.hash for tombstone in reached if not tombstone.substitute)
    compressed = zstd.compressed(target) if options.compress else nullcontext(target)
    with compressed as out, tarfile.open(fileobj=out, mode="w|", format=FORM) as tar:
        _add(tar, MANIFEST, manifest)
        # A node comes after the substitutes of all that it refers to: an import reads once.
        for hash in graph.post_order(
            store, [*start, *record_refs], with_local=options.with_local, substitutes=substitutes
        ):
            if hash in substitutes:
                continue
            if hash in options.have:
                done.skipped += 1
            else:
                seal.add(_add_blob(store, tar, hash=hash, done=done))
                options.progress(done.members, done.bytes)
        _add(tar, END, canonical.encode(seal.value()))
    return done


def _local_heads(store: Store, roots: Iterable[str]) -> Iterator[tuple[HeadName, Head]]:
    """Yields the heads of the local trees of all nodes that roots reach, by their names."""
    types = {store.registry.current(name) for name in local_trees.TYPES}
    hashes = sorted(graph.walk(store, roots, with_local=True))
    infos = store.blobs.info(hashes)
    for hash in hashes:
        if infos[hash].type in types and (local := local_trees.get(store, hash)):
            yield local_trees.head_name(hash), local.head


def _add_blob(store: Store, tar: tarfile.TarFile, hash: str, done: Exported) -> str:
    """Adds a member; returns its name."""
    info = store.blobs.info([hash])[hash]
    with open_stream(store.blobs, hash) as source:
        name = f"{'blobs' if info.type is None else 'nodes'}/{hash}"
        tar.addfile(_member(name, info.size), source)
    done.members += 1
    done.bytes += info.size
    return name


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_member(name, len(data)), io.BytesIO(data))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o444
    return member


# -- import -----------------------------------------------------------------------------------


def load(
    store: Store,
    source: Path,
    progress: Progress = lambda members, bytes: None,
    *,
    with_local: bool = False,
) -> Imported:
    """Imports an archive, of which it reads everything twice; `with_local`: the local trees of what
    is new here as well. An error changes nothing.

    Raises NotFound (the file), Failed (reading it), Corrupt (its content), Conflict (a head
    that has another value in this store).
    """
    dry_run = Store(DryRunBackend(store.backend), store.root)
    once = _import_pass(dry_run, source, progress=progress, with_local=with_local)

    def again(members: int, size: int) -> None:
        progress(once.members + members, once.bytes + size)

    return _import_pass(store, source, progress=again, with_local=with_local)


def _import_pass(store: Store, source: Path, progress: Progress, with_local: bool) -> Imported:
    done = Imported()
    backend = store.backend
    with _opened(source) as raw, _errors_name(source):
        tar_members = members(raw)
        manifest = parse_manifest(next(tar_members, None))
        manifest = _with_local_trees(backend, manifest, with_local=with_local)
        with store.batch() as batch:
            purged = archive_purged.Taking(batch, manifest.tombstones)
            if with_local:
                batch.begin_local()
            nodes = _put_members(
                batch, tar_members, manifest=manifest, purged=purged, done=done, progress=progress
            )
            purged.finish()
            done.purged = purged.taken
            done.kept = purged.kept
            if with_local:
                batch.commit()
                batch.settle(filter(batch.require, _work_roots(manifest)))
            _heads(store, batch, manifest=manifest, purged=purged, nodes=nodes, done=done)
        done.new_bytes = batch.new_bytes
        if absent := set(manifest.roots) - backend.blobs.info(manifest.roots).keys():
            raise Corrupt(f"its root {min(absent)} is missing")
    return done


def _with_local_trees(backend: Backend, manifest: Manifest, *, with_local: bool) -> Manifest:
    """Returns a manifest with the local trees of new nodes, where a person asks for them: they say
    what a restore of the node writes."""
    local = {name for name, _ in manifest.heads if name.startswith(local_trees.HEADS)}
    known = backend.blobs.info({*map(local_trees.node_of, local)})
    dropped = {*map(local_trees.head_name, known)} if with_local else local
    return replace(
        manifest,
        heads=[named_head for named_head in manifest.heads if named_head[0] not in dropped],
    )


def _work_roots(manifest: Manifest) -> list[str]:
    heads = [
        named_head
        for named_head in manifest.heads
        if not named_head[0].startswith(local_trees.HEADS)
    ]
    return [*manifest.roots, *(hash for _, head in heads for hash in targets(head))]


@contextmanager
def _errors_name(source: Path) -> Iterator[None]:
    """Turns errors of the file's content into Corrupt with the file's name."""
    try:
        yield
    except (Conflict, CorruptBlob):  # of this store, not of the file
        raise
    except (Invalid, NotFound, Corrupt) as error:
        raise Corrupt(f"{source}: {error}") from None


def _put_members(
    batch: Batch,
    tar_members: Iterator[Member],
    manifest: Manifest,
    purged: archive_purged.Taking,
    done: Imported,
    progress: Progress,
) -> dict[str, bytes]:
    """Puts the blobs and nodes; returns the bytes of those nodes that heads lead to."""
    seal = Seal(manifest.data)
    nodes = {purged.source(head.hash): b"" for _, head in manifest.heads}
    for member in tar_members:
        if member.name == END:
            if member.size > MAX_END_BYTES or canonical.parse(member.readall()) != seal.value():
                raise Corrupt(f"end.json does not match the manifest and {done.members} members")
            if next(tar_members, None) is not None:
                raise Corrupt("data after end.json")
            return {hash: data for hash, data in nodes.items() if data}
        kind, _, hash = member.name.partition("/")
        if kind not in ("nodes", "blobs") or not is_hash(hash):
            raise Invalid(f"unexpected member {member.name!r}")
        data = b"" if purged.refuses(hash) else _put(batch, kind, hash=hash, member=member)
        purged.note_stored(hash)
        if hash in nodes:
            nodes[hash] = data
        seal.add(member.name)
        done.members += 1
        done.bytes += member.size
        progress(done.members, done.bytes)
    raise Corrupt("end.json is missing: the file is truncated")


def _put(batch: Batch, kind: str, hash: str, member: Member) -> bytes:
    """Returns the bytes of a node; none of a blob."""
    data = b""
    if kind == "blobs":
        actual_hash = batch.put_stream(cast(BinaryIO, member)).hash
    else:
        node.check_size(member.size)  # before it is read
        data = member.readall()
        actual_hash = Digest.of(data).hash
        if actual_hash == hash:
            _put_node(batch, member.name, data)
    if actual_hash != hash:
        raise Corrupt(f"{member.name}: its bytes hash to {actual_hash}")
    return data


def _put_node(batch: Batch, name: str, data: bytes) -> None:
    try:
        batch.put_encoded(data)
    except (Invalid, NotFound) as error:
        raise Corrupt(f"{name}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise Corrupt(f"{name}: not a node") from None


def _heads(
    store: Store,
    batch: Batch,
    manifest: Manifest,
    purged: archive_purged.Taking,
    nodes: dict[str, bytes],
    done: Imported,
) -> None:
    """Creates or moves the manifest's heads, as `casfs.exchange.arrivals` says. `nodes`: the nodes
    that they lead to, as far as they are in the archive."""
    foreign_heads = dict(manifest.heads)
    names = arrivals.Names(store, arrivals.Origin(IMPORT, other_remotes=()))
    replaced: dict[HeadName, tuple[Head, Head]] = {}
    for name, foreign in manifest.heads:
        data = nodes.get(purged.source(foreign.hash))
        if data is None and foreign.hash not in store.blobs.info([foreign.hash]):
            raise Corrupt(f"the head {name} leads to {foreign.hash}, which is not in the file")
        data = data or store.blobs.get(foreign.hash).data
        new = without_processes(name, foreign, foreign_heads)
        fault = "its time is in the future" if is_future(foreign) else mismatch(name, new, data)
        if fault:
            raise Corrupt(f"the head {name}: {fault}")
        try:
            destination = names.place(name, new)
        except (Conflict, Invalid) as error:
            raise Conflict(f"{error}; nothing was imported") from None
        if destination is None:
            continue
        if destination.old is not None and not name.startswith(arrivals.RENAMED):
            raise Conflict(f"{name} already exists with another value; nothing was imported")
        head = names.record(name, destination, new)
        if destination.old is None:
            batch.swap(destination.name, None, head)
        else:
            replaced[destination.name] = destination.old, head
        done.heads.append(destination.name)
        if destination.name != name:
            done.renamed[name] = destination.name
    removals.replace(store, batch, replaced)
    done.replaced = {name: old.hash for name, (old, _) in replaced.items()}


# -- files ------------------------------------------------------------------------------------


@contextmanager
def _opened(source: Path) -> Iterator[BinaryIO]:
    try:
        with zstd.opened(source) as stream:
            yield stream
    except FileNotFoundError:
        raise NotFound(f"no file {source}") from None
    except OSError as error:
        raise Failed(f"cannot read {source}: {error.strerror}") from None
