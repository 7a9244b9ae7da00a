"""Is the store what it says it is? Reads everything, trusts nothing that was cached.

Checked: the SQLite file; every blob's bytes against its name; every node's canonical form,
schema, refs and their types; steps' indices and threads' depths against what they follow;
every head. Of each fault it says what it takes with it: the heads (threads, checkpoints,
workflows, schemas) whose closure holds it.

Damaged bytes go to `quarantine/`, so nobody can be served them and a later put of the right
bytes heals the store. What was reachable is missing then, and reported by every run until
it is back. Memory is bounded: nothing is remembered but the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from . import canonical, node
from .backend import META, BlobInfo
from .catalogue import targets
from .errors import CasfsError, Corrupt, CorruptBlob, Invalid, NotFound
from .node import CHECKS, Node
from .schema import Ref
from .store import Store

Progress = Callable[[int], None]


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
    for line in store.backend.faults():
        report.faults.append(Fault("store", None, line))
    for hash, info in store.blobs.iterate():
        report.blobs += 1
        report.bytes += info.size
        report.nodes += info.type is not None
        report.faults += _check_blob(store, hash, info)
        progress(report.blobs)
    report.faults += _check_heads(store)
    _merge_missing(report)
    _tell_victims(store, report)
    if quarantine:
        _set_aside(store, report)
    return report


def _check_blob(store: Store, hash: str, info: BlobInfo) -> list[Fault]:
    try:
        store.blobs.verify(hash)
        if info.type is not None:
            return list(_check_node(store, hash, info.type))
    except CorruptBlob as error:
        return [Fault("corrupt", hash, str(error))]
    except NotFound as error:
        if store.blobs.info([hash]):  # else gc took it in between
            return [Fault("missing", hash, str(error))]
    except CasfsError as error:
        return [Fault("unreadable", hash, str(error))]
    return []


def _check_node(store: Store, hash: str, type: str) -> Iterator[Fault]:
    try:
        found = _sound(store, hash, type)
    except (CasfsError, KeyError, TypeError, ValueError) as error:
        yield Fault("bad node", hash, f"node {hash}: {error}")
        return
    for ref, message in _dangling(store, found):
        yield Fault("missing", ref, message)
    yield from _check_order(store, found)


def _sound(store: Store, hash: str, type: str) -> Node:
    """The node, with its form and payload checked."""
    data = store.get(hash)
    type_hash, payload = node.decode(hash, data)
    if type_hash != type:
        raise Corrupt(f"is of type {type_hash}, and the store has it as {type}")
    if node.encode(type_hash, canonical.parse(data)["payload"]) != data:
        raise Corrupt("its bytes are not canonical")
    name, schema = store.registry.compiled(_meta(store) if type_hash == META else type_hash)
    schema.check(payload)
    if name in CHECKS:
        CHECKS[name](payload)
    return Node(hash, name, type_hash, payload)


def _meta(store: Store) -> str:
    return store.registry.head(META).hash


def _dangling(store: Store, found: Node) -> Iterator[tuple[str, str]]:
    """(hash, message) of each ref that leads nowhere, or to another type than it must."""
    refs = store.refs(found)
    known = store.blobs.info({ref.hash for ref in refs})
    for ref in dict.fromkeys(refs):
        if ref.hash not in known:
            yield ref.hash, f"{found.type} {found.hash} refers to {ref.hash}, which is not there"
        elif ref.cas_type not in (None, _name(store, known[ref.hash].type)):
            yield ref.hash, f"{found.type} {found.hash}: {ref.hash} is no {ref.cas_type}"


def _name(store: Store, type: str | None) -> str | None:
    if type is None or type == META:
        return type
    try:
        return store.registry.compiled(type)[0]
    except CasfsError:
        return None


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
    except CasfsError:  # the parent is damaged, which is a fault of its own
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
            if hash not in known:
                message = f"head {name} leads to {hash}, which is not there"
                yield Fault("missing", hash, message, [name])


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
        for hash, info in store.blobs.iterate():
            if info.type is None:
                continue
            got = set().union(*(causes.get(ref.hash, ()) for ref in _refs(store, hash)))
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
        broken = fault.kind in ("corrupt", "bad node", "missing")
        if fault.hash and broken and store.blobs.info([fault.hash]):
            store.blobs.quarantine(fault.hash)
            report.quarantined.append(fault.hash)


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
