"""Is the store what it says it is? Reads everything, trusts nothing that was cached.

Checked: the SQLite file; every blob's bytes against its name; every node's canonical form,
schema, refs and their types; steps' indices and threads' depths against what they follow;
every head. Of each fault it says what it takes with it: the heads (threads, checkpoints,
workflows, schemas) whose closure holds it.

Damaged bytes go to `quarantine/`, so nobody can be served them and a later put of the right
bytes heals the store. So do sound bytes that lost their type: put back, they get it again.
A node is never judged by a schema that is itself damaged or lost. What was reachable is
missing then, and reported by every run until it is back. Memory is bounded: nothing is
remembered but the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from casfs import canonical
from casfs.backend.derived import repairable
from casfs.backend.protocols import META, BlobInfo, targets
from casfs.errors import CasfsError, Corrupt, CorruptBlob, Invalid, NotFound
from casfs.maintenance import names as catalogue
from casfs.nodes import node
from casfs.nodes.node import CHECKS, Node
from casfs.nodes.schema import Ref
from casfs.store import Store

Progress = Callable[[int], None]
BROKEN = ("corrupt", "bad node", "missing")
LOST_TYPE = "lost type"


@dataclass(slots=True)
class Fault:
    """`hash`: what is damaged or missing, None where it is no blob. `takes`: head names."""

    kind: str
    hash: str | None
    message: str
    takes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    blobs: int = 0
    nodes: int = 0
    bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)


def check(
    store: Store, *, quarantine: bool = True, progress: Progress = lambda done: None
) -> Report:
    """Check everything; `progress` is told the number of blobs read so far."""
    report = Report()
    with _as_fault(report):
        report.faults += [Fault("store", None, line) for line in repairable(store.blobs).faults()]
    with _as_fault(report):
        for _, hash, info in store.blobs.iterate():
            report.blobs += 1
            report.bytes += info.size
            report.nodes += info.type is not None
            report.faults += _check_blob(store, hash, info)
            progress(report.blobs)
    with _as_fault(report):
        report.faults += _check_heads(store)
    _merge_missing(report)
    with _as_fault(report):
        _tell_victims(store, report)
    if quarantine:
        _set_aside(store, report)
    return report


@contextmanager
def _as_fault(report: Report) -> Iterator[None]:
    """Where the SQLite file itself cannot be read on, say so and go on with the rest."""
    try:
        yield
    except CasfsError as error:
        message = f"could not check all: {error.__cause__ or error}"
        report.faults.append(Fault("store", None, message))


def _check_blob(store: Store, hash: str, info: BlobInfo) -> list[Fault]:
    faults = _faults(store, hash, info)
    if faults and not store.blobs.info([hash]):  # gc took it in between
        return []
    return faults


def _faults(store: Store, hash: str, info: BlobInfo) -> list[Fault]:
    try:
        repairable(store.blobs).verify(hash)
        if info.type is not None:
            return list(_check_node(store, hash, info.type))
    except CorruptBlob as error:
        return [Fault("corrupt", hash, str(error))]
    except NotFound as error:
        return [Fault("missing", hash, str(error))]
    except CasfsError as error:
        return [Fault("unreadable", hash, str(error))]
    return []


def _check_node(store: Store, hash: str, type: str) -> Iterator[Fault]:
    judge = hash if type == META else type
    if not store.blobs.info([judge]):
        yield Fault("missing", judge, f"node {hash} is of type {judge}, which is not there")
        return
    try:
        store.registry.compiled(judge)
    except CorruptBlob:  # of the schema, which has a fault of its own
        return
    except CasfsError as error:
        yield Fault("bad node", hash, f"node {hash}: {error}")
        return
    try:
        found = _sound(store, hash, type)
    except (CasfsError, KeyError, TypeError, ValueError) as error:
        yield Fault("bad node", hash, f"node {hash}: {error}")
        return
    yield from _check_refs(store, found)
    yield from _check_order(store, found)


def _sound(store: Store, hash: str, type: str) -> Node:
    """The node, with its form and payload checked."""
    data = store.get(hash)
    type_hash, payload = node.decode(hash, data)
    if type_hash != type:
        raise Corrupt(f"is of type {type_hash}, and the store has it as {type}")
    if node.encode(type_hash, canonical.parse(data)["payload"]) != data:
        raise Corrupt("its bytes are not canonical")
    name, schema = store.registry.compiled(hash if type_hash == META else type_hash)
    schema.check(payload)
    if name in CHECKS:
        CHECKS[name](payload)
    return Node(hash, name, type_hash, payload)


def _check_refs(store: Store, found: Node) -> Iterator[Fault]:
    """Refs that lead nowhere, or to another type than they must."""
    refs = dict.fromkeys(store.refs(found))
    known = store.blobs.info({ref.hash for ref in refs})
    what = f"{found.type} {found.hash}"
    for ref in refs:
        if ref.hash not in known:
            message = f"{what} refers to {ref.hash}, which is not there"
            yield Fault("missing", ref.hash, message)
        elif ref.cas_type is not None and not _is_a(store, known[ref.hash], (ref.cas_type,)):
            if _lost_type(store, ref.hash, known[ref.hash], (ref.cas_type,)):
                message = f"{what}: {ref.hash} has lost its type {ref.cas_type}"
                yield Fault(LOST_TYPE, ref.hash, message)
            else:
                yield Fault("wrong ref", found.hash, f"{what}: {ref.hash} is not a {ref.cas_type}")


def _is_a(store: Store, info: BlobInfo, names: tuple[str, ...]) -> bool:
    """True also where the type is damaged: that is a fault of its own."""
    try:
        return info.type is not None and store.registry.name(info.type) in names
    except CasfsError:
        return True


def _lost_type(store: Store, hash: str, info: BlobInfo, names: tuple[str, ...]) -> bool:
    """Is a blob without a type the bytes of a node of one of these types?"""
    if info.type is not None:
        return False
    try:
        type_hash = is_node(store, store.get(hash))
        return type_hash is not None and store.registry.name(type_hash) in names
    except CasfsError:
        return False


def _check_order(store: Store, found: Node) -> Iterator[Fault]:
    """What a step and a thread-start say about what they follow."""
    try:
        if found.type == "thread-step":
            previous = found.payload["previous"]
            before = store.node(previous).payload["index"] if previous else 0
            if found.payload["index"] != before + 1:
                message = f"step {found.hash} has index {found.payload['index']} after {before}"
                yield Fault("order", found.hash, message)
        if found.type == "thread-start" and found.payload["depth"] != _depth(store, found):
            message = f"thread-start {found.hash} has depth {found.payload['depth']}"
            yield Fault("depth", found.hash, f"{message}, its parent says {_depth(store, found)}")
    except (CasfsError, KeyError):  # what it follows has a fault of its own
        return


def _depth(store: Store, start: Node) -> int:
    state = start.payload["parentState"]
    if state is None:
        return 0
    parent = store.node(state)
    if parent.type == "thread-step":
        parent = store.node(parent.payload["start"])
    return int(parent.payload["depth"]) + 1


def _check_heads(store: Store) -> Iterator[Fault]:
    for name, head in store.heads.list():
        wanted = dict.fromkeys(targets(head))
        known = store.blobs.info(wanted.keys())
        for hash in wanted:
            if hash not in known and store.heads.get(name) == head:
                message = f"head {name} leads to {hash}, which is not there"
                yield Fault("missing", hash, message, [name])
        names = catalogue.kinds(name)
        if names and head.hash in known and not _is_a(store, known[head.hash], names):
            yield _wrong_head(store, name, head.hash, known[head.hash], names)


def _wrong_head(
    store: Store, name: str, hash: str, info: BlobInfo, names: tuple[str, ...]
) -> Fault:
    if _lost_type(store, hash, info, names):
        return Fault(LOST_TYPE, hash, f"head {name}: {hash} has lost its type", [name])
    return Fault("wrong head", None, f"head {name}: {hash} is not a {' or '.join(names)}", [name])


def _merge_missing(report: Report) -> None:
    """One fault for each thing that is missing, however many refer to it."""
    seen: dict[tuple[str, str | None, str], Fault] = {}
    for fault in report.faults:
        key = (fault.kind, fault.hash, "" if fault.hash else fault.message)
        if key in seen:
            seen[key].takes += fault.takes
        else:
            seen[key] = fault
    report.faults = list(seen.values())


def _tell_victims(store: Store, report: Report) -> None:
    """Fill in `takes`. A node arrives after what it refers to, so one pass over the store
    in order of arrival carries a loss up to the heads; repairs and re-puts can break that
    order, so passes go on until one finds nothing new."""
    causes = {fault.hash: {place} for place, fault in enumerate(report.faults) if fault.hash}
    if not causes:
        return
    changed = True
    while changed:
        changed = False
        for _, hash, info in store.blobs.iterate():
            if info.type is None:
                continue
            below = {info.type, *(ref.hash for ref in _refs(store, hash))}
            got = set().union(*(causes.get(ref, ()) for ref in below))
            if not got <= causes.get(hash, set()):
                causes[hash] = causes.get(hash, set()) | got
                changed = True
    for name, head in store.heads.list():
        hit = set().union(*(causes.get(hash, ()) for hash in targets(head)))
        for place in sorted(hit):
            if name not in report.faults[place].takes:
                report.faults[place].takes.append(name)


def _refs(store: Store, hash: str) -> Iterable[Ref]:
    try:
        return store.refs(store.node(hash))
    except CasfsError:
        return ()


def _set_aside(store: Store, report: Report) -> None:
    for fault in report.faults:
        test = _is_untyped if fault.kind == LOST_TYPE else _is_broken
        if fault.hash and test(store, fault.hash):
            repairable(store.blobs).quarantine(fault.hash)
            report.quarantined.append(fault.hash)


def _is_broken(store: Store, hash: str) -> bool:
    """Is a blob damaged itself, and still? Somebody may have put it back by now, and what is
    only of another type than a ref to it asks for is sound."""
    info = store.blobs.info([hash]).get(hash)
    found = () if info is None else _check_blob(store, hash, info)
    return any(one.hash == hash and one.kind in BROKEN for one in found)


def _is_untyped(store: Store, hash: str) -> bool:
    info = store.blobs.info([hash]).get(hash)
    return info is not None and info.type is None


def is_node(store: Store, data: bytes) -> str | None:
    """The type hash under which `data` would be accepted as a node, else None."""
    try:
        value = canonical.parse(data)
        type_hash = value["type"]
        if type_hash != META:
            store.registry.compiled(type_hash)[1].check(value["payload"])
        canonical_form = node.encode(type_hash, value["payload"])
    except (CasfsError, Invalid, KeyError, TypeError, ValueError, AttributeError):
        return None
    return str(type_hash) if canonical_form == data else None
