"""Garbage collection of a remote: marks from its refs; what no ref reaches is deleted in two steps.

A pack that nothing reaches is first entered in the log as orphaned: from then on no push counts on
its content, and readers of an older state still find it. A later run deletes it, once GRACE has
passed since that entry by the server's clock. A pack that is mostly garbage is orphaned as well,
and what is reached in it copied to a new one, by the same entry. Closure holds (`casfs.remotes.
log`): all nodes of a pack of nodes that stays count as reached. The entry is appended only to the
state that was marked; after any other entry the run begins anew. So pushes and other runs at the
same time lose nothing.

What was purged leaves at once: a pack with such a member goes without grace, by the entry that
names the copy of its rest. A reader of the old state finds it gone, and reads the log again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from casfs.backend.protocols import targets
from casfs.errors import Conflict, Corrupt, NotFound
from casfs.object_storage.retrying import parallel
from casfs.packs.layout import SALT_BYTES
from casfs.remotes import log, log_redaction, purged
from casfs.remotes.log import NODES, Entry, Pack, pack_key
from casfs.remotes.push import PACKERS, packers
from casfs.remotes.push_plan import Item, Plan
from casfs.remotes.remote import MAX_TRIES, Remote
from casfs.remotes.state import LIVE, ORPHANED, PENDING
from casfs.remotes.view import GRACE, RemoteBlobs, opened, strays
from casfs.store import graph
from casfs.store.local_trees import HEADS as LOCAL_TREES
from casfs.store.store import Store

MAX_GARBAGE = 0.5  # share of the bytes of a pack, from which its rest is copied
Reached = dict[str, set[int]]  # members, by pack


class _Moved(Exception):
    """Another writer has appended an entry."""


@dataclass(slots=True)
class Collected:
    """Names of packs. `purged`: with purged content, which go at once; `copied`: those of
    `orphaned` and `purged` whose rest is in new packs; `live`: that were orphaned; `unfinished`:
    files of uploads that were killed; `bytes`: of what was deleted; `entries`: of the log
    that no longer say what a later one says again."""

    packs: int = 0
    orphaned: list[str] = field(default_factory=list)
    purged: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    bytes: int = 0
    entries: int = 0


def collect(remote: Remote, *, dry_run: bool = False) -> Collected:
    """Runs once. Raises Corrupt where what a ref reaches is damaged or missing: then nothing
    changes; Conflict where there are too many other writers."""
    for _ in range(MAX_TRIES):
        with opened(remote) as (store, blobs):
            try:
                done = _collect(remote, store, blobs=blobs, dry_run=dry_run)
            except _Moved:
                continue
        done.strays = [key for key in strays(remote) if Path(key).stem not in done.deleted]
        for key in [] if dry_run else [*map(pack_key, done.deleted), *done.strays]:
            remote.storage.delete(key)
        done.entries = log_redaction.redact(remote, dry_run=dry_run)
        left = remote.storage.unfinished(delete=not dry_run)
        done.unfinished = [*left]
        done.bytes += sum(left.values())
        return done
    raise Conflict(f"{remote.storage.url}: too many writers at once; try again")


def _collect(remote: Remote, store: Store, blobs: RemoteBlobs, dry_run: bool) -> Collected:
    position = remote.state.position()
    packs = {pack.name: pack for pack in remote.state.packs(LIVE)}
    doomed = purged.packs_with(remote, blobs.purged)
    referred = {name: blobs.index(name).referred_packs() for name in packs if name not in doomed}
    # What refers to a frame of a pack that goes at once goes with it, and its rest is copied.
    while broken := {name for name, names in referred.items() if names & doomed} - doomed:
        doomed |= broken
    reached, kept = _mark(remote, store, blobs=blobs, packs=packs, doomed=doomed)
    done = Collected(len(packs), purged=sorted(doomed))
    done.copied = sorted(doomed & reached.keys())
    for name in packs.keys() - kept - doomed:
        share = _garbage(blobs, name, reached)
        if share >= MAX_GARBAGE:
            done.orphaned.append(name)
        if MAX_GARBAGE <= share < 1:
            done.copied.append(name)
    live = (packs.keys() | reached.keys()) - doomed - {*done.orphaned}
    needed = _referred(blobs, live)
    done.orphaned = [name for name in done.orphaned if name not in needed]
    done.copied = [name for name in done.copied if name not in needed]
    done.live = sorted((reached.keys() | needed) - packs.keys() - doomed)
    done.deleted = sorted({*_expired(remote, set(done.live)), *doomed})
    known = remote.state.packs(LIVE, ORPHANED, PENDING)
    done.bytes = sum(pack.size for pack in known if pack.name in done.deleted)
    if dry_run or not (done.orphaned or done.live or done.deleted):
        return done
    copied = [pack for pack in known if pack.name in done.copied]
    new = _copy(remote, store, blobs=blobs, packs=copied, reached=reached)

    def fill(entry: Entry) -> None:
        if remote.state.position() != position:
            raise _Moved
        entry["packs"] = {pack.name: pack.encode() for pack in new}
        entry |= {"orphaned": done.orphaned, "live": done.live, "deleted": done.deleted}

    remote.append(fill)
    return done


def _mark(
    remote: Remote, store: Store, blobs: RemoteBlobs, packs: dict[str, Pack], doomed: set[str]
) -> tuple[Reached, set[str]]:
    """Returns what is reached, and the packs of nodes that stay as they are, garbage included;
    those `doomed` do not."""
    named = ((name, head) for name, head in store.heads.list() if not name.startswith(LOCAL_TREES))
    roots = {hash for _, head in named for hash in targets(head)}
    kept: set[str] = set()
    while True:
        reached: Reached = {}
        try:
            for hash in graph.walk(store, roots, with_local=True):
                for location in blobs.places([hash]).values():
                    reached.setdefault(location.pack, set()).add(location.number)
        except (NotFound, Corrupt) as error:
            name = remote.name
            raise Corrupt(f"nothing was deleted: {error}; run `casfs remote fsck {name}`") from None
        nodes = {name for name, pack in packs.items() if pack.kind == NODES} - kept - doomed
        new = {name for name in nodes if 0 < _garbage(blobs, name, reached) < MAX_GARBAGE}
        if not new:
            return reached, kept
        kept |= new
        for name in new:
            index = blobs.index(name)
            roots |= {index.member(number).hash for number in range(index.members)}


def _referred(blobs: RemoteBlobs, live: set[str]) -> set[str]:
    """Returns the packs that hold frames to which those of live packs refer, and so on: what stays
    in a live pack can be read, garbage too."""
    needed: set[str] = set()
    waiting = [*live]
    while waiting:
        new = blobs.index(waiting.pop()).referred_packs() - needed
        needed |= new
        waiting += new
    return needed


def _garbage(blobs: RemoteBlobs, pack: str, reached: Reached) -> float:
    """Returns the share of a pack's bytes that is not reached; its random member does not count."""
    index = blobs.index(pack)
    live = reached.get(pack, set())
    if not live:
        return 1
    sizes = [index.member(number).size for number in range(index.members)]
    garbage = sum(size for number, size in enumerate(sizes) if number not in live)
    return max(0, garbage - SALT_BYTES) / max(1, sum(sizes))


def _expired(remote: Remote, live: set[str]) -> list[str]:
    """Returns the packs that were orphaned long enough ago."""
    storage_time = remote.storage.now()
    expired = []
    for name, number in remote.state.since_when(ORPHANED).items():
        entry = remote.storage.head(log.key(number))
        if name not in live and entry is not None and entry.modified <= storage_time - GRACE:
            expired.append(name)
    return expired


def _copy(
    remote: Remote, store: Store, blobs: RemoteBlobs, packs: list[Pack], reached: Reached
) -> list[Pack]:
    plan = Plan(set())
    for pack in packs:
        members = [blobs.index(pack.name).member(number) for number in sorted(reached[pack.name])]
        items = [Item(member.hash, member.size, member.type) for member in members]
        if pack.kind == NODES:
            plan.nodes += items
        else:
            plan.blobs += [blob._replace(type=None) for blob in items]
    return [pack for pack, _ in parallel(packers(store, remote, plan), PACKERS, PACKERS)]
